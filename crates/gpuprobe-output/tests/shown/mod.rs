//! Renders a trace in all output formats and checks what must be true for any input. The tests here use damaged traces,
//! the fuzzer in `fuzz/` uses arbitrary bytes.

use gpuprobe_analysis::{Replay, ReplayReport, TimelineBuilder};
use gpuprobe_event::trace::{End, Line, Meta, Reader};
use gpuprobe_output::report::{Source, html};
use gpuprobe_output::{Conversion, SummaryOptions, Target, summary, timeline};

const WIDTH: usize = 100;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// An output is at most this many times as long as the trace, plus `ROOM` for the fixed parts.
const MOST_TIMES: usize = 64;
const ROOM: usize = 1 << 20;

/// What was read from a trace.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) events: u64,
    pub(crate) damaged: u64,
}

/// Renders a trace in all formats; `None` if the bytes are not a trace. Panics if an output is invalid.
pub(crate) fn shown(bytes: &[u8]) -> Option<Shown> {
    let mut reader = Reader::new(bytes).ok()?;
    let meta = reader.meta().clone();
    let mut replay = Replay::with_calls();
    let mut part = TimelineBuilder::new(Some(NS_PER_SECOND / 100), Some(NS_PER_SECOND));
    let mut outputs = Target::ALL.map(|_| Vec::new());
    let mut conversions: Vec<_> = Target::ALL
        .into_iter()
        .zip(&mut outputs)
        .map(|(target, out)| Conversion::new(target, &meta, out).expect("writing to a buffer cannot fail"))
        .collect();
    let (mut end, mut events) = (None, 0);
    while let Some(line) = reader.read().expect("reading from bytes cannot fail") {
        match line {
            Line::End(last) => end = Some(last),
            Line::Event(event) => {
                events += 1;
                part.feed(event.clone());
                for conversion in &mut conversions {
                    conversion.feed(event.clone()).expect("writing to a buffer cannot fail");
                }
                replay.feed(event);
            }
        }
    }
    for conversion in conversions {
        conversion.finish(end.as_ref()).expect("writing to a buffer cannot fail");
    }
    for (target, out) in Target::ALL.into_iter().zip(&outputs) {
        assert_bounded(target.as_str(), out.len(), bytes);
        assert_format(target, out);
    }
    let report = replay.finish(None);
    assert_text("summary", &summary(&report.summary, &SummaryOptions::default()), bytes);
    assert_text("timeline", &timeline(&report.timeline, WIDTH), bytes);
    assert_text("part of the timeline", &timeline(&part.finish().0, WIDTH), bytes);
    assert_page(&report, &meta, end.as_ref(), bytes);
    Some(Shown { events, damaged: reader.damaged() })
}

fn assert_bounded(what: &str, length: usize, bytes: &[u8]) {
    let most = bytes.len() * MOST_TIMES + ROOM;
    assert!(length <= most, "{what}: {length} bytes of a trace of {}", bytes.len());
}

fn assert_format(target: Target, out: &[u8]) {
    match target {
        Target::Chrome => {
            let json: Result<serde_json::Value, _> = serde_json::from_slice(out);
            assert!(json.is_ok(), "chrome: {json:?}");
        }
        Target::Folded(_) => {
            let text = std::str::from_utf8(out).expect("folded stacks are text");
            for line in text.lines() {
                let time = line.rsplit_once(' ').and_then(|(_, time)| time.parse::<u64>().ok());
                assert!(time.is_some(), "folded: {line:?}");
            }
        }
        // tests/formats checks this with Perfetto's own schema
        Target::Perfetto => {}
        // and this with DuckDB
        Target::Parquet => {
            assert!(out.len() > 8 && out.starts_with(b"PAR1") && out.ends_with(b"PAR1"), "parquet")
        }
    }
}

/// Text for a terminal must not contain control characters.
fn assert_text(what: &str, text: &str, bytes: &[u8]) {
    assert_bounded(what, text.len(), bytes);
    let control = text.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(control, None, "{what}");
}

fn assert_page(report: &ReplayReport, meta: &Meta, end: Option<&End>, bytes: &[u8]) {
    let page = html(
        report,
        &Source { name: "<script>name", meta, end, missing: &["segment <b>7</b> is missing".to_owned()] },
    );
    assert_bounded("page", page.len(), bytes);
    if let Some((_, rest)) = page.split_once("<pre id=\"calls\" hidden>") {
        let text = rest.split_once("</pre>").expect("the calls end").0;
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        let calls: serde_json::Value = serde_json::from_str(&text).expect("calls are JSON");
        let texts = calls["texts"].as_array().map_or(0, Vec::len);
        for call in calls["calls"].as_array().expect("a list of calls") {
            let numbers = call.as_array().expect("a call is a list").iter().skip(6);
            assert!(numbers.into_iter().all(|n| n.as_u64().is_some_and(|n| n < texts as u64)), "{call}");
        }
    }
    let lower = page.to_ascii_lowercase();
    for ours in ["<script", "</script", "<style", "</style", "<meta http-equiv"] {
        assert_eq!(lower.matches(ours).count(), 1, "{ours} in the page");
    }
    for foreign in ["<img", "<iframe", "<object", "<embed", "<link", "<base", "<form"] {
        assert!(!lower.contains(foreign), "{foreign} in the page");
    }
}
