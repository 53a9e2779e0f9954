//! The classic examples in the classic display: three allocations of 8,000,000 bytes, two frees and the exit, step by
//! step; a thousand launches of each of two CUDA kernels; and copies with their bandwidth.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{gpuprobe, shown};
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// One display per second, on a busy machine.
const FRESH: Duration = Duration::from_secs(30);
const RULE: &str = "========================";

/// The example before its first call, and a display of this process only.
struct Shown {
    _folder: tempfile::TempDir,
    daemon: Daemon,
    example: Talk,
    lines: Vec<String>,
}

impl Shown {
    fn start(words: &[&str]) -> Self {
        Self::displaying(&["--addresses"], words)
    }

    fn displaying(options: &[&str], words: &[&str]) -> Self {
        let folder = fixtures::folder();
        let files = ["libcuda.so.1", "libcudart.so.12", "classic"];
        fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
        let mut example = Talk::start(Command::new(folder.path().join("classic")).args(words));
        let first = example.json();
        assert_eq!(number(&first["step"]), 0);
        let (pid, library) = (pid_of(&first).to_string(), shown(folder.path().join("libcuda.so.1")));
        let mut command = gpuprobe(&["--memleak", "--display-interval=1", "--metrics-addr=127.0.0.1:0"]);
        let daemon = Daemon::of(command.args(options).args(["-d", &pid, "-p", &library]));
        Self { _folder: folder, daemon, example, lines: Vec::new() }
    }

    /// A display of one feature, and a workload with delayed calls.
    fn feature(feature: &str, workload: &str, delay: &str) -> Self {
        let folder = fixtures::folder();
        let name = workload.split(' ').next().unwrap();
        fixtures::copies(
            &fixtures::standins(Cuda::Cuda12),
            folder.path(),
            &["libcuda.so.1", "libcudart.so.12", name],
        );
        let library = shown(folder.path().join("libcuda.so.1"));
        let daemon = Daemon::with(&[feature, "-p", &library]);
        // set by a shell, because what we start has a clean environment
        let script = format!("STANDIN_DELAY={delay} exec {}/{workload} --wait", shown(folder.path()));
        let example = Talk::start(Command::new("/bin/sh").args(["-c", &script]));
        Self { _folder: folder, daemon, example, lines: Vec::new() }
    }

    /// Waits for a block with these lines between the rules and after the time.
    fn assert_block(&mut self, expected: &[String]) {
        self.until_block(&expected.join("\n"), |block| (block == expected).then_some(()));
    }

    /// Waits for a block from which `take` returns something.
    fn until_block<T>(&mut self, expected: &str, take: impl Fn(&[String]) -> Option<T>) -> T {
        let start = Instant::now();
        let mut last = Vec::new();
        loop {
            self.lines.extend(self.daemon.talk.printed());
            while let Some(block) = self.take_block() {
                if let Some(taken) = take(&block) {
                    return taken;
                }
                last = block;
            }
            assert!(start.elapsed() < FRESH, "expected\n{expected}\nshown\n{}", last.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The next complete block: a rule, the time, an empty line, the content, and a rule.
    fn take_block(&mut self) -> Option<Vec<String>> {
        let end = self.lines.iter().skip(1).position(|l| l == RULE)? + 1;
        let block: Vec<String> = self.lines.drain(..=end).collect();
        assert_eq!((block[0].as_str(), block[2].as_str()), (RULE, ""), "{block:?}");
        let is_time = |c: char| c.is_ascii_digit() || "- :".contains(c);
        assert!(block[1].len() == 19 && block[1].chars().all(is_time), "{block:?}");
        // the tests may run in a container, which is shown after the pid; programs of other users may come and go
        let plain = |line: &String| match line
            .split_once(" [")
            .map(|(before, rest)| (before, rest.split_once(']')))
        {
            Some((before, Some((_, after)))) => format!("{before}{after}"),
            _ => line.clone(),
        };
        let is_ours = |line: &&String| !line.starts_with("lost ") && !line.starts_with("not probed ");
        Some(block[3..end].iter().filter(is_ours).map(plain).collect())
    }
}

/// A block: the four counts, the lines with sums, and the map of a process, if it has one.
fn block(counts: [u64; 4], sums: &[&str], map: Option<(&Value, [u64; 3])>) -> Vec<String> {
    let names =
        ["num_successful_mallocs: ", "num_failed_mallocs: ", "num_successful_frees: ", "num_failed_frees: "];
    let mut lines: Vec<String> =
        names.iter().zip(counts).map(|(name, count)| format!("{name:<25}{count}")).collect();
    lines.extend(sums.iter().map(|sum| (*sum).to_owned()));
    lines.push("per-process memory maps:".to_owned());
    if let Some((printed, sizes)) = map {
        lines.push(format!("process {}", pid_of(printed)));
        let mut blocks: Vec<_> =
            printed["blocks"].as_array().unwrap().iter().map(number).zip(sizes).collect();
        blocks.sort_unstable();
        lines.extend(blocks.iter().map(|(ptr, bytes)| format!("\t{ptr:#018x}: {bytes} Bytes")));
    }
    lines.push(String::new());
    lines
}

const NO_LEAK: &str = "0 bytes leaked from 0 cuda memory allocation(s)";
const ALL_THREE: &str = "24000000 bytes leaked from 3 cuda memory allocation(s)";
const ONE: &str = "8000000 bytes leaked from 1 cuda memory allocation(s)";
const ENDED: &str = "8000000 bytes ended with the context or process of 1 cuda memory allocation(s)";
const BYTES: u64 = 8_000_000;

#[bpf_test(alone)]
fn the_classic_example_gives_the_classic_display() {
    let mut shown = Shown::start(&[]);
    shown.assert_block(&block([0, 0, 0, 0], &[NO_LEAK], None));
    shown.example.go_on();
    let printed = shown.example.json();
    shown.assert_block(&block([3, 0, 0, 0], &[ALL_THREE], Some((&printed, [BYTES; 3]))));
    shown.example.go_on();
    shown.example.json();
    shown.assert_block(&block([3, 0, 2, 0], &[ONE], Some((&printed, [BYTES, 0, 0]))));
    shown.example.go_on();
    assert_eq!(shown.example.end(), 0, "{}", shown.example.stderr());
    shown.assert_block(&block([3, 0, 2, 0], &[NO_LEAK, ENDED], Some((&printed, [0; 3]))));
}

#[bpf_test(alone)]
fn by_default_memory_is_shown_by_call_site_and_not_called_a_leak() {
    let mut shown = Shown::displaying(&[], &[]);
    shown.example.go_on();
    let pid = pid_of(&shown.example.json());
    let sum = "24000000 bytes live in 3 cuda memory allocation(s)";
    let is_named = |block: &[String]| block.iter().any(|l| l.starts_with('\t') && l.contains("warming up"));
    let block =
        shown.until_block(sum, |b| (b.iter().any(|line| line == sum) && is_named(b)).then(|| b.to_vec()));
    let process = format!("process {pid} (classic): 22.9 MiB live in 3 allocations");
    assert!(block.contains(&process), "{block:#?}");
    assert!(!block.iter().any(|line| line.contains("leak") || line.contains("0x0")), "{block:#?}");
    shown.example.go_on();
    shown.example.json();
    shown.example.go_on();
    assert_eq!(shown.example.end(), 0, "{}", shown.example.stderr());
    let ended = "0 bytes live in 0 cuda memory allocation(s)";
    shown.until_block(ended, |b| b.iter().any(|line| line == ended).then_some(()));
}

#[bpf_test(alone)]
fn failures_are_counted_and_a_reset_frees_memory() {
    let mut shown = Shown::start(&["reset"]);
    let mut printed = Value::Null;
    for step in 1..=3 {
        shown.example.go_on();
        printed = shown.example.json();
        assert_eq!(number(&printed["step"]), step);
        if step == 1 {
            // an allocation that is freed before it was shown is not shown as freed
            shown.assert_block(&block([3, 0, 0, 0], &[ALL_THREE], Some((&printed, [BYTES; 3]))));
        }
    }
    let failures = [
        "failures per function:".to_owned(),
        format!("process {} (classic)", pid_of(&printed)),
        "\tcuMemAlloc_v2: 1 CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
        "\tcuMemFree_v2: 1 CUDA_ERROR_INVALID_VALUE".to_owned(),
        String::new(),
    ];
    let with_failures = |block: Vec<String>| [block.as_slice(), &failures].concat();
    let one_left = block([3, 1, 2, 1], &[ONE], Some((&printed, [BYTES, 0, 0])));
    shown.assert_block(&with_failures(one_left));
    shown.example.go_on();
    shown.example.json();
    let ended = with_failures(block([3, 1, 2, 1], &[NO_LEAK, ENDED], Some((&printed, [0; 3]))));
    shown.assert_block(&ended);
    shown.example.go_on();
    assert_eq!(shown.example.end(), 0, "{}", shown.example.stderr());
    // its exit changes nothing: the map stays for a while
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        shown.assert_block(&ended);
    }
}

/// The lines below the heading of a process, up to the next one.
fn lines_of(block: &[String], pid: u32) -> Vec<&str> {
    let is_head = |line: &&String| {
        line.strip_prefix("process ").is_some_and(|l| l.split(' ').next() == Some(&pid.to_string()))
    };
    let below = block.iter().skip_while(|line| !is_head(line)).skip(1);
    below.map(String::as_str).take_while(|line| !line.is_empty() && !line.starts_with("process ")).collect()
}

/// Checks that a feature shows its own section and no other.
fn assert_only(block: &[String], heading: &str) {
    let headings: Vec<_> = block.iter().filter(|line| line.ends_with(':')).collect();
    assert_eq!(headings, [heading], "{block:#?}");
    assert!(!block.iter().any(|line| line.contains("mallocs") || line.contains("leaked")), "{block:#?}");
}

#[bpf_test]
fn a_thousand_turns_of_two_kernels_are_two_thousand_launches() {
    let mut shown = Shown::feature("--cudatrace", "launches classic", "none:0");
    let pid = pid_of(&shown.example.json());
    let expected = [
        "2000 cudaLaunchKernel calls for 2 kernels",
        "\tadd(float*, float*, int): 1000 launches",
        "\tscale(float*, int): 1000 launches",
    ];
    let block =
        shown.until_block(&expected.join("\n"), |b| (lines_of(b, pid) == expected).then(|| b.to_vec()));
    assert_only(&block, "per-process kernel launches:");
    shown.example.go_on();
    assert_eq!(shown.example.end(), 0, "{}", shown.example.stderr());
}

#[bpf_test]
fn copies_are_shown_with_their_bandwidth_if_it_is_meaningful() {
    let delay = "cuMemcpyHtoD_v2:30000,cuMemcpyDtoH_v2:30000";
    let mut shown = Shown::feature("--bandwidth-util", "copies", delay);
    let ledger = shown.example.json();
    let (pid, bytes, copies) = (pid_of(&ledger), counts_of(&ledger["bytes"]), counts_of(&ledger["copies"]));
    let is_fill = |kind: &str| kind.starts_with("memset/");
    let traced: u64 = copies.iter().filter(|(kind, _)| !is_fill(kind)).map(|(_, n)| n).sum();
    let first = format!("Traced {traced} cudaMemcpy calls");
    let block = shown.until_block(&first, |b| lines_of(b, pid).contains(&first.as_str()).then(|| b.to_vec()));
    assert_only(&block, "per-process copies:");
    let lines = lines_of(&block, pid);
    assert_eq!(lines[0], first);
    // if the duration of the call is not that of the copy, there is only the size
    for (kind, name) in [("H2D/async", "H2D async"), ("D2D/sync", "D2D"), ("P2P/async", "P2P async")] {
        let moved = format!("\t{name} {} calls, {} Bytes", copies[kind], bytes[kind]);
        assert!(
            lines.iter().any(|l| l.split(", ").take(2).collect::<Vec<_>>().join(", ") == moved),
            "{moved}: {lines:#?}"
        );
    }
    let sum = |counts: &BTreeMap<String, u64>| {
        counts.iter().filter(|(k, _)| is_fill(k)).map(|(_, n)| n).sum::<u64>()
    };
    let fills = format!("\tmemset {} calls, {} Bytes", sum(&copies), sum(&bytes));
    assert_eq!(lines.last(), Some(&fills.as_str()));
    for kind in ["H2D", "D2H"] {
        let line = lines.iter().find_map(|l| l.strip_prefix(&format!("\t{kind} "))).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let [rate, "bytes/sec", "for", seconds, "secs"] = words[..] else { panic!("{line}") };
        let (rate, seconds): (f64, f64) = (rate.parse().unwrap(), seconds.parse().unwrap());
        assert!((0.03..10.0).contains(&seconds), "{line}");
        let moved = bytes[&format!("{kind}/sync")] as f64;
        assert!((rate * seconds / moved - 1.0).abs() < 0.01, "{line}: {moved} bytes");
    }
    shown.example.go_on();
    assert_eq!(shown.example.end(), 0, "{}", shown.example.stderr());
}
