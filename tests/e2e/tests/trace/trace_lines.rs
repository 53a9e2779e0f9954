//! `gpuprobe trace`: which calls are printed, and how.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use gpuprobe_e2e::arguments::assert_equal;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, pid_of};
use gpuprobe_e2e::tracing::{Private, waiting};
use gpuprobe_e2e::{Finished, Recording, Tracing, bpf_test, fixtures, ledger, linux};
use gpuprobe_event::{Api, Outcome};
use gpuprobe_standin::{Cuda, Library};

/// The functions of the classic tracer.
const CLASSIC: [&str; 11] = [
    "cudaMalloc",
    "cudaFree",
    "cudaMemcpy",
    "cudaLaunchKernel",
    "cudaStreamCreate",
    "cudaStreamSynchronize",
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaEventCreate",
    "cudaEventRecord",
    "cudaEventSynchronize",
];

/// Traces a workload that prints its calls, and compares each. Returns the names of the functions.
fn assert_decoded(workload: &str, cuda: Cuda, options: &[&str]) -> BTreeSet<String> {
    let (traced, program) = Private::new(workload, cuda).traced(&[&["--json"], options].concat(), &[]);
    let trace = traced.recording();
    trace.assert_whole();
    let printed = program.json();
    let compared = assert_equal(&trace, &printed, cuda.major());
    assert_eq!(trace.calls.len(), compared, "calls inside others are left out");
    printed.iter().map(|line| line["function"].as_str().unwrap().to_owned()).collect()
}

#[bpf_test]
fn arguments_and_results_are_those_that_programs_printed() {
    let runtime = assert_decoded("args", Cuda::Cuda12, &["-e", "*"]);
    assert!(CLASSIC.iter().all(|name| runtime.contains(*name)), "{runtime:?}");
    assert!(runtime.len() >= CLASSIC.len() + 30, "{}", runtime.len());
    let driver = assert_decoded("driver_args", Cuda::Cuda12, &["-e", "*"]);
    assert!(driver.len() >= 30 && driver.iter().all(|name| !name.starts_with("cuda")), "{driver:?}");
    assert_decoded("args", Cuda::Cuda13, &["-e", "*"]);
}

#[bpf_test]
fn the_other_tiers_decode_the_same() {
    assert_decoded("driver_args", Cuda::Cuda12, &["-e", "*", "--attach", "multi"]);
    // every function costs a tenth of a second there
    let few = ["-e", "cuMemcpy2D_v2", "-e", "cuLaunchKernel", "-e", "cuMemPrefetchAsync_v2"];
    let private = Private::new("driver_args", Cuda::Cuda12);
    let (traced, program) = private.traced(&[&["--json", "--attach", "perf"], &few[..]].concat(), &[]);
    let named = |name: &str| few.contains(&name);
    let printed: Vec<_> =
        program.json().into_iter().filter(|line| named(line["function"].as_str().unwrap())).collect();
    let trace = traced.recording();
    trace.assert_whole();
    assert_eq!(assert_equal(&trace, &printed, 12), 3);
}

/// The lines of failures, from the name of the function to the result.
fn failures(traced: &Finished) -> Vec<String> {
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    let result = |line: &str| {
        let name = line.split_whitespace().nth(2).unwrap().split('(').next().unwrap();
        let result = line.rsplit_once(") = ").unwrap().1.rsplit_once(" <").unwrap().0;
        format!("{name} {result}")
    };
    let mut lines: Vec<_> = traced.stdout.lines().map(result).collect();
    lines.sort();
    lines
}

#[bpf_test]
fn failures_have_the_name_of_the_error_and_its_meaning() {
    let codes = |names: [&str; 5]| {
        let rule = |(name, code)| format!("{name}:{code}");
        names.into_iter().zip(["2", "100", "700", "719", "12345"]).map(rule).collect::<Vec<_>>().join(",")
    };
    let private = Private::new("driver_args", Cuda::Cuda12);
    let names = ["cuInit", "cuCtxSynchronize", "cuMemcpyHtoD_v2", "cuMemsetD32Async", "cuGraphLaunch"];
    let fail = format!("STANDIN_FAIL={}", codes(names));
    let only = ["-t", "--errors-only", "-e", "cuInit", "-e", "cuCtxSynchronize", "-e", "cuMem[cs]*[D2c]*"];
    let (traced, _) = private.traced(&[&only[..], &["-e", "cuGraphLaunch"]].concat(), &[&fail]);
    let expected = [
        "cuCtxSynchronize CUDA_ERROR_NO_DEVICE (100: no GPU visible: driver loaded? CUDA_VISIBLE_DEVICES?)",
        "cuGraphLaunch unknown CUresult 12345",
        "cuInit CUDA_ERROR_OUT_OF_MEMORY (2: out of memory)",
        "cuMemcpyHtoD_v2 CUDA_ERROR_ILLEGAL_ADDRESS (700: a kernel accessed memory it does not own; the context is lost)",
        "cuMemsetD32Async CUDA_ERROR_LAUNCH_FAILED (719: a kernel failed, often by accessing bad memory; the context is lost)",
    ];
    assert_eq!(failures(&traced), expected);
    let private = Private::new("args", Cuda::Cuda12);
    let names = ["cudaMalloc", "cudaSetDevice", "cudaMemcpy", "cudaDeviceSynchronize", "cudaEventRecord"];
    let fail = format!("STANDIN_FAIL={}", codes(names));
    let wanted: Vec<_> = names.iter().flat_map(|name| ["-e", *name]).collect();
    let (traced, _) = private.traced(&[&["-t", "--errors-only"], &wanted[..]].concat(), &[&fail]);
    let expected = [
        "cudaDeviceSynchronize cudaErrorLaunchFailure (719: a kernel failed, often by accessing bad memory; the context is lost)",
        "cudaEventRecord unknown cudaError_t 12345",
        "cudaMalloc cudaErrorMemoryAllocation (2: out of memory)",
        "cudaMemcpy cudaErrorIllegalAddress (700: a kernel accessed memory it does not own; the context is lost)",
        "cudaSetDevice cudaErrorNoDevice (100: no GPU visible: driver loaded? CUDA_VISIBLE_DEVICES?)",
    ];
    assert_eq!(failures(&traced), expected);
}

#[bpf_test]
fn arguments_at_unmapped_addresses_are_unknown_and_never_zero() {
    let private = Private::new("unmapped", Cuda::Cuda12);
    let (traced, program) = private.traced(&["--json"], &[]);
    let trace = traced.recording();
    trace.assert_whole();
    assert_eq!(assert_equal(&trace, &program.json(), 12), 6);
    for call in &trace.calls {
        let shape = call.effect.launch().map(|launch| (launch.grid, launch.block));
        assert_eq!((call.effect.size(), shape.unwrap_or_default()), (None, (None, None)), "{call:?}");
        assert_eq!(call.effect.allocation(), None, "{call:?}");
        assert_eq!(call.stream.filter(|_| call.name != "cuMemcpy2D_v2"), None, "{call:?}");
    }
    let (traced, _) = private.traced(&["-t", "-e", "*ExC", "-e", "cuModuleGetFunction"], &[]);
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    let launch = " grid=? block=? stream=?) = cudaErrorInvalidValue";
    assert!(traced.stdout.contains(launch), "{}", traced.stdout);
    assert!(traced.stdout.contains("hmod=0x6000, name=?) = CUDA_ERROR_NOT_FOUND"), "{}", traced.stdout);
}

#[bpf_test(tiers(session, multi))]
fn a_process_is_unharmed_by_attach_and_detach(tier: &str) {
    let private = Private::new("ledger", Cuda::Cuda12);
    let args = ["--wait", "--pauses", "1", "--threads", "4", "--calls", "8000"];
    let (mut program, pid) = waiting(&private.program, &[], &args);
    // by their paths too, because the runtime loads libcuda at its first call
    let paths = private.paths();
    let mut options: Vec<&str> = paths.iter().map(String::as_str).collect();
    options.extend(["-d", &pid, "--json", "--nested", "-e", "*", "--attach", tier]);
    let trace = Tracing::start(&options);
    let links = linux::links_of(trace.pid());
    assert!(!links.is_empty());
    program.go_on();
    let snapshot = program.json();
    let traced = trace.stop();
    let trace = traced.recording();
    trace.assert_whole();
    ledger::assert_equal(&trace, &snapshot);
    if let Some(all) = linux::links() {
        assert_eq!(all.intersection(&links).count(), 0, "probes that are left");
    }
    let (status, last) = program.finish();
    assert_eq!((status, &last["total_calls"]), (0, &8000.into()), "{last}");
}

#[bpf_test]
fn by_default_every_process_is_traced_from_when_it_maps_a_library() {
    let (before, after) = (Private::new("paced", Cuda::Cuda12), Private::new("paced", Cuda::Cuda12));
    let (mut first, _) = waiting(&before.program, &[], &["1500"]);
    let trace = Tracing::start(&["--json", "-v"]);
    let (mut second, _) = waiting(&after.program, &[], &["2500"]);
    let reported = format!("{}: ", shown(after.folder.path().join("libcuda.so.1")));
    until(PATIENCE, "the second is found", || trace.messages().contains(&reported).then_some(()));
    let programs = [first.finish(), second.finish()];
    let trace = trace.stop().recording();
    for (status, printed) in &programs {
        assert_eq!(*status, 0);
        assert_eq!(trace.counts(pid_of(printed), Api::Driver), counts_of(&printed["calls"]));
    }
    // the second had mapped its libraries before they were found
    let late = trace.end.unwrap().lost.get("late_attach").copied();
    assert!(late.is_some_and(|n| n >= 1), "{late:?}");
}

#[bpf_test]
fn children_are_traced_on_request() {
    let private = Private::new("forker", Cuda::Cuda12);
    let script = format!("echo '{{\"ready\":true,\"pid\":'$$'}}'; read line; {} 3", shown(&private.program));
    let paths = private.paths();
    for follow in [true, false] {
        let (mut shell, pid) = waiting("sh".as_ref(), &[], &["-c", &script]);
        let mut options: Vec<&str> = paths.iter().map(String::as_str).collect();
        options.extend(["-d", &pid, "--json", "-e", "cuda*"]);
        options.extend(follow.then_some("--children"));
        let trace = Tracing::start(&options);
        shell.go_on();
        assert_eq!(shell.end(), 0);
        // without a signal: all traced processes have exited
        let trace = trace.end().recording();
        trace.assert_whole();
        let mut made = Counts::new();
        for line in shell.printed() {
            let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
            for (name, n) in counts_of(&printed["calls"]) {
                *made.entry(format!("{} {name}", printed["pid"])).or_default() += n;
            }
        }
        assert_eq!(made.values().sum::<u64>(), 71, "{made:?}");
        let mut seen = Counts::new();
        for call in &trace.calls {
            *seen.entry(format!("{} {}", call.tgid, call.name)).or_default() += 1;
        }
        assert_eq!(seen, if follow { made } else { Counts::new() });
    }
}

#[bpf_test]
fn nvml_and_nccl_calls_are_traced() {
    let built = fixtures::standins(Cuda::Cuda12);
    let (nvml, nccl) = (shown(built.library(Library::Nvml)), shown(built.library(Library::Nccl)));
    let script = format!(
        "import ctypes, sys\nnvml, nccl = ctypes.CDLL({nvml:?}), ctypes.CDLL({nccl:?})\n\
         print('{{\"ready\":true,\"pid\":' + str(__import__('os').getpid()) + '}}', flush=True)\ninput()\n\
         n = ctypes.c_uint()\nnvml.nvmlInit_v2()\nnvml.nvmlDeviceGetCount_v2(ctypes.byref(n))\n\
         nccl.ncclGetVersion(ctypes.byref(n))\nnvml.nvmlShutdown()\nprint('{{}}')"
    );
    let (mut python, pid) = waiting("python3".as_ref(), &[], &["-c", &script]);
    let trace = Tracing::start(&["-d", &pid, "-t", "-e", "nvml*", "-e", "nccl*"]);
    let (status, _) = python.finish();
    assert_eq!(status, 0);
    let traced = trace.end();
    traced.assert_lines(4);
    let begins = |line: &str| line.split_whitespace().nth(2).unwrap().split('(').next().unwrap().to_owned();
    let names: Vec<_> = traced.stdout.lines().map(begins).collect();
    assert_eq!(names, ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "ncclGetVersion", "nvmlShutdown"]);
    assert!(traced.stdout.contains("nvmlInit_v2() = NVML_SUCCESS <"), "{}", traced.stdout);
}

#[bpf_test(tiers(session, multi))]
fn entry_records_have_no_results_and_no_return_probes(tier: &str) {
    let private = Private::new("driver_only", Cuda::Cuda12);
    let (traced, program) = private.traced(&["-r", "--json", "-e", "*", "--attach", tier], &[]);
    let trace = traced.recording();
    assert!(trace.calls.iter().all(|call| call.outcome == Outcome::Begun), "{:?}", trace.calls);
    let printed = &program.json()[0];
    assert_eq!(trace.counts(pid_of(printed), Api::Driver), counts_of(&printed["calls"]));
    assert_eq!(trace.losses, []);
}

#[bpf_test]
fn verbose_reports_attached_and_skipped_files() {
    let private = Private::new("static_runtime", Cuda::Cuda12);
    private.strip();
    let program = shown(&private.program);
    let finished = finish(&mut gpuprobe(&["trace", "-p", &program]));
    let why = "the CUDA runtime is linked in and stripped of its symbols";
    assert_eq!(finished.status, 1, "{}", finished.stderr);
    assert!(finished.stderr.contains(why) && finished.stderr.lines().count() == 1, "{}", finished.stderr);

    let with_symbols = Private::new("static_runtime", Cuda::Cuda12);
    let driver = shown(with_symbols.folder.path().join("libcuda.so.1"));
    let program = shown(&with_symbols.program);
    let trace = Tracing::start(&["-v", "-t", "-p", &program, "-p", &driver, "-e", "*"]);
    let ran = finish(&mut Command::new(&with_symbols.program));
    let traced = trace.stop();
    assert!(traced.stderr.contains("gpuprobe: attaching by "), "{}", traced.stderr);
    for path in [&program, &driver] {
        assert!(traced.stderr.contains(&format!("gpuprobe: {path}: ")), "{}", traced.stderr);
    }
    let made: u64 = counts_of(&ran.json()[0]["calls"]).values().sum();
    traced.assert_lines(usize::try_from(made).unwrap());
}

#[bpf_test]
fn the_trace_can_be_read_again() {
    let folder = fixtures::folder();
    let (traced, _) = Private::new("forker", Cuda::Cuda12).traced(&["--json", "--nested"], &[]);
    fs::write(folder.path().join("t.jsonl"), &traced.stdout).unwrap();
    let again = Recording::read(&folder.path().join("t.jsonl"));
    again.assert_whole();
    assert_eq!(again.calls.len(), 2 * 71, "71 of the runtime, each with one of the driver inside");
}
