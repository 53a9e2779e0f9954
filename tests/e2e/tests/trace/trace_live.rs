//! `gpuprobe trace` while programs run: hanging calls, stacks, when it ends, and readers that are slow or closed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpuprobe_e2e::process::{PATIENCE, Talk, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::number;
use gpuprobe_e2e::tracing::{Private, lines_and_lost, waiting};
use gpuprobe_e2e::{Tracing, bpf_test, fixtures};
use gpuprobe_event::{Call, Outcome};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Both waits take three seconds in the CUDA driver.
const HANGS: &str = "STANDIN_DELAY=cuStreamSynchronize:3000000,cuCtxSynchronize:3000000";

/// The rows of the last table of pending calls: name, seconds, and the rest.
fn last_pending(text: &str) -> Vec<(String, f64, String)> {
    let rows = text.lines().filter(|line| line.contains("  pending "));
    let parse = |line: &str| {
        let (name, rest) = line.split_once("  pending ").unwrap();
        let (age, rest) = rest.split_once("  ").unwrap();
        let (number, unit) = age.split_once(' ').unwrap();
        let factor = if unit == "s" { 1.0 } else { 0.001 };
        (name.trim_end().to_owned(), number.parse::<f64>().unwrap() * factor, rest.trim_start().to_owned())
    };
    rows.map(parse).collect()
}

fn assert_pending(rows: &[(String, f64, String)], known: &Value, nested: bool) {
    let pid = number(&known["pid"]);
    let mut expected = vec![
        ("cudaStreamSynchronize", "stream_tid", "(stream=0x5000)"),
        ("  cuStreamSynchronize", "stream_tid", "(hStream=0x5000)"),
        ("cudaDeviceSynchronize", "device_tid", "()"),
        ("  cuCtxSynchronize", "device_tid", "()"),
    ];
    expected.retain(|(name, ..)| nested || !name.starts_with(' '));
    let mut expected: Vec<_> = expected
        .iter()
        .map(|(name, tid, args)| ((*name).to_owned(), format!("waits {pid}/{} {args}", number(&known[*tid]))))
        .collect();
    let mut found: Vec<_> = rows.iter().map(|(name, _, rest)| (name.clone(), rest.clone())).collect();
    // either of the two may have begun first; an inner call is below its outer call
    if nested {
        for pair in found.chunks(2) {
            assert!(!pair[0].0.starts_with(' ') && pair[1].0.starts_with("  "), "{found:?}");
        }
    }
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[bpf_test(tiers(session, multi))]
fn hanging_calls_are_shown_while_they_hang_and_at_the_end(tier: &str) {
    let nested = tier == "multi";
    let private = Private::new("waits", Cuda::Cuda12);
    let mut options = vec!["-t", "--pending", "0.5", "--attach", tier];
    options.extend(nested.then_some("--nested"));
    let (mut program, trace) = private.attached(&options, &[HANGS]);
    program.go_on();
    let known = program.json();
    let rows = if nested { 4 } else { 2 };
    let first = trace.until("the calls are shown", |text| {
        let found = last_pending(text);
        let whole: Vec<_> = found.chunks(rows).filter(|c| c.len() == rows && c[0].1 >= 0.5).collect();
        whole.last().map(|rows| rows.to_vec())
    });
    assert_pending(&first, &known, nested);
    let traced = trace.stop();
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    let found = last_pending(&traced.stdout);
    let last = &found[found.len() - rows..];
    assert_pending(last, &known, nested);
    assert!(last.iter().all(|(_, age, _)| *age >= first[0].1 && *age < 10.0), "{last:?}");
    assert_eq!(program.json()["calls"]["cudaDeviceSynchronize"], 1, "it goes on");
    assert_eq!(program.end(), 0);
}

#[bpf_test(tiers)]
fn a_call_that_hangs_has_its_enter_and_no_exit(tier: &str) {
    let private = Private::new("waits", Cuda::Cuda12);
    let wanted = ["--phases", "--attach", tier, "-e", "cudaMalloc", "-e", "cuda*Synchronize"];
    // on perf each function costs a tenth of a second
    let wanted = if tier == "perf" {
        [&wanted[..5], &["-e", "cudaDeviceSynchronize"]].concat()
    } else {
        wanted.to_vec()
    };
    let (mut program, trace) = private.attached(&wanted, &[HANGS]);
    program.go_on();
    let known = program.json();
    trace.until("the call has begun", |text| text.contains("cudaDeviceSynchronize [ENTER]").then_some(()));
    let traced = trace.stop();
    let pid = known["pid"].to_string();
    let mut lines = traced.stdout.lines();
    assert_eq!(lines.next(), Some("TIME     PROCESS          PID     EVENT                 TYPE    DETAILS"));
    let without_time = |line: &str| line.split_once(' ').unwrap().1.to_owned();
    let begin = |event: &str| format!("{:<17}{pid:<8}{event}", "waits");
    assert_eq!(without_time(lines.next().unwrap()), begin("cudaMalloc          [ENTER]  size=4096 bytes"));
    assert_eq!(without_time(lines.next().unwrap()), begin("cudaMalloc           [EXIT]  returned=Success"));
    let rest: String = lines.collect::<Vec<_>>().join("\n");
    assert!(rest.contains("cudaDeviceSynchronize [ENTER]") && !rest.contains("[EXIT]"), "{rest}");
    assert!(rest.contains("  pending "), "{rest}");
    program.json();
    assert_eq!(program.end(), 0);
}

fn frames<'a>(calls: &'a [Call], name: &str) -> &'a [String] {
    let call = calls.iter().find(|call| call.name == name && call.outcome != Outcome::Begun);
    call.unwrap_or_else(|| panic!("no {name}")).stack.as_deref().unwrap()
}

#[bpf_test(tiers)]
fn stacks_name_the_functions_and_lines_that_called(tier: &str) {
    let few = ["-e", "cudaMalloc", "-e", "cuMemAlloc_v2", "-e", "cudaFree"];
    let phases = tier == "multi";
    let private = Private::new("waits", Cuda::Cuda12);
    let mut options = [&["--json", "--stack", "--nested", "--attach", tier], &few[..]].concat();
    options.extend(phases.then_some("--phases"));
    // it exits some milliseconds after its calls: its stacks are symbolized nevertheless
    let (mut program, trace) = private.attached(&options, &["STANDIN_DELAY=cuMemAlloc_v2:5000"]);
    program.go_on();
    let known = program.json();
    program.json();
    assert_eq!(program.end(), 0);
    let trace = trace.end().recording();
    assert_eq!(trace.losses, []);
    let at = |function: &str, line: &Value| {
        let source = fixtures::standins(Cuda::Cuda12).dir.join("src/workloads/waits.c");
        format!("{function} ({}:{line})", shown(source))
    };
    // the source folder is that of the compilation, which may have been moved
    let tail = |frame: &String| match frame.split_once(" (/") {
        Some((function, location)) => format!("{function} {}", location.rsplit('/').next().unwrap()),
        None => frame.clone(),
    };
    let expected = [
        at("allocate_block", &known["allocate"]),
        at("training_step", &known["step"]),
        at("main", &known["main"]),
    ];
    let expected: Vec<_> = expected.iter().map(tail).collect();
    let outer: Vec<_> = frames(&trace.calls, "cudaMalloc").iter().take(3).map(tail).collect();
    assert_eq!(outer, expected, "{tier}");
    let inner: Vec<_> = frames(&trace.calls, "cuMemAlloc_v2").iter().map(tail).collect();
    assert!(inner[0].starts_with("libcudart.so.12+0x"), "{inner:?}");
    assert_eq!(inner[1..4], expected, "through the return probe of the call around it, {tier}");
}

#[bpf_test]
fn it_ends_after_the_given_number_of_calls_or_seconds() {
    let private = Private::new("paced", Cuda::Cuda12);
    let start = |calls: &str| waiting(&private.program, &[], &[calls, "1000"]);
    for (options, lines) in [(&["-t"][..], 25), (&["--phases"], 51), (&["-r"], 26)] {
        let (mut program, pid) = start("100");
        let trace = Tracing::start(&[&["-d", &pid, "--count", "25"], options].concat());
        program.go_on();
        let traced = trace.end();
        assert_eq!(
            (traced.status, traced.stdout.lines().count()),
            (0, lines),
            "{options:?}: {}",
            traced.stderr
        );
        assert_eq!(number(&program.json()["calls"]["cuMemcpyHtoD_v2"]), 100);
        if options == ["-t"] {
            for (i, line) in traced.stdout.lines().enumerate() {
                let call = format!(
                    "cuMemcpyHtoD_v2(dstDevice=0x7000, srcHost=0x0, ByteCount={}) = CUDA_SUCCESS <",
                    i + 1
                );
                assert!(line.starts_with(&format!("paced {pid}/{pid} {call}")), "{line}");
            }
        }
    }
    let (_program, pid) = start("100000");
    let begun = Instant::now();
    let traced = finish(&mut gpuprobe(&["trace", "-d", &pid, "--duration", "1.5"]));
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    assert!(begun.elapsed() > Duration::from_millis(1500) && begun.elapsed() < Duration::from_secs(15));
}

#[bpf_test]
fn only_long_calls_are_printed_with_min_duration() {
    let private = Private::new("waits", Cuda::Cuda12);
    let slow = "STANDIN_DELAY=cuMemAlloc_v2:60000";
    let (mut program, trace) = private.attached(&["-t", "--min-duration", "50ms"], &[slow]);
    program.go_on();
    program.json();
    program.json();
    assert_eq!(program.end(), 0);
    let traced = trace.end();
    traced.assert_lines(1);
    assert!(traced.stdout.contains(" cudaMalloc(devPtr=0x"), "{}", traced.stdout);
    assert!(traced.stdout.contains(", size=4.0 KiB) = cudaSuccess 0x7"), "{}", traced.stdout);
}

#[bpf_test]
fn a_closed_pipe_ends_it_cleanly() {
    let private = Private::new("paced", Cuda::Cuda12);
    let (mut program, pid) = waiting(&private.program, &[], &["20000", "5000"]);
    let script = format!(
        "{} trace -d {pid} -t | {{ head -3; date +%s.%N; }}; echo ${{PIPESTATUS[0]}}; date +%s.%N",
        shown(fixtures::gpuprobe())
    );
    let mut shell = Talk::start(Command::new("bash").args(["-c", &script]));
    until(PATIENCE, "it traces", || shell.stderr().contains("gpuprobe: tracing").then_some(()));
    program.go_on();
    for n in 1..=3 {
        assert!(shell.line().contains(&format!("ByteCount={n}) = ")));
    }
    let enough: f64 = shell.line().parse().unwrap();
    assert_eq!(shell.line(), "0", "the status of the trace");
    let ended: f64 = shell.line().parse().unwrap();
    // the program runs for four more seconds: the trace did not wait for that
    assert!(ended - enough < 3.0, "{}", ended - enough);
    let said = shell.stderr();
    assert!(
        !said.contains("panicked") && !said.contains("output_full") && said.lines().count() == 2,
        "{said}"
    );
    assert_eq!(number(&program.json()["calls"]["cuMemcpyHtoD_v2"]), 20_000);
}

#[bpf_test(alone)]
fn a_full_pipe_delays_no_process_and_dropped_lines_are_counted() {
    const CALLS: u64 = 400_000;
    let private = Private::new("paced", Cuda::Cuda12);
    let (mut program, pid) = waiting(&private.program, &[], &[&CALLS.to_string()]);
    let folder = fixtures::folder();
    let said = folder.path().join("said");
    let mut trace = gpuprobe(&["trace", "-d", &pid, "-e", "cuMemcpyHtoD_v2"]);
    let mut child = trace.stdout(Stdio::piped()).stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    let reported = || fs::read_to_string(&said).unwrap();
    until(PATIENCE, "it traces", || reported().contains("gpuprobe: tracing").then_some(()));
    let (status, printed) = program.finish();
    assert_eq!(status, 0);
    println!("{CALLS} calls took {} s", printed["seconds"]);
    assert!(printed["seconds"].as_f64().unwrap() < 8.0, "{printed}");
    // the process has exited, and the trace ends too, although the pipe is full
    let status = until(PATIENCE, "it ends", || child.try_wait().unwrap());
    let reported = reported();
    println!("{reported}");
    assert!(status.success(), "{reported}");
    let (lines, lost) = lines_and_lost(&reported);
    assert_eq!(lines + lost, CALLS, "{reported}");
    assert!(reported.contains(" output_full: calls not printed because"), "{reported}");
}

#[bpf_test]
fn other_signals_end_it_as_well() {
    let private = Private::new("paced", Cuda::Cuda12);
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let (mut program, pid) = waiting(&private.program, &[], &["10"]);
        let trace = Tracing::start(&["-d", &pid, "--json"]).stop_by(signal).recording();
        assert_eq!(trace.assert_whole().calls, 0);
        assert_eq!(program.finish().0, 0);
    }
}

#[bpf_test(alone)]
fn stacks_of_many_threads_stay_with_their_calls() {
    let private = Private::new("ledger", Cuda::Cuda12);
    let args = ["--wait", "--threads", "8", "--calls", "1600"];
    let (mut program, pid) = waiting(&private.program, &[], &args);
    let paths = private.paths();
    let mut options: Vec<&str> = paths.iter().map(String::as_str).collect();
    options.extend(["-d", &pid, "--json", "--stack", "-e", "cuda*"]);
    let trace = Tracing::start(&options);
    let (status, printed) = program.finish();
    assert_eq!((status, number(&printed["total_calls"])), (0, 1600));
    let trace = trace.end().recording();
    trace.assert_whole();
    assert_eq!(trace.calls.len(), 1600);
    for call in &trace.calls {
        let stack = call.stack.as_ref().unwrap_or_else(|| panic!("no stack: {call:?}"));
        assert!(stack.iter().any(|frame| frame.contains("ledger_calls.c:")), "{call:?}");
        assert!(stack.iter().any(|frame| frame.starts_with("run (")), "the function of the thread: {call:?}");
    }
}
