//! Launches whose return is not probed: all are counted, those that fail because of their arguments are seen to fail,
//! and one that does not return is pending.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};

/// Refuses blocks of more than 1024 threads. A launch with arguments does not return.
const DRIVER: &str = r#"
#include <unistd.h>
int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y,
		   unsigned block_z, unsigned shared, void *stream, void **params, void **extra)
{
	while (params)
		pause();
	return block > 1024 ? 1 : 0;
}"#;

const RUNTIME: &str = r#"
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		   void **);

int cudaLaunchKernel(void *kernel, void **params)
{
	return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, params, 0);
}"#;

/// After each line that it reads: launches ten thousand times, of which ten fail; starts processes that launch and hang
/// in a launch, every other one in a launch of the runtime, and one that sleeps afterwards, deeper in its stack; and ends.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define HANGING 12
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		   void **);

int cudaLaunchKernel(void *, void **);

static int launch(unsigned grid, unsigned block, void **params)
{
	return cuLaunchKernel((void *)0x1000, grid, 1, 1, block, 1, 1, 0, 0, params, 0);
}

static void sleep_deeper(int frames)
{
	volatile char room[512];

	room[0] = frames;
	if (frames)
		sleep_deeper(frames - 1);
	else
		pause();
	room[1] = 0;
}

static void be_child(int number)
{
	void *argument = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < 100; i++)
		launch(1, 32, 0);
	if (number < HANGING && number % 2)
		cudaLaunchKernel((void *)0x1000, &argument);
	else if (number < HANGING)
		launch(1, 32, &argument);
	sleep_deeper(20);
}

int main(void)
{
	unsigned long launched = 0, failed = 0;

	printf("{\"pid\":%d}\n", getpid());
	fflush(stdout);
	getchar();
	for (int i = 0; i < 10000; i++)
		if (launch(i % 4 + 1, i % 1000 == 999 ? 2048 : 128, 0))
			failed++;
		else
			launched++;
	printf("{\"launched\":%lu,\"failed\":%lu}\n", launched, failed);
	fflush(stdout);
	getchar();
	printf("{\"hanging\":[");
	fflush(stdout);
	for (int i = 0; i <= HANGING; i++) {
		pid_t child = fork();

		if (!child)
			be_child(i);
		printf(i == HANGING ? "],\"sleeping\":%d}\n" : i ? ",%d" : "%d", child);
	}
	fflush(stdout);
	getchar();
	return 0;
}"#;

fn launched(metrics: &Metrics, pid: u32) -> u64 {
    metrics.by("gpuprobe_kernel_launches_total", pid, "kernel").values().sum()
}

fn failed(metrics: &Metrics, pid: u32) -> u64 {
    metrics.by("gpuprobe_errors_total", pid, "function").values().sum()
}

/// The processes that are in a launch.
fn in_a_launch(metrics: &Metrics) -> BTreeSet<u64> {
    let pending = metrics.values("gpuprobe_call_pending_seconds");
    let of_launches = pending.filter(|(labels, _)| labels["function"] == "cuLaunchKernel");
    of_launches.map(|(labels, _)| labels["pid"].parse().unwrap_or_else(|e| panic!("{e}"))).collect()
}

#[bpf_test(needs(tier("session")), alone)]
fn launches_without_a_return_probe_are_counted_and_one_that_hangs_is_pending() {
    let folder = fixtures::folder();
    let at = |name: &str| shown(folder.path().join(name));
    for (name, text) in [("driver.c", DRIVER), ("runtime.c", RUNTIME), ("program.c", PROGRAM)] {
        fs::write(at(name), text).unwrap_or_else(|e| panic!("{e}"));
    }
    let rpath = format!("-Wl,-rpath,{}", shown(folder.path()));
    let (driver, program, library) = (at("driver.c"), at("program.c"), at("libcuda.so.1"));
    let (runtime, source, soname) = (at("libcudart.so.12"), at("runtime.c"), "-Wl,-soname,libcudart.so.12");
    let built = [
        vec!["-shared", "-fPIC", "-o", &library, &driver],
        vec!["-shared", "-fPIC", soname, "-o", &runtime, &source, &library, &rpath],
        vec!["-o", &at("program"), &program, &runtime, &library, &rpath],
    ]
    .map(|arguments| Command::new("cc").args(arguments).status().unwrap_or_else(|e| panic!("{e}")));
    assert!(built.iter().all(std::process::ExitStatus::success));
    for every_return in [false, true] {
        let options = ["-p", &library, "--all-launch-returns"];
        let daemon = Daemon::with(&options[..if every_return { 3 } else { 2 }]);
        let mut talk = Talk::start(&mut Command::new(at("program")));
        let pid = pid_of(&talk.json());
        talk.go_on();
        let printed = talk.json();
        let expected = (number(&printed["launched"]), number(&printed["failed"]));
        assert_eq!(expected, (9990, 10));
        let all = |m: &Metrics| (launched(m, pid), failed(m, pid)) == expected;
        let metrics = daemon.until(PATIENCE, "all launches", all);
        let unprobed = metrics.of("gpuprobe_kernel_launches_without_return_total", pid);
        let range = if every_return { 0..=0 } else { 8500..=9800 };
        assert!(unprobed.is_some_and(|n| range.contains(&n)), "{unprobed:?}");
        talk.go_on();
        let children = talk.json();
        let hanging: BTreeSet<u64> =
            children["hanging"].as_array().into_iter().flatten().map(number).collect();
        assert_eq!(hanging.len(), 12);
        let metrics = daemon.until(PATIENCE, "all that hang", |m| hanging.is_subset(&in_a_launch(m)));
        assert_eq!(in_a_launch(&metrics), hanging, "not {}, which sleeps", children["sleeping"]);
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
    }
}
