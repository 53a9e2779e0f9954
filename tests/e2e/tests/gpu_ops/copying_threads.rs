//! Copies of many threads: their sums are exact, however many threads there are, and also after threads have exited.

use std::fs;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Differences, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::{Counts, number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// Waits for a line. Starts 40 threads at once, five times, which copy and exit; then one thread after the other, each
/// with the thread id of the one before it if possible. Prints what was copied, and waits for another line.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS 40
#define CALLS 250
#define AGAIN 100

int cuMemcpyHtoD_v2(unsigned long long, const void *, unsigned long);

static char source[64];
static unsigned long copies, bytes;
static pid_t tid;

static void *copy(void *size)
{
	for (int i = 0; i < CALLS; i++)
		if (cuMemcpyHtoD_v2(0x7000, source, (unsigned long)size))
			return NULL;
	__atomic_fetch_add(&copies, CALLS, __ATOMIC_RELAXED);
	__atomic_fetch_add(&bytes, CALLS * (unsigned long)size, __ATOMIC_RELAXED);
	tid = gettid();
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	int reused = 0;

	printf("{\"pid\":%d}\n", getpid());
	fflush(stdout);
	getchar();
	for (int round = 0; round < 5; round++) {
		for (unsigned long i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, copy, (void *)(i + 1));
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
	}
	for (int i = 0; i < AGAIN; i++) {
		FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
		pid_t before = tid;

		if (last) {
			fprintf(last, "%d", before - 1);
			fclose(last);
		}
		pthread_create(&threads[0], NULL, copy, (void *)7);
		pthread_join(threads[0], NULL);
		reused += tid == before;
	}
	printf("{\"copies\":%lu,\"bytes\":%lu,\"reused\":%d}\n", copies, bytes, reused);
	fflush(stdout);
	getchar();
	return 0;
}"#;

/// Room for one process has one row of copies that threads have to themselves; all others share rows.
// the rows do not depend on how probes are attached, and on perf they are removed slowly
#[bpf_test(tiers(session, multi), alone)]
fn every_copy_of_many_threads_is_counted_with_and_without_room_for_their_own_rows(tier: &str) {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1"]);
    let at = |name: &str| shown(folder.path().join(name));
    fs::write(at("program.c"), PROGRAM).unwrap_or_else(|e| panic!("{e}"));
    let rpath = format!("-Wl,-rpath,{}", shown(folder.path()));
    let arguments = ["-pthread", "-o", &at("program"), &at("program.c"), &at("libcuda.so.1"), &rpath];
    assert!(Command::new("cc").args(arguments).status().unwrap_or_else(|e| panic!("{e}")).success());
    for room in ["1", "8192"] {
        let mut talk = Talk::start(&mut Command::new(at("program")));
        let pid = pid_of(&talk.json());
        let (library, id) = (at("libcuda.so.1"), pid.to_string());
        let daemon = Daemon::with(&["--attach", tier, "-d", &id, "-p", &library, "--max-processes", room]);
        talk.go_on();
        let printed = talk.json();
        let expected = |what: &str| Counts::from([("H2D".to_owned(), number(&printed[what]))]);
        assert_eq!(number(&printed["copies"]), (5 * 40 + 100) * 250, "{printed}");
        assert!(number(&printed["reused"]) > 0, "no thread id was reused: {printed}");
        let compare = |metrics: &Metrics, wrong: &mut Differences| {
            for (what, name) in [("copies", "gpuprobe_copies_total"), ("bytes", "gpuprobe_copy_bytes_total")]
            {
                wrong.compare(what, &metrics.by(name, pid, "kind"), &expected(what));
            }
            wrong.compare("lost", &metrics.lost("gpu_ops_full"), &0);
        };
        daemon.until_equal(PATIENCE, compare);
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
        daemon.until_equal(PATIENCE, compare);
    }
}
