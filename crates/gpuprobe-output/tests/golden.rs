//! Compares whole outputs with files. Set `GPUPROBE_BLESS` to write the files again, then review the difference.

mod conversions;
mod gpu_time;
mod pages;
mod samples;
mod stacks;
mod top;

use gpuprobe_analysis::{
    Advice, Bound, Filtered, GpuOps, GpuStates, ProcessSnapshot, RecordingFigures, Replay, Snapshot, Summary,
    SummaryReport, TimelineBuilder, differences,
};
use gpuprobe_event::trace::{End, Meta};
use gpuprobe_event::{
    Class, Event, GpuHolder, LiveSite, LossCause, MemoryBySite, OutOfMemoryEvent, TensorHolder, TensorSource,
    TensorSummary, TensorUse, Tgid, UnifiedUse,
};
use gpuprobe_output::diff::{Comparison, diff, diff_json};
use gpuprobe_output::{
    Classic, Conversion, Format, Live, LiveOptions, MemoryOptions, Sections, Strokes, SummaryOptions, Target,
    Weight, cost, encode, gpus_compared, memory, memory_json, pending, summary, tensors, timeline,
};
use samples::collective_calls::collective_events;
use samples::kmod_calls::kmod_events;
use samples::live_calls::{START_UNIX, live_events, open_calls, phased_events};
use samples::memory_reports::{many_sites_report, memory_report};
use samples::tensor_reports::tensor_report;
use samples::{MIB, classic_sequence, cost_report, events, snapshot};

fn check(name: &str, got: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("GPUPROBE_BLESS").is_some() {
        std::fs::write(&path, got).expect(&path);
    }
    let expected = std::fs::read_to_string(&path).expect(&path);
    if got != expected {
        panic!("{path}: {}", first_difference(got, &expected));
    }
}

/// The first line that differs, including line ends.
fn first_difference(got: &str, expected: &str) -> String {
    let mut lines = (got.split_inclusive('\n'), expected.split_inclusive('\n'));
    for number in 1.. {
        match (lines.0.next(), lines.1.next()) {
            (None, None) => break,
            (got, expected) if got == expected => {}
            (got, expected) => {
                let shown = |line: Option<&str>| line.map_or("nothing".to_owned(), |l| format!("{l:?}"));
                return format!("line {number} is {}, not {}", shown(got), shown(expected));
            }
        }
    }
    "no difference".to_owned()
}

#[test]
fn the_first_differing_line_is_reported() {
    assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), r#"line 2 is "b\n", not "x\n""#);
    assert_eq!(first_difference("a\n", "a\nb\n"), r#"line 2 is nothing, not "b\n""#);
    assert_eq!(first_difference("a", "a\n"), r#"line 1 is "a", not "a\n""#);
}

/// All rows, and calls inside others.
fn nested() -> SummaryOptions {
    SummaryOptions { rows: 0, nested: true, ..SummaryOptions::default() }
}

#[test]
fn the_summary_of_a_recording() {
    let mut collected = Summary::default();
    events().iter().for_each(|e| collected.feed(e));
    collected.end(&End { memory_by_site: memory_report(&[]).by_site(), ..End::default() });
    for width in [80, 200] {
        let text = summary(&collected.report(), &SummaryOptions { width, ..nested() });
        check(&format!("summary_{width}.txt"), &text);
    }
    check("summary.txt", &summary(&collected.report(), &SummaryOptions::default()));
}

#[test]
fn the_summary_of_an_empty_recording() {
    check("summary_empty.txt", &summary(&Summary::default().report(), &SummaryOptions::default()));
}

#[test]
fn the_summary_of_collectives() {
    let mut collected = Summary::default();
    collective_events().iter().for_each(|e| collected.feed(e));
    check("summary_collectives.txt", &summary(&collected.report(), &SummaryOptions::default()));
}

#[test]
fn the_summary_of_the_nvidia_kernel_module() {
    let mut collected = Summary::default();
    kmod_events().iter().for_each(|event| collected.feed(event));
    let unified = vec![UnifiedUse { pid: 4242, totals: samples::op_rows::unified() }];
    collected.end(&End { unified, ..End::default() });
    check("summary_kmod.txt", &summary(&collected.report(), &SummaryOptions::default()));
}

#[test]
fn calls_into_the_nvidia_kernel_module_in_trace_lines_folded_stacks_and_the_timeline() {
    let mut live = Live::new(LiveOptions { nested: true, ..LiveOptions::default() });
    let (mut lines, mut picture) = (String::new(), TimelineBuilder::new(None, None));
    let mut folded = Vec::new();
    let mut conversion =
        Conversion::new(Target::Folded(Weight::Time), &Meta::default(), &mut folded).unwrap();
    for event in kmod_events() {
        live.event(&event, &mut lines);
        picture.feed(event.clone());
        conversion.feed(event).unwrap();
    }
    conversion.finish(None).unwrap();
    lines += &String::from_utf8(folded).unwrap();
    lines += &timeline(&picture.finish().0, 100);
    check("kmod.txt", &lines);
}

/// The figures of a recording with this live memory at a call site.
fn figures(events: Vec<Event>, bytes: u64) -> RecordingFigures {
    let mut replay = Replay::default();
    events.into_iter().for_each(|event| replay.feed(event));
    let (process, call_site) = ("train".to_owned(), "load (train.cc:12) < main (train.cc:40)".to_owned());
    let site = LiveSite { pid: Tgid(4242), process, call_site, allocations: 1, bytes };
    let memory_by_site = MemoryBySite::new(vec![site], 0);
    RecordingFigures::of(&replay.finish(Some(&End { memory_by_site, ..End::default() })))
}

#[test]
fn the_differences_of_two_recordings() {
    let (before, mut shorter) = (events(), events());
    shorter.remove(14);
    shorter.truncate(18);
    let (before, after) = (figures(before, 4096), figures(shorter, 1 << 20));
    let filtered = Filtered { filter: "--pid 7".to_owned(), events: 9, removed: 2, ..Filtered::default() };
    let differences = differences(&before, &after, true);
    let comparison = Comparison {
        names: ["a.jsonl", "b\x1b.jsonl"],
        figures: [&before, &after],
        filtered: [None, Some(&filtered)],
        differences: &differences,
        fail_above: Some(0.1),
    };
    check("diff.txt", &diff(&comparison, 80, false));
    check("diff.json", &diff_json(&comparison));
    let same = Comparison { figures: [&after; 2], filtered: [None; 2], differences: &[], ..comparison };
    assert_eq!((diff(&same, 80, false).as_str(), same.above()), ("no differences\n", 0));
}

/// One of each kind.
fn advice() -> Vec<Advice> {
    let observed_ns = 4_000_000_000;
    vec![
        Advice::PageableCopies { copies: 120, bytes: 3 << 30, ns: 800_000_000, observed_ns },
        Advice::TinyCopies { tiny: 9000, copies: 10_000, median: Bound::Below(8), observed_ns },
        Advice::LaunchBound { launches: 400_000, calls_ns: 2_000_000_000, gaps_ns: 500_000_000, observed_ns },
        Advice::SyncInLoop { waits: 990, launches: 1000, after_waits_ns: 500_000_000, observed_ns },
    ]
}

/// The GPU operations of the first process that launched kernels, which has all kinds of operations.
fn gpu_ops() -> GpuOps {
    let has_launched = |p: &&std::sync::Arc<ProcessSnapshot>| !p.gpu_ops.kernels.is_empty();
    snapshot().processes.iter().find(has_launched).map(|process| process.gpu_ops.clone()).unwrap_or_default()
}

#[test]
fn the_summary_of_launches_copies_and_gaps() {
    let text = summary(
        &SummaryReport { gpu_ops: gpu_ops(), advice: advice(), ..SummaryReport::default() },
        &SummaryOptions::default(),
    );
    check("summary_gpu_ops.txt", &text);
    for advice in advice() {
        let json = serde_json::to_value(advice).unwrap();
        assert_eq!(json["rule"], serde_json::json!(advice.rule()), "the rule has one name everywhere");
    }
}

#[test]
fn names_of_kernels_are_complete_on_request() {
    let mut gpu_ops = gpu_ops();
    let name = format!("void gemm<{}>(float*)", "float, ".repeat(40));
    gpu_ops.kernels[0].kernel = name.clone();
    gpu_ops.kernels[1].kernel = "k".repeat(10_000);
    let report = SummaryReport { gpu_ops, ..SummaryReport::default() };
    let full = summary(&report, &SummaryOptions { full_names: true, ..SummaryOptions::default() });
    let short = summary(&report, &SummaryOptions::default());
    assert!(full.contains(&name) && !short.contains(&name) && short.contains("\ngemm<..> "), "{short}");
    let longest = full.lines().map(|line| line.chars().count()).max();
    assert!(longest.is_some_and(|longest| longest < 5000), "{longest:?}");
}

#[test]
fn the_summary_fits_a_terminal_with_large_numbers() {
    let mut gpu_ops = gpu_ops();
    for kernel in gpu_ops.kernels.iter_mut().map(|kernel| &mut kernel.totals) {
        (kernel.launches, kernel.errors, kernel.threads) = (u64::MAX / 64, 1 << 40, u64::MAX);
        kernel.grid = Some(([2_147_483_647, 1, 1], [2_147_483_647, 65_535, 65_535]));
    }
    let report = |gpu_ops: &GpuOps| SummaryReport { gpu_ops: gpu_ops.clone(), ..SummaryReport::default() };
    let text = summary(&report(&gpu_ops), &SummaryOptions::default());
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'));
    // with realistic numbers all lines fit
    for kernel in gpu_ops.kernels.iter_mut().map(|kernel| &mut kernel.totals) {
        (kernel.launches, kernel.errors, kernel.threads) = (999_999_999, 7, 999_999_999 << 20);
        kernel.grid = Some(([1, 1, 1], [65_535, 1024, 1]));
    }
    for copy in &mut gpu_ops.copies {
        (copy.copies, copy.bytes, copy.sizes) = (999_999_999, 999 << 40, [999_999; 32]);
    }
    for width in [80, 100, 200] {
        let text =
            summary(&report(&gpu_ops), &SummaryOptions { width, rows: 0, ..SummaryOptions::default() });
        let long: Vec<_> = text.lines().filter(|line| line.chars().count() > width).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}

#[test]
fn internal_calls_of_old_traces_are_one_line_unless_there_are_no_others() {
    let mut collected = Summary::default();
    let internal = |event: &Event| match event {
        Event::Call(call) => {
            let mut call = call.clone();
            (call.name, call.class) = ("__cudaRegisterFunction".into(), Class::Register);
            (call.status, call.error) = (Some(0), None);
            Event::Call(call)
        }
        other => other.clone(),
    };
    events().iter().for_each(|event| collected.feed(&internal(event)));
    let options = SummaryOptions { hides_internal: true, ..nested() };
    assert!(summary(&collected.report(), &options).contains("\n__cudaRegisterFunction "));
    events().iter().for_each(|event| collected.feed(event));
    let text = summary(&collected.report(), &options);
    assert!(!text.contains("\n__cudaRegisterFunction ") && text.contains("cudaMalloc"), "{text}");
    assert!(text.contains("internal calls not shown (-e '__cuda*' shows them)\n"), "{text}");
    assert!(summary(&collected.report(), &nested()).contains("\n__cudaRegisterFunction "));
}

#[test]
fn errors_at_teardown_are_not_failures() {
    let mut collected = Summary::default();
    for event in events() {
        let Event::Call(mut call) = event else { continue };
        if call.error.is_some() {
            call.error = Some("CUDA_ERROR_DEINITIALIZED".into());
        }
        collected.feed(&Event::Call(call));
    }
    let text = summary(&collected.report(), &SummaryOptions::default());
    assert!(text.contains(", 0 errors and 1 at teardown, "), "{text}");
    assert!(text.contains("\nat exit, after CUDA had shut down (no failures): 1 cuda"), "{text}");
    assert!(!text.contains("\nerrors"), "{text}");
}

#[test]
fn the_cost_of_every_mode() {
    check("cost.txt", &cost(&cost_report()));
}

#[test]
fn metrics_as_prometheus_text() {
    check("metrics_prometheus.txt", &encode(&snapshot(), Format::Prometheus));
}

#[test]
fn metrics_as_open_metrics() {
    check("metrics_openmetrics.txt", &encode(&snapshot(), Format::OpenMetrics));
}

#[test]
fn the_classic_display_of_memory_over_time() {
    let memory = Sections { memory: true, launches: false, copies: false };
    let mut classic = Classic::new(memory, 0).with_addresses(true);
    let text: String = classic_sequence().iter().map(|s: &Snapshot| classic.render(s)).collect();
    check("classic_memory.txt", &text);
}

#[test]
fn the_classic_display_of_everything() {
    let mut classic = Classic::new(Sections::ALL, 3600).with_addresses(true);
    // advice needs some seconds of watching
    classic.begin(&Snapshot { unix_seconds: snapshot().unix_seconds - 5.0, ..snapshot() });
    check("classic_all.txt", &classic.render(&snapshot()));
}

#[test]
fn the_display_of_memory_by_call_site() {
    let mut classic = Classic::new(Sections { memory: true, launches: false, copies: false }, 0);
    let call_sites = memory_report(&[]).processes;
    let text = classic.render(&Snapshot { call_sites, ..snapshot() });
    let lines = text.lines().filter(|line| line.contains("leak"));
    assert!(lines.clone().count() > 0 && lines.clone().all(|line| line.contains("leak suspect")), "{text}");
    let without = classic.render(&Snapshot { call_sites: Vec::new(), ..snapshot() });
    assert!(!without.contains("leak"), "{without}");
    check("classic_call_sites.txt", &text);
}

const LAUNCHES: Sections = Sections { memory: false, launches: true, copies: false };
const COPIES: Sections = Sections { memory: false, launches: false, copies: true };

#[test]
fn the_classic_display_of_launches_only() {
    check("classic_launches.txt", &Classic::new(LAUNCHES, 0).render(&snapshot()));
}

#[test]
fn the_classic_display_of_copies_only() {
    let mut later = snapshot();
    let mut classic = Classic::new(COPIES, 0);
    let mut text = classic.render(&later);
    // in the next block more bytes were copied in one direction
    later.unix_seconds += 5.0;
    for process in &mut later.processes {
        let copies = &mut std::sync::Arc::make_mut(process).gpu_ops.copies;
        copies.iter_mut().filter(|c| c.is_async && c.bytes > 1 << 20).for_each(|c| c.bytes += 10_000_001);
    }
    text += &classic.render(&later);
    check("classic_copies.txt", &text);
}

fn lines(options: LiveOptions, events: &[Event]) -> String {
    let mut live = Live::new(LiveOptions { start_unix: START_UNIX, ..options });
    let mut text = live.header();
    events.iter().for_each(|event| live.event(event, &mut text));
    text
}

#[test]
fn live_lines_of_every_kind_of_call() {
    let options = LiveOptions { times: true, nested: true, processes: true, ..LiveOptions::default() };
    check("live.txt", &lines(options, &live_events()));
}

#[test]
fn live_lines_with_color_differ_only_in_color() {
    let plain = LiveOptions { utc_offset_seconds: 3600, ..LiveOptions::default() };
    let without = lines(plain, &live_events());
    let with = lines(LiveOptions { color: true, ..plain }, &live_events());
    check("live_color.txt", &with);
    assert_eq!(with.replace("\x1b[31m", "").replace("\x1b[0m", ""), without);
}

#[test]
fn the_classic_form_in_two_phases() {
    let options = LiveOptions { times: true, phases: true, ..LiveOptions::default() };
    check("live_phases.txt", &lines(options, &phased_events()));
    let without_times = lines(LiveOptions { times: false, ..options }, &phased_events());
    let cut: String = lines(options, &phased_events()).split_inclusive('\n').map(|l| &l[9..]).collect();
    assert_eq!(without_times, cut);
}

#[test]
fn open_calls_the_longest_first() {
    check("live_pending.txt", &pending(&open_calls(), 100_000_000_000));
    assert_eq!(pending(&[], 5), "");
}

const NOON: f64 = 1_733_140_800.0;
const WIDE: MemoryOptions =
    MemoryOptions { width: 140, stacks: false, strokes: Strokes::Blocks, utc_offset_seconds: 0 };

#[test]
fn memory_by_process_and_call_site() {
    check("memory.txt", &memory(&memory_report(&[]), NOON, &WIDE));
    check("memory_empty.txt", &memory(&Default::default(), NOON, &WIDE));
}

#[test]
fn memory_with_stacks_and_losses() {
    let report = memory_report(&[(LossCause::LiveFull, 3), (LossCause::RingFull, 9)]);
    let options = MemoryOptions { stacks: true, strokes: Strokes::Ascii, ..WIDE };
    check("memory_stacks.txt", &memory(&report, NOON, &options));
}

#[test]
fn memory_fits_the_terminal_and_has_no_control_characters() {
    let report = memory_report(&[(LossCause::LiveFull, 3)]);
    for width in 0..200 {
        for stacks in [false, true] {
            let text = memory(&report, NOON, &MemoryOptions { width, stacks, ..WIDE });
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{width}");
            // terminals narrower than 80 columns are not supported, and sentences about losses are not shortened
            let table = text.lines().take_while(|l| !l.contains("incomplete:")).skip(3);
            let widest = table.filter(|l| !l.contains("watched for")).map(|l| l.chars().count()).max();
            assert!(width < 80 || widest.is_some_and(|widest| widest <= width), "{width}: {widest:?}");
        }
    }
    check("memory_narrow.txt", &memory(&report, NOON, &MemoryOptions { width: 80, ..WIDE }));
}

#[test]
fn call_sites_that_are_not_followed_and_memory_that_ended_with_its_context() {
    check("memory_many_sites.txt", &memory(&many_sites_report(), NOON, &WIDE));
    let json: serde_json::Value =
        serde_json::from_str(&memory_json(&many_sites_report(), None, &GpuStates::default(), NOON)).unwrap();
    assert_eq!(json["complete"], serde_json::json!(false));
    assert_eq!(json["losses"], serde_json::json!({"not_followed": 6}));
    let verdicts: Vec<_> = json["processes"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|process| process["call_sites"].as_array().unwrap())
        .map(|site| format!("{}: {}", site["verdict"].as_str().unwrap(), site["reason"].as_str().unwrap()))
        .collect();
    let expected = [
        "unchanged: no allocation and no free in 29 s",
        "not_followed: too many other call sites have live memory",
        "freed: no memory is live any more; 1600 allocations, 0 frees, 1600 ended with their context in 39 s",
        "freed: no memory is live any more; 1601 allocations, 1 free, 1600 ended with their context in 39 s",
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn memory_as_json() {
    let report = memory_report(&[(LossCause::LiveFull, 3)]);
    check("memory.json", &memory_json(&report, None, &snapshot().gpu_states, NOON));
    check("memory_empty.json", &memory_json(&Default::default(), None, &GpuStates::default(), NOON));
}

#[test]
fn tensors_by_call_site_and_gpu() {
    let report = tensor_report();
    check("tensors.txt", &tensors(&report, &WIDE));
    check("tensors_narrow.txt", &tensors(&report, &MemoryOptions { width: 80, stacks: true, ..WIDE }));
    assert_eq!(tensors(&Default::default(), &WIDE), "");
    let json = memory_json(&Default::default(), Some(&report), &GpuStates::default(), NOON);
    check("tensors.json", &json);
    let snapshot = Snapshot { tensors: report.processes, has_tensors: true, ..Snapshot::default() };
    let all = encode(&snapshot, Format::Prometheus);
    let samples: String = all
        .lines()
        .filter(|line| line.starts_with("gpuprobe_tensor_"))
        .flat_map(|line| [line, "\n"])
        .collect();
    check("tensor_metrics.txt", &samples);
}

#[test]
fn tensors_and_out_of_memory_errors_in_a_summary() {
    let by_site = tensor_report().by_site();
    let used = |gpu, reserved_bytes| TensorUse {
        pid: Tgid(4242),
        process: "train\n".to_owned(),
        gpu,
        tensors: 1,
        bytes: MIB,
        in_use_bytes: MIB,
        reserved_bytes,
        fragmented_bytes: reserved_bytes.map(|bytes| bytes / 4),
        source: if reserved_bytes.is_some() { TensorSource::Reports } else { TensorSource::CudaMallocAsync },
    };
    let gpus = vec![used(Some(0), Some(2 * MIB)), used(None, Some(0)), used(Some(1), None)];
    let mut collected = Summary::default();
    let error = OutOfMemoryEvent {
        at_ns: 1_500_000_000,
        tgid: Tgid(4242),
        process: "train\n".into(),
        gpu: Some(0),
        requested_bytes: 2 << 30,
        in_use_bytes: MIB,
        reserved_bytes: 2 * MIB,
        free_bytes: Some(10 * MIB),
        call_site: "step (train.py:31)".into(),
        largest: vec![TensorHolder { call_site: "keep\x1b (train.py:3)".into(), tensors: 40, bytes: MIB }],
        others: vec![GpuHolder { tgid: Tgid(7), process: "other".into(), bytes: 3 * MIB }],
        ..OutOfMemoryEvent::default()
    };
    collected.feed(&Event::OutOfMemory(Box::new(error)));
    collected.end(&End { tensors: TensorSummary::new(gpus, by_site), ..End::default() });
    let options = SummaryOptions { rows: 0, ..SummaryOptions::default() };
    check("summary_tensors.txt", &summary(&collected.report(), &options));
}

#[test]
fn memory_compared_with_nvml() {
    check("memory_gpus.txt", &gpus_compared(&snapshot(), 100));
    assert_eq!(gpus_compared(&Snapshot::default(), 100), "");
}
