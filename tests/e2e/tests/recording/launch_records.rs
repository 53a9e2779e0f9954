//! Recordings without a return probe on every launch: each launch has a record, those of the CUDA driver are inside those
//! of the CUDA runtime, and launches that fail because of their arguments are seen to fail.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::process::{PATIENCE, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{Counts, number, pid_of};
use gpuprobe_e2e::{Recording, Talk, bpf_test, fixtures};
use gpuprobe_event::{Api, Call, Class, Outcome};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Refuses blocks of more than 1024 threads. The hundredth launch of one kernel never returns, and neither does a memset of
/// one address.
const DRIVER: &str = r#"
#include <unistd.h>

int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y,
		   unsigned block_z, unsigned shared, void *stream, void **params, void **extra)
{
	static int waiting;

	while (kernel == (void *)0x5008 && (waiting == 99 || ++waiting == 99))
		pause();
	return block > 1024 ? 1 : 0;
}
int cuMemsetD8Async(unsigned long long address, unsigned char byte, unsigned long bytes, void *stream)
{
	while (address == 0x6000)
		pause();
	return 0;
}"#;

/// Refuses a null kernel itself. A kernel with an odd address is launched twice. Some launches of another kernel begin with
/// a call that others do not make, and call the driver from another frame. The hundredth launch of one kernel makes a call
/// that never returns.
const RUNTIME: &str = r#"
typedef struct { unsigned x, y, z; } dim3;
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		   void **);
int cuMemsetD8Async(unsigned long long, unsigned char, unsigned long, void *);

unsigned long prepared;

static int prepare(const void *kernel)
{
	volatile char room[512];

	room[0] = 1;
	__atomic_fetch_add(&prepared, 1, __ATOMIC_RELAXED);
	cuMemsetD8Async(0x7000, 0, 1, 0);
	return cuLaunchKernel((char *)kernel + 8, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0) + room[0] - 1;
}

int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, unsigned long shared, void *stream)
{
	static __thread int launched;
	int status = 98;

	if (kernel == (void *)0x3000 && ++launched % 13 == 0)
		return prepare(kernel);
	if (kernel == (void *)0x6000 && ++launched == 100)
		cuMemsetD8Async(0x6000, 0, 1, 0);

	for (int i = 0; kernel && i < ((long)kernel & 1) + 1; i++)
		status = cuLaunchKernel((char *)kernel + 8, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
					stream, args, 0);
	return status;
}"#;

/// Makes calls in four threads, some of the CUDA runtime and some of the CUDA driver at several depths of the stack, and
/// prints what it made. One thread ends after each of its launches, and a child process is killed after some.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } dim3;
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		   void **);
int cudaLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
int cuMemsetD8Async(unsigned long long, unsigned char, unsigned long, void *);

extern unsigned long prepared;
static unsigned long runtime, direct, inner, failed, sets;
#define ADD(counter, n) __atomic_fetch_add(&counter, n, __ATOMIC_RELAXED)

static int launch(long kernel, unsigned grid, unsigned block)
{
	int status = cudaLaunchKernel((void *)kernel, (dim3){grid, 1, 1}, (dim3){block, 1, 1}, 0, 0, 0);

	ADD(runtime, 1);
	ADD(inner, kernel ? (kernel & 1) + 1 : 0);
	ADD(failed, status ? 1 : 0);
	return status;
}

static void launch_deeper(int frames)
{
	volatile char room[256];

	room[0] = frames;
	if (frames) {
		launch_deeper(frames - 1);
	} else {
		cuLaunchKernel((void *)0x9000, 1, 1, 1, 64, 1, 1, 0, 0, 0, 0);
		ADD(direct, 1);
	}
	room[1] = frames;
}

static void *work(void *unused)
{
	for (int i = 0; i < 5000; i++) {
		launch(0x1000 + 16 * (i % 5), i % 4 + 1, i % 1000 == 999 ? 2048 : 128);
		if (i % 7 == 3)
			launch_deeper(i % 6);
		if (i % 11 == 5) {
			cuMemsetD8Async(0x7000, 0, i, 0);
			ADD(sets, 1);
		}
		if (i % 50 == 7)
			launch(0x2001, 1, 32);
		if (i % 3 == 1)
			launch(0x3000, 1, 32);
		if (i % 500 == 20)
			launch(0, 1, 32);
	}
	return 0;
}

static void *launch_some(void *unused)
{
	for (int i = 0; i < 20; i++)
		launch(0x1000, 1, 32);
	return 0;
}

int main(int arguments, char **argument)
{
	pthread_t threads[3], other;
	int to_parent[2];
	char byte;
	pid_t child;

	printf("{\"pid\":%d}\n", getpid());
	fflush(stdout);
	getchar();
	while (arguments > 1)
		launch(strtol(argument[1], 0, 16), 1, 32);
	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], 0, work, 0);
	work(0);
	for (int i = 0; i < 50; i++) {
		pthread_create(&other, 0, launch_some, 0);
		pthread_join(other, 0);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], 0);
	if (pipe(to_parent) || (child = fork()) < 0)
		return 1;
	if (!child) {
		launch_some(0);
		if (write(to_parent[1], "", 1) == 1)
			pause();
	}
	if (read(to_parent[0], &byte, 1) != 1)
		return 1;
	kill(child, SIGKILL);
	waitpid(child, 0, 0);
	printf("{\"child\":%d,\"runtime\":%lu,\"direct\":%lu,\"inner\":%lu,\"failed\":%lu,\"sets\":%lu,\"prepared\":%lu}\n", child,
	       runtime, direct, inner, failed, sets, prepared);
	fflush(stdout);
	getchar();
	return 0;
}"#;

const FUNCTIONS: [&str; 6] = ["-e", "cudaLaunchKernel", "-e", "cuLaunchKernel", "-e", "cuMemsetD8Async"];

/// Compiles the program and its libraries.
fn build(folder: &Path) {
    let at = |name: &str| shown(folder.join(name));
    for (name, text) in [("driver.c", DRIVER), ("runtime.c", RUNTIME), ("program.c", PROGRAM)] {
        fs::write(folder.join(name), text).unwrap_or_else(|e| panic!("{e}"));
    }
    let rpath = format!("-Wl,-rpath,{}", shown(folder));
    let (driver, runtime) = (at("libcuda.so.1"), at("libcudart.so.12"));
    let library = |name: &str| format!("-Wl,-soname,{name}");
    let (driver_name, runtime_name) = (library("libcuda.so.1"), library("libcudart.so.12"));
    let (driver_c, runtime_c, program_c, program) =
        (at("driver.c"), at("runtime.c"), at("program.c"), at("program"));
    let builds = [
        vec!["-shared", "-fPIC", &driver_name, "-o", &driver, &driver_c],
        vec!["-shared", "-fPIC", &runtime_name, "-o", &runtime, &runtime_c, &driver, &rpath],
        vec!["-pthread", "-o", &program, &program_c, &runtime, &driver, &rpath],
    ];
    for arguments in builds {
        let status = Command::new("cc").args(arguments).status().unwrap_or_else(|e| panic!("{e}"));
        assert!(status.success());
    }
}

/// Records a run of the program. Returns its ledger.
fn record(folder: &Path, trace: &Path, options: &[&str]) -> (u32, Value) {
    let mut program = Talk::start(&mut Command::new(folder.join("program")));
    let pid = pid_of(&program.json());
    let (pid_text, output) = (pid.to_string(), shown(trace));
    let words = [&["record", "--children", "-d", &pid_text, "-o", &output], &FUNCTIONS[..], options].concat();
    let mut recorder = Talk::start(&mut gpuprobe(&words));
    until(PATIENCE, "the probes are in", || recorder.stderr().contains("gpuprobe: recording").then_some(()));
    program.go_on();
    let ledger = program.json();
    // the last launches of the threads are still deferred
    recorder.signal(Signal::SIGINT);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    program.go_on();
    assert_eq!(program.end(), 0);
    (pid, ledger)
}

fn counted<'a>(calls: impl Iterator<Item = &'a Call>) -> Counts {
    let mut counts = Counts::new();
    calls.for_each(|call| *counts.entry(call.name.to_string()).or_default() += 1);
    counts
}

fn end_ns(call: &Call) -> u64 {
    match call.outcome {
        Outcome::Returned { duration_ns, .. } => call.start_ns + duration_ns,
        other => panic!("{other:?}"),
    }
}

/// The calls of each thread follow each other, and inner ones are within the outer ones and come before them.
fn assert_nested(calls: &[Call]) {
    let places: HashMap<u64, usize> =
        calls.iter().enumerate().map(|(place, call)| (call.id, place)).collect();
    let mut last_end = HashMap::new();
    let mut outermost: Vec<_> = calls.iter().filter(|call| call.parent.is_none()).collect();
    outermost.sort_by_key(|call| call.start_ns);
    for call in outermost {
        let earlier = last_end.insert(call.tid, end_ns(call));
        assert!(earlier.is_none_or(|end| end <= call.start_ns), "{call:?} began before {earlier:?}");
    }
    for (place, inner) in calls.iter().enumerate() {
        let Some(parent) = inner.parent else { continue };
        let outer_place = places[&parent];
        let outer = &calls[outer_place];
        assert!(place < outer_place && inner.tid == outer.tid, "{inner:?} in {outer:?}");
        assert!(outer.start_ns <= inner.start_ns && end_ns(inner) <= end_ns(outer), "{inner:?} in {outer:?}");
    }
}

#[bpf_test(tiers)]
fn every_launch_is_recorded_where_it_was_made_with_few_return_probes(tier: &str) {
    let folder = fixtures::folder();
    build(folder.path());
    for (layer, all) in [("both", false), ("driver", false), ("runtime", false), ("both", true)] {
        let trace = folder.path().join(format!("{layer}-{all}.jsonl"));
        let mut options = vec!["--layer", layer, "--attach", tier];
        options.extend(all.then_some("--all-launch-returns"));
        let (pid, ledger) = record(folder.path(), &trace, &options);
        let recorded = Recording::read(&trace);
        recorded.assert_ended();
        let n = |key: &str| number(&ledger[key]);
        // the child, which was killed, has launched twenty times
        let (runtime, inner) = (n("runtime") + 20, n("inner") + 20);
        let (has_runtime, has_driver) = (layer != "driver", layer != "runtime");
        let mut expected = Counts::new();
        if has_runtime {
            expected.insert("cudaLaunchKernel".to_owned(), runtime);
        }
        if has_driver {
            expected.insert("cuLaunchKernel".to_owned(), inner + n("direct"));
            expected.insert("cuMemsetD8Async".to_owned(), n("sets") + n("prepared"));
        }
        assert_eq!(counted(recorded.calls.iter()), expected, "{layer}");
        assert_nested(&recorded.calls);
        let launches: Vec<_> = recorded.calls.iter().filter(|call| call.class == Class::Launch).collect();
        let nested = launches.iter().filter(|call| call.parent.is_some());
        let nested: u64 = nested.map(|call| u64::from(call.nested && call.api == Api::Driver)).sum();
        assert_eq!(nested, if layer == "both" { inner } else { 0 }, "{layer}");
        let is_set = |call: &&Call| call.parent.is_some() && call.class == Class::Memset;
        let nested_sets = recorded.calls.iter().filter(is_set).count() as u64;
        assert_eq!(nested_sets, if layer == "both" { n("prepared") } else { 0 }, "{layer}");
        let failed = launches.iter().filter(|call| call.failed() && call.parent.is_none()).count() as u64;
        let of_driver = n("failed") - 4 * 10;
        assert_eq!(failed, if has_runtime { n("failed") } else { of_driver }, "{layer}");
        let unprobed = launches.iter().filter(|call| !call.return_probed).count();
        let share = unprobed as f64 / launches.len() as f64;
        let can_decline = tier == "session" && !all;
        let right = if can_decline { 0.7..0.95 } else { 0.0..0.001 };
        assert!(right.contains(&share), "{layer} of {pid}: {share}");
    }
}

/// A program that launches this kernel again and again, and a recording of it. Returns also the trace.
fn launching(folder: &Path, kernel: &str, tier: &str) -> (Talk, Talk, PathBuf) {
    build(folder);
    let mut program = Talk::start(Command::new(folder.join("program")).arg(kernel));
    let pid = pid_of(&program.json()).to_string();
    let trace = folder.join("waiting.jsonl");
    let output = shown(&trace);
    let words = [&["record", "--attach", tier, "-d", &pid, "-o", &output], &FUNCTIONS[..]].concat();
    let recorder = Talk::start(&mut gpuprobe(&words));
    until(PATIENCE, "the probes are in", || recorder.stderr().contains("gpuprobe: recording").then_some(()));
    program.go_on();
    (program, recorder, trace)
}

/// How many calls of a function were recorded, and how many of them have returned.
fn begun_and_returned(recorded: &Recording, name: &str) -> (usize, usize) {
    let calls: Vec<_> = recorded.calls.iter().filter(|call| call.name == name).collect();
    (calls.len(), calls.iter().filter(|call| call.duration_ns().is_some()).count())
}

#[bpf_test(tiers)]
fn a_launch_that_waits_is_not_taken_to_have_returned(tier: &str) {
    let folder = fixtures::folder();
    let (mut program, mut recorder, trace) = launching(folder.path(), "5000", tier);
    // a launch that began less than a second ago is taken to have returned
    std::thread::sleep(Duration::from_millis(2500));
    recorder.signal(Signal::SIGINT);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    program.signal(Signal::SIGKILL);
    program.end();
    let recorded = Recording::read(&trace);
    for name in ["cudaLaunchKernel", "cuLaunchKernel"] {
        assert_eq!(begun_and_returned(&recorded, name), (99, 98), "{name}");
    }
}

#[bpf_test(tiers)]
fn a_launch_has_not_returned_while_a_call_inside_it_is_open(tier: &str) {
    for is_killed in [false, true] {
        let folder = fixtures::folder();
        let (mut program, mut recorder, trace) = launching(folder.path(), "6000", tier);
        std::thread::sleep(Duration::from_millis(300));
        if is_killed {
            program.signal(Signal::SIGKILL);
            program.end();
        } else {
            recorder.signal(Signal::SIGINT);
        }
        assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
        if !is_killed {
            program.signal(Signal::SIGKILL);
            program.end();
        }
        let recorded = Recording::read(&trace);
        assert_eq!(begun_and_returned(&recorded, "cudaLaunchKernel"), (100, 99), "{is_killed}");
        assert_eq!(begun_and_returned(&recorded, "cuLaunchKernel"), (99, 99), "{is_killed}");
        assert_eq!(begun_and_returned(&recorded, "cuMemsetD8Async"), (1, 0), "{is_killed}");
    }
}
