//! OpenCL on PoCL, which uses the CPU, compared with a program's own ledger.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, Talk, bpf_test, compile, fixtures, needs};
use gpuprobe_event::{Api, Call, Class};
use gpuprobe_standin::{Cuda, Library};
use serde_json::Value;

/// A hundred thousand calls.
const ROUNDS: &str = "1100";
const THREADS: &str = "8";

/// Compiles a program in `c` that uses OpenCL; `None` if there is no OpenCL.
fn compiled(folder: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
    let program = folder.join(source.trim_end_matches(".c"));
    let deprecated = "-DCL_USE_DEPRECATED_OPENCL_1_2_APIS";
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-pthread", deprecated, "-o"]).arg(&program).arg(compile::source(source));
    let done = finish(cc.args(options));
    if done.status != 0 {
        needs::missing("bpf", &format!("a program for OpenCL cannot be compiled: {}", done.stderr));
        return None;
    }
    Some(program)
}

/// The cache of PoCL's compiler.
fn cache() -> PathBuf {
    fixtures::cached("pocl")
}

fn sum<'a>(calls: impl Iterator<Item = &'a Call>, bytes: impl Fn(&Call) -> Option<u64>) -> u64 {
    calls.filter_map(bytes).sum()
}

#[bpf_test]
fn every_call_byte_launch_and_error_is_as_the_program_counts_it() {
    let folder = fixtures::folder();
    let Some(program) = compiled(folder.path(), "opencl.c", &["-lOpenCL"]) else { return };
    let trace = folder.path().join("trace.jsonl");
    let options = ["-e", "cl*", "--nested", "--rows", "0", "--lossless"];
    let run = Run::new(&program).options(&options).args(&[ROUNDS, THREADS]);
    let outcome = run.env("POCL_CACHE_DIR", cache()).outcome_in(&trace);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let printed = outcome.printed();
    let counts = assert_ledger(&outcome, &printed);
    assert_eq!(counts, counts_of(&printed["calls"]));
    assert!(counts.values().sum::<u64>() > 100_000);
    // a reader of the trace comes to the same result
    let report = finish(&mut gpuprobe(&["report", "--nested", "--rows", "0", &shown(&trace)]));
    let table = |text: &str| {
        let rows = text.lines().filter(|l| l.starts_with("cl") || l.contains("vector_add"));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(table(&report.stdout), table(&outcome.finished.stderr));
}

/// Functions that are called all the time are not probed, and by `perf` only the essential ones are.
#[bpf_test(tiers)]
fn what_is_probed_without_options_is_counted_on_each_tier(tier: &str) {
    let folder = fixtures::folder();
    let Some(program) = compiled(folder.path(), "opencl.c", &["-lOpenCL"]) else { return };
    let options = ["--attach", tier, "--nested", "--rows", "0"];
    let outcome =
        Run::new(&program).options(&options).args(&["30", "2"]).env("POCL_CACHE_DIR", cache()).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let printed = outcome.printed();
    let counts = assert_ledger(&outcome, &printed);
    let mut expected = counts_of(&printed["calls"]);
    assert!(counts.len() >= 10, "{counts:?}");
    if tier == "perf" {
        expected.retain(|name, _| counts.contains_key(name));
    }
    expected.remove("clSetKernelArg");
    assert_eq!(counts, expected);
}

/// Compares what the calls did. Returns how many of each function there were.
fn assert_ledger(outcome: &Outcome, printed: &Value) -> Counts {
    outcome.trace.assert_whole();
    let calls = || outcome.trace.calls.iter();
    let mut errors = Counts::new();
    for call in calls().filter(|call| call.failed()) {
        *errors.entry(call.error.as_deref().unwrap_or("?").to_owned()).or_default() += 1;
    }
    assert_eq!(errors, counts_of(&printed["errors"]));
    let is = |wanted: Class| calls().filter(move |call| call.class == wanted);
    let made = is(Class::Alloc).filter(|call| call.effect.allocation().is_some());
    assert_eq!(made.count() as u64, number(&printed["allocations"]));
    assert_eq!(sum(is(Class::Alloc), |c| c.effect.size()), number(&printed["allocated"]));
    let freed = || calls().filter(|call| call.effect.freed().is_some());
    assert_eq!(freed().count() as u64, number(&printed["frees"]));
    assert_eq!(sum(freed(), |c| c.effect.freed().map(|freed| freed.bytes)), number(&printed["freed"]));
    assert_eq!(outcome.trace.live(pid_of(printed)).1, number(&printed["live"]), "live at exit");
    for kind in ["H2D", "D2H", "D2D"] {
        let goes = |c: &&Call| c.effect.transfer().is_some_and(|t| t.direction.as_str() == kind);
        assert_eq!(sum(calls().filter(goes), |c| c.effect.size()), number(&printed[kind]), "{kind}");
    }
    assert_eq!(sum(is(Class::Memset), |c| c.effect.size()), number(&printed["fill"]));
    let waits = |c: &&Call| c.effect.transfer().is_some_and(|transfer| !transfer.is_async) && !c.failed();
    assert_eq!(calls().filter(waits).count() as u64, number(&printed["waiting"]));
    let (mut launches, mut items) = (Counts::new(), 0);
    for call in is(Class::Launch).filter(|call| !call.failed()) {
        let launch = call.effect.launch().unwrap();
        *launches.entry(launch.kernel.as_deref().unwrap_or("?").to_owned()).or_default() += 1;
        let volume = |sides: Option<[u32; 3]>| sides.unwrap().iter().map(|n| u64::from(*n)).product::<u64>();
        items += volume(launch.grid) * volume(launch.block);
    }
    assert_eq!(launches, counts_of(&printed["launches"]));
    assert_eq!(items, number(&printed["work_items"]));
    outcome.trace.counts(pid_of(printed), Api::OpenCl)
}

#[bpf_test(alone)]
fn a_daemon_counts_opencl_and_its_live_memory() {
    let folder = fixtures::folder();
    let Some(program) = compiled(folder.path(), "opencl.c", &["-lOpenCL"]) else { return };
    let daemon = Daemon::rescanning(&[]);
    let mut command = Command::new(&program);
    let mut program = Talk::start(command.args(["60", "4", "pause"]).env("POCL_CACHE_DIR", cache()));
    for _ in 0..2 {
        let ledger = program.json();
        let pid = pid_of(&ledger);
        daemon.until_equal(PATIENCE, |metrics, found| {
            let live: u64 = metrics.by("gpuprobe_memory_live_bytes", pid, "kind").values().sum();
            found.compare("live", &live, &number(&ledger["live"]));
            let of = |name| metrics.of(name, pid).unwrap_or(0);
            let allocated = of("gpuprobe_memory_allocated_bytes_total");
            found.compare("allocated", &allocated, &number(&ledger["allocated"]));
            found.compare("unknown frees", &of("gpuprobe_memory_unknown_frees_total"), &0);
            let kernels = metrics.by("gpuprobe_kernel_launches_total", pid, "kernel");
            found.compare("kernels", &kernels, &counts_of(&ledger["launches"]));
            let copied = metrics.by("gpuprobe_copy_bytes_total", pid, "kind");
            for kind in ["H2D", "D2H", "D2D"] {
                found.compare(kind, &copied.get(kind).copied(), &Some(number(&ledger[kind])));
            }
            let apis = metrics.by("gpuprobe_calls_total", pid, "api");
            found.compare("apis", &apis.into_keys().collect(), &vec!["opencl".to_owned()]);
        });
        program.go_on();
    }
    assert_eq!(program.end(), 0);
}

/// The stand-in CUDA driver and PoCL in one process.
#[bpf_test]
fn cuda_and_opencl_in_one_program_are_separate() {
    let folder = fixtures::folder();
    let Some(program) = compiled(folder.path(), "cuda_and_opencl.c", &["-lOpenCL", "-ldl"]) else { return };
    let cuda = fixtures::standins(Cuda::Cuda12).library(Library::Driver);
    let run = Run::new(&program).options(&["--nested", "--rows", "0"]).args(&[&shown(&cuda), "200"]);
    let outcome = run.env("POCL_CACHE_DIR", cache()).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let printed = outcome.printed();
    outcome.trace.assert_whole();
    for (api, field) in [(Api::Driver, "cuda"), (Api::OpenCl, "opencl")] {
        assert_eq!(outcome.trace.counts(pid_of(&printed), api), counts_of(&printed[field]), "{api}");
        let of = || outcome.trace.calls.iter().filter(|call| call.api == api);
        let ledger = |name: &str| number(&printed[format!("{field}_{name}")]);
        assert_eq!(sum(of().filter(|c| c.class == Class::Alloc), |c| c.effect.size()), ledger("allocated"));
        assert_eq!(sum(of(), |c| c.effect.freed().map(|freed| freed.bytes)), ledger("freed"));
        assert_eq!(sum(of().filter(|c| c.class == Class::Memcpy), |c| c.effect.size()), ledger("copied"));
    }
}

/// A library of a vendor that exports the functions itself, called through a loader and directly.
#[bpf_test]
fn a_vendors_library_counts_once_behind_a_loader_and_also_alone() {
    const VENDOR: &str = "
        #include <stdlib.h>
        void *clCreateBuffer(void *c, long f, size_t n, void *h, int *e) { if (e) *e = 0; return malloc(64); }
        int clReleaseMemObject(void *b) { free(b); return 0; }
        int clGetPlatformIDs(unsigned n, void **p, unsigned *f) { return 0; }";
    const LOADER: &str = "
        #include <dlfcn.h>
        #include <stdlib.h>
        static void *of(const char *name) { return dlsym(dlopen(\"libpocl.so.9\", RTLD_NOW), name); }
        static void *(*create)(void *, long, size_t, void *, int *);
        static int (*release)(void *), (*ids)(unsigned, void **, unsigned *);
        __attribute__((constructor)) static void load(void)
        { create = of(\"clCreateBuffer\"); release = of(\"clReleaseMemObject\"); ids = of(\"clGetPlatformIDs\"); }
        void *clCreateBuffer(void *c, long f, size_t n, void *h, int *e) { return create(c, f, n, h, e); }
        int clReleaseMemObject(void *b) { volatile int r = release(b); return r; }
        int clGetPlatformIDs(unsigned n, void **p, unsigned *f) { return ids(n, p, f); }";
    const PROGRAM: &str = "
        #include <dlfcn.h>
        #include <stddef.h>
        int main(int argc, char **argv)
        {
            void *library = dlopen(argv[1], RTLD_NOW);
            void *(*create)(void *, long, size_t, void *, int *) = dlsym(library, \"clCreateBuffer\");
            int (*release)(void *) = dlsym(library, \"clReleaseMemObject\");
            int error;
            for (int i = 0; i < 50; i++) {
                void *buffer = create(0, 1, 1000, 0, &error);
                if (i) release(buffer);
            }
            return 0;
        }";
    let folder = fixtures::folder();
    for (name, text) in [("libpocl.so.9", VENDOR), ("libOpenCL.so.1", LOADER), ("program", PROGRAM)] {
        fs::write(folder.path().join("s.c"), text).unwrap();
        let shared: &[&str] = if name == "program" { &[] } else { &["-shared", "-fPIC"] };
        let options = ["-O2", "s.c", "-ldl", "-Wl,-rpath,$ORIGIN", "-o", name];
        compile::run(Command::new("cc").args(options).args(shared).current_dir(folder.path()));
    }
    let expected = Counts::from([("clCreateBuffer".to_owned(), 50), ("clReleaseMemObject".to_owned(), 49)]);
    for library in ["libOpenCL.so.1", "libpocl.so.9"] {
        let path = shown(folder.path().join(library));
        let outcome = Run::new(folder.path().join("program")).options(&["--nested"]).args(&[&path]).outcome();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        outcome.trace.assert_whole();
        let pid = outcome.trace.calls[0].tgid.0;
        assert_eq!(outcome.trace.counts(pid, Api::OpenCl), expected, "{library}");
        assert_eq!(outcome.trace.live(pid), (1, 1000), "{library}");
    }
}

/// Debian's pyopencl. Allocations and launches have the lines that made them.
#[bpf_test]
fn pyopencl_has_its_python_lines() {
    let python = "/usr/bin/python3";
    if finish(Command::new(python).args(["-c", "import pyopencl"])).status != 0 {
        needs::missing("bpf", "python3-pyopencl is not installed");
        return;
    }
    let script = compile::source("opencl.py");
    let options = ["--stack", "--nested"];
    let run = Run::new(Path::new(python)).options(&options).args(&[&shown(&script)]);
    let outcome = run.env("POCL_CACHE_DIR", cache()).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let printed = outcome.printed();
    let pid = pid_of(&printed);
    for (name, field) in [("clCreateBuffer", "buffers"), ("clEnqueueNDRangeKernel", "launches")] {
        let mut lines = Counts::new();
        for call in outcome.trace.of(pid).filter(|call| call.name == name && !call.failed()) {
            let stack = call.stack.as_deref().unwrap_or_default();
            let own =
                stack.iter().find_map(|frame| frame.rsplit_once("opencl.py:")).map_or("?", |(_, line)| line);
            *lines.entry(own.trim_end_matches(')').to_owned()).or_default() += 1;
        }
        assert_eq!(lines, counts_of(&printed[field]), "{name}");
    }
}

/// A benchmark of the distribution: it launches one kernel twenty thousand times and says how long a launch takes.
#[bpf_test]
fn clpeak_has_a_plausible_summary() {
    const LAUNCHES: u64 = 20_002;
    if finish(Command::new("clpeak").arg("--help")).stdout.is_empty() {
        needs::missing("bpf", "clpeak is not installed");
        return;
    }
    let run = Run::new("clpeak").options(&["--nested", "--rows", "0"]).args(&["--kernel-latency"]);
    let outcome = run.env("POCL_CACHE_DIR", cache()).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let pid = outcome.trace.calls[0].tgid.0;
    let counts = outcome.trace.counts(pid, Api::OpenCl);
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    assert_eq!((of("clEnqueueNDRangeKernel"), of("clFinish")), (LAUNCHES, LAUNCHES - 1), "{counts:?}");
    let work = outcome.trace.work();
    let kernels: Counts = work.kernels.iter().map(|k| (k.kernel.clone(), k.totals.launches)).collect();
    assert_eq!(kernels, [("global_bandwidth_v1_local_offset".to_owned(), LAUNCHES)].into());
    assert_eq!(outcome.trace.live(pid), (0, 0));
    assert!(outcome.trace.calls.iter().all(|call| !call.failed()));
    // its time is that from the call to the start of the kernel, which ends before it has waited
    let said = outcome.finished.stdout.split("Kernel launch latency :").nth(1);
    let said = said.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let said = said.unwrap_or_else(|| panic!("{}", outcome.finished.stdout));
    let mean = |name: &str| {
        let calls = outcome.trace.calls.iter().filter(|call| call.name == name);
        calls.filter_map(Call::duration_ns).sum::<u64>() as f64 / LAUNCHES as f64 / 1000.0
    };
    let (launch, wait) = (mean("clEnqueueNDRangeKernel"), mean("clFinish"));
    println!("clpeak says {said} us; a launch took {launch:.1} us and a wait {wait:.1} us");
    assert!(launch / 4.0 < said && said < 2.0 * (launch + wait), "see above");
}
