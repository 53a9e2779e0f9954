//! `gpuprobe trace` of very many calls: printed and lost calls add up to the calls made.

use std::fs::File;
use std::io::{BufRead, BufReader};

use gpuprobe_e2e::tracing::{Private, lines_and_lost, waiting};
use gpuprobe_e2e::{Tracing, bpf_test};
use gpuprobe_standin::Cuda;

/// The result of a run.
struct Ran {
    /// The number of lines that it reports.
    reported: u64,
    lost: u64,
    lines: u64,
    /// Lines that do not directly follow that of the previous call.
    gaps: u64,
    /// Those of them with a stack.
    with_stack: u64,
    seconds: f64,
    stderr: String,
}

/// Traces `paced` to a file.
fn traced(args: &[&str], options: &[&str]) -> Ran {
    let private = Private::new("paced", Cuda::Cuda12);
    let (mut program, pid) = waiting(&private.program, &[], args);
    let mut trace = Tracing::start(&[&["-d", &pid, "-e", "cuMemcpyHtoD_v2", "--json"], options].concat());
    let (status, printed) = program.finish();
    assert_eq!(status, 0);
    let (file, status, stderr) = trace.end_unread();
    assert_eq!(status, 0, "{stderr}");
    println!("{} s\n{stderr}", printed["seconds"]);
    let (mut lines, mut gaps, mut before, mut with_stack) = (0, 0, 0, 0);
    for line in BufReader::new(File::open(file).unwrap()).lines() {
        let line = line.unwrap();
        let Some((_, count)) = line.split_once("\"ByteCount\":") else { continue };
        let count: u64 = count.split('}').next().unwrap().parse().unwrap();
        gaps += u64::from(count != before + 1);
        before = count;
        lines += 1;
        with_stack += u64::from(line.contains("\"stack\":[\"copy "));
    }
    let (reported, lost) = lines_and_lost(&stderr);
    let seconds = printed["seconds"].as_f64().unwrap();
    Ran { reported, lost, lines, gaps, with_stack, seconds, stderr }
}

#[bpf_test(alone)]
fn two_and_a_half_million_calls_are_printed_or_counted_as_lost() {
    const CALLS: u64 = 2_500_000;
    let ran = traced(&[&CALLS.to_string(), "0", "2"], &[]);
    println!("{} printed, {} lost", ran.lines, ran.lost);
    assert_eq!(ran.reported, ran.lines);
    assert_eq!(ran.lines + ran.lost, CALLS);
    assert!(ran.lines >= 100_000, "fewer than may wait to be printed: {}", ran.lines);
}

#[bpf_test(alone)]
fn at_a_hundred_thousand_calls_a_second_nothing_is_lost() {
    let ran = traced(&["200000", "100000"], &[]);
    assert!(ran.seconds >= 1.9, "{} s is faster than asked for", ran.seconds);
    assert_eq!((ran.reported, ran.lost, ran.lines, ran.gaps), (200_000, 0, 200_000, 0));
}

#[bpf_test(alone)]
fn calls_without_stacks_are_counted_separately_from_lost_calls() {
    const CALLS: u64 = 100_000;
    let ran = traced(&[&CALLS.to_string()], &["--stack"]);
    assert_eq!((ran.reported, ran.lines + ran.lost), (ran.lines, CALLS));
    let reported = ran.stderr.lines().find(|line| line.contains(" lost_stack: "));
    let stacks: u64 = reported.map_or(0, |line| line.split(' ').nth(2).unwrap().parse().unwrap());
    println!("{} printed, {} of them with their stack", ran.lines, ran.with_stack);
    // some of the lost calls have lost their stacks too
    assert!(ran.with_stack >= ran.lines - stacks.min(ran.lines) && ran.with_stack > 0, "{}", ran.stderr);
}
