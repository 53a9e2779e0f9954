//! A recording with what a GPU executed, in every output.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use gpuprobe_analysis::{KernelSeconds, Replay, ReplayReport, Snapshot, Summary, TimelineBuilder};
use gpuprobe_event::trace::{End, Line, Meta, Reader};
use gpuprobe_event::{Event, Gpu};
use gpuprobe_output::report::{Source, html};
use gpuprobe_output::{
    Format, Live, LiveOptions, SummaryOptions, Target, encode, report_json, summary, timeline,
};

use super::check;
use super::conversions::{convert, described};

const TRACE: &str = include_str!("../../../../tests/traces/gpu_time.jsonl");

fn read() -> (Meta, Vec<Event>, End) {
    let mut reader = Reader::new(TRACE.as_bytes()).unwrap();
    let (mut events, mut end) = (Vec::new(), None);
    while let Some(line) = reader.read().unwrap() {
        match line {
            Line::Event(event) => events.push(event),
            Line::End(last) => end = Some(last),
        }
    }
    assert_eq!(reader.damaged(), 0);
    (reader.meta().clone(), events, end.unwrap())
}

fn replayed() -> ReplayReport {
    let (_, events, end) = read();
    let mut replay = Replay::with_calls();
    events.into_iter().for_each(|event| replay.feed(event));
    replay.finish(Some(&end))
}

#[test]
fn the_summary() {
    let (_, events, end) = read();
    let mut collected = Summary::default();
    events.iter().for_each(|event| collected.feed(event));
    collected.end(&end);
    check("gpu_time_summary.txt", &summary(&collected.report(), &SummaryOptions::default()));
    // reading a trace again gives the same figures
    assert_eq!(collected.report().gpu_time, replayed().summary.gpu_time);
}

#[test]
fn the_figures_are_those_of_the_executions() {
    let time = replayed().summary.gpu_time;
    let kernels: u64 = time.kernels.iter().map(|row| row.executions).sum();
    let copies: u64 = time.copies.iter().map(|row| row.copies).sum();
    assert_eq!((time.executions, kernels, copies, time.unmatched), (12, 9, 2, 4));
    let gpu = &time.gpus[0];
    // everything that ran is in the union once
    assert!(gpu.busy_ns <= time.total_ns() && gpu.busy_ns >= gpu.streams[0].busy_ns);
    assert!(gpu.busy_ns <= gpu.covered_ns);
    let in_ranges: u64 = time.ranges.iter().map(|row| row.executions).sum();
    assert_eq!(in_ranges, 7, "all kernels with a submission");
}

#[test]
fn lines_as_they_happen_and_the_timeline() {
    let (mut live, mut text) = (Live::new(LiveOptions::default()), String::new());
    let mut picture = TimelineBuilder::new(None, None);
    for event in read().1 {
        live.event(&event, &mut text);
        picture.feed(event);
    }
    text += &timeline(&picture.finish().0, 100);
    check("gpu_time_live.txt", &text);
}

#[test]
fn conversions() {
    let (chrome, ..) = convert(TRACE, Target::Chrome);
    check("gpu_time_chrome.json", &String::from_utf8(chrome).unwrap());
    let (perfetto, ..) = convert(TRACE, Target::Perfetto);
    check("gpu_time_perfetto.txt", &described(&perfetto));
}

#[test]
fn the_page_and_the_json() {
    let (meta, _, end) = read();
    let report = replayed();
    let source = Source { name: "trace", meta: &meta, end: Some(&end), missing: &[] };
    let page = html(&report, &source);
    for shown in [
        "<h2>GPU time</h2>",
        "another tool subscribed to CUPTI: &lt;nsys&gt;",
        ">GPU 0, stream 7<",
        "class=\"gpu\"",
        "in cudaStreamSynchronize",
        "H2D, 1.0 MiB, queued 9.0 us, submitted by thread 4242",
        "<td class=\"name\">train: forward</td>",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
    let json: serde_json::Value = serde_json::from_str(&report_json(&report.summary, &source, None)).unwrap();
    let time = &json["summary"]["gpu_time"];
    assert_eq!((&time["executions"], &time["gpus"][0]["gpu"]), (&12.into(), &0.into()));
    assert_eq!(time["agents"][1]["state"], "refused");
}

#[test]
fn metrics() {
    let mut seconds = KernelSeconds::default();
    for event in read().1 {
        if let Event::Execution(execution) = event {
            seconds.add(Gpu::Host(1), &execution);
        }
    }
    seconds.sampled(Gpu::Host(1), 5_000_000_000);
    let snapshot = Snapshot { gpu_kernel_time: seconds.report(), ..Snapshot::default() };
    let text = encode(&snapshot, Format::Prometheus);
    let samples: String = text
        .lines()
        .filter(|line| line.starts_with("gpuprobe_gpu_kernel_"))
        .flat_map(|line| [line, "\n"])
        .collect();
    check("gpu_time_metrics.txt", &samples);
}
