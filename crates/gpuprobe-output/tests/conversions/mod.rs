//! Conversions of a whole trace.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod parquet;
mod wire;

use std::collections::HashMap;

use gpuprobe_analysis::Replay;
use gpuprobe_event::trace::{Line, Meta, Reader};
use gpuprobe_output::report::{Source, html};
use gpuprobe_output::{Conversion, Converted, SummaryOptions, Target, Weight, report_json, summary};

use super::check;
use super::samples::collective_calls::collective_events;
use wire::{Field, decode};

const SAMPLE: &str = include_str!("../../../../tests/traces/sample.jsonl");

pub(crate) fn convert(trace: &str, target: Target) -> (Vec<u8>, Converted, u64) {
    let mut reader = Reader::new(trace.as_bytes()).unwrap();
    let mut out = Vec::new();
    let mut conversion = Conversion::new(target, reader.meta(), &mut out).unwrap();
    let mut end = None;
    while let Some(line) = reader.read().unwrap() {
        match line {
            Line::Event(event) => conversion.feed(event).unwrap(),
            Line::End(last) => end = Some(last),
        }
    }
    let converted = conversion.finish(end.as_ref()).unwrap();
    (out, converted, reader.damaged())
}

fn text(target: Target) -> String {
    let (out, converted, damaged) = convert(SAMPLE, target);
    assert_eq!(converted, Converted { calls: 21, unfinished: 2, ..Converted::default() });
    assert_eq!(damaged, 1);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_trace_for_chrome() {
    check("convert_chrome.json", &text(Target::Chrome));
}

#[test]
fn a_trace_as_folded_stacks() {
    check("convert_folded.txt", &text(Target::Folded(Weight::Time)));
}

/// Two functions launch, one of them inside a hooked function, and one waits. A call has the stack of its call site
/// from the first line that has it.
const WITH_STACKS: &str = r#"{"type":"meta","format":3}
{"event_id":2,"ts":0.001,"type":"launch","name":"cuLaunchKernel","phase":"X","pid":7,"tid":7,"process":"app","duration_us":2.0,"api":"driver","ret":0,"parent":1,"nested":true}
{"event_id":1,"ts":0.001,"type":"launch","name":"cudaLaunchKernel","phase":"X","pid":7,"tid":7,"process":"app","duration_us":5.0,"api":"runtime","ret":0,"site":1,"stack":["forward (a.c:3)","main (a.c:9)"]}
{"event_id":3,"ts":0.002,"type":"launch","name":"cudaLaunchKernel","phase":"X","pid":7,"tid":7,"process":"app","duration_us":5.0,"api":"runtime","ret":0,"site":1}
{"event_id":5,"ts":0.003,"type":"launch","name":"cudaLaunchKernel","phase":"X","pid":7,"tid":7,"process":"app","duration_us":5.0,"api":"runtime","ret":0,"parent":4,"site":2,"stack":["gemm (b.c:1)","backward (a.c:5)","main (a.c:9)"]}
{"event_id":4,"ts":0.003,"type":"userspace","name":"gemm","phase":"X","pid":7,"tid":7,"process":"app","duration_us":9.0,"api":"hook","class":"other","ret":0}
{"event_id":7,"ts":0.004,"type":"sync","name":"cuCtxSynchronize","phase":"X","pid":7,"tid":7,"process":"app","duration_us":900.0,"api":"driver","ret":0,"parent":6}
{"event_id":6,"ts":0.004,"type":"sync","name":"cudaDeviceSynchronize","phase":"X","pid":7,"tid":7,"process":"app","duration_us":1000.0,"api":"runtime","ret":0,"site":3,"stack":["wait (a.c:7)","main (a.c:9)"]}
{"event_id":8,"ts":0.006,"type":"memory","name":"cudaMalloc","phase":"X","pid":7,"tid":7,"process":"app","duration_us":5.0,"api":"runtime","ret":0,"size":64,"site":1,"kind":"device"}
"#;

#[test]
fn folded_stacks_count_what_was_asked_for() {
    let folded = |weight| {
        let (out, converted, damaged) = convert(WITH_STACKS, Target::Folded(weight));
        assert_eq!((converted.calls, damaged), (8, 0));
        String::from_utf8(out).unwrap()
    };
    let launches = "\
app;main thread;main (a.c:9);backward (a.c:5);gemm (b.c:1);cudaLaunchKernel 1
app;main thread;main (a.c:9);forward (a.c:3);cudaLaunchKernel 2
";
    assert_eq!(folded(Weight::Launches), launches);
    let waiting = "app;main thread;main (a.c:9);wait (a.c:7);cudaDeviceSynchronize 1000\n";
    assert_eq!(folded(Weight::Waiting), waiting);
    let allocated = "app;main thread;main (a.c:9);forward (a.c:3);cudaMalloc 64\n";
    assert_eq!(folded(Weight::Allocated), allocated);
    let calls = folded(Weight::Calls);
    let number = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(calls.lines().map(number).sum::<u64>(), 8);
    assert!(calls.contains("app;main thread;main (a.c:9);forward (a.c:3);cudaLaunchKernel;cuLaunchKernel 1"));
    assert!(folded(Weight::Time).contains(";wait (a.c:7);cudaDeviceSynchronize 100\n"));
}

#[test]
fn the_summary_and_the_page_show_the_call_sites_of_launches_and_waits() {
    let mut reader = Reader::new(WITH_STACKS.as_bytes()).unwrap();
    let mut replay = Replay::with_calls();
    while let Some(line) = reader.read().unwrap() {
        let Line::Event(event) = line else { continue };
        replay.feed(event);
    }
    let report = replay.finish(None);
    check("summary_stacks.txt", &summary(&report.summary, &SummaryOptions::default()));
    let source = Source { name: "trace", meta: reader.meta(), end: None, missing: &[] };
    let page = html(&report, &source);
    for shown in
        ["<h2>Launches, by call site</h2>", "title=\"gemm (b.c:1)\"", "<h2>Waiting, by call site</h2>"]
    {
        assert!(page.contains(shown), "{shown}");
    }
    // each stack once, for all the calls of its call site
    assert_eq!(page.matches("forward (a.c:3)\\nmain (a.c:9)").count(), 1);
}

#[test]
fn the_page_and_the_json_show_the_ranks_that_differ() {
    let mut replay = Replay::default();
    collective_events().into_iter().for_each(|event| replay.feed(event));
    let report = replay.finish(None);
    let meta = Meta::default();
    let source = Source { name: "trace", meta: &meta, end: None, missing: &[] };
    let page = html(&report, &source);
    for shown in [
        "<h2>Collectives</h2>",
        "rank 5 (pid 4005) differs at collective 2: ncclAllGather of 4,096 float32 where 7 ranks have",
        "title=\"commId 0xfeed0001\">communicator of 8 ranks</td><td>3</td><td>4003 train&lt;b&gt;",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
    let json: serde_json::Value = serde_json::from_str(&report_json(&report.summary, &source, None)).unwrap();
    let communicator = &json["summary"]["collectives"]["communicators"][0];
    assert_eq!((&communicator["id"], &communicator["size"]), (&"0xfeed0001".into(), &8.into()));
    assert_eq!(communicator["ranks"][3]["point_to_point"]["ncclSend"], 1);
    assert_eq!(communicator["comparison"]["behind"][0]["pid"], 4003);
    assert_eq!(communicator["comparison"]["next"]["datatype"], "float32");
    assert_eq!(communicator["comparison"]["differing"][0]["made"]["function"], "ncclAllGather");
}

/// In Perfetto's format each frame is written once, and in Chrome's each stack.
#[test]
fn a_stack_is_written_once_for_chrome_and_referred_to_by_each_call_for_perfetto() {
    let (out, ..) = convert(WITH_STACKS, Target::Chrome);
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let at_first_site: Vec<_> = events.iter().filter(|event| event["args"]["site"] == 1).collect();
    let with_stack = at_first_site.iter().filter(|event| event["args"]["stack"][0] == "forward (a.c:3)");
    assert_eq!((at_first_site.len(), with_stack.count()), (3, 1));
    let (out, ..) = convert(WITH_STACKS, Target::Perfetto);
    let stack = r#"site=1 stack=["forward (a.c:3)"]["main (a.c:9)"]"#;
    assert_eq!(described(&out).matches(stack).count(), 2, "{}", described(&out));
    assert_eq!(out.windows(15).filter(|text| text == b"forward (a.c:3)").count(), 1);
}

#[test]
fn a_trace_for_perfetto() {
    let (out, converted, _) = convert(SAMPLE, Target::Perfetto);
    assert_eq!(converted.calls, 21);
    check("convert_perfetto.txt", &described(&out));
}

#[test]
fn a_truncated_trace_is_converted_to_valid_chrome_json() {
    let first = SAMPLE.find('\n').unwrap() + 1;
    let cuts = (first..SAMPLE.len()).filter(|at| SAMPLE.is_char_boundary(*at)).step_by(7);
    for cut in cuts {
        let (out, converted, _) = convert(&SAMPLE[..cut], Target::Chrome);
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(json["otherData"]["end"].is_null());
        let events = json["traceEvents"].as_array().unwrap();
        let slices = events.iter().filter(|event| event["ph"] == "X").count() as u64;
        assert_eq!(slices, converted.calls, "cut at {cut}");
    }
}

#[test]
fn all_perfetto_slices_end_if_the_trace_was_truncated() {
    for (cut, _) in SAMPLE.match_indices('\n') {
        let (out, ..) = convert(&SAMPLE[..=cut], Target::Perfetto);
        let mut open: HashMap<u64, i64> = HashMap::new();
        for event in events(&out) {
            *open.entry(event.track).or_default() += match event.kind {
                1 => 1,
                2 => -1,
                _ => 0,
            };
            assert!(open[&event.track] >= 0);
        }
        assert!(open.values().all(|depth| *depth == 0), "cut at {cut}");
    }
}

/// A trace of `trace -r`, which records only that calls began.
#[test]
fn calls_without_a_return_become_instants() {
    let begun = SAMPLE.replace("\"phase\":\"X\"", "\"phase\":\"B\"").replace("\"unfinished\":true,", "");
    let (chrome, ..) = convert(&begun, Target::Chrome);
    let json: serde_json::Value = serde_json::from_slice(&chrome).unwrap();
    let of =
        |phase: &str| json["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == phase).count();
    assert_eq!((of("X"), of("i")), (0, 21 + 6));
    let (folded, ..) = convert(&begun, Target::Folded(Weight::Time));
    assert!(folded.is_empty());
    let (perfetto, ..) = convert(&begun, Target::Perfetto);
    assert!(
        events(&perfetto).iter().all(|event| event.kind == 3 || event.kind == 4),
        "only instants and counters"
    );
}

struct Event<'a> {
    at_ns: u64,
    kind: u64,
    track: u64,
    packet: Vec<Field<'a>>,
    event: Vec<Field<'a>>,
}

fn events(out: &[u8]) -> Vec<Event<'_>> {
    let mut events = Vec::new();
    for packet in decode(out) {
        let packet = decode(packet.bytes());
        let Some(event) = packet.iter().find(|field| field.number == 11) else { continue };
        let event = decode(event.bytes());
        let number =
            |fields: &[Field<'_>], number| fields.iter().find(|f| f.number == number).map_or(0, Field::uint);
        let (kind, track, at_ns) = (number(&event, 9), number(&event, 11), number(&packet, 8));
        events.push(Event { at_ns, kind, track, packet, event });
    }
    events
}

/// The packets as text: tracks and the events on them.
pub(crate) fn described(out: &[u8]) -> String {
    let mut lines = Vec::new();
    for packet in decode(out) {
        let packet = decode(packet.bytes());
        if let Some(track) = packet.iter().find(|field| field.number == 60) {
            lines.push(format!(
                "track {}",
                decode(track.bytes()).iter().map(Field::described).collect::<String>()
            ));
        }
    }
    let mut names: HashMap<(u32, u64), String> = HashMap::new();
    for event in events(out) {
        let interned = event.packet.iter().filter(|field| field.number == 12);
        for name in interned.flat_map(|field| decode(field.bytes())) {
            let [number, text] = decode(name.bytes())[..] else { panic!("a number and a name") };
            names.insert((name.number, number.uint()), text.text().escape_debug().to_string());
        }
        let of = |kind: u32, field: u32| {
            let number = event.event.iter().find(|f| f.number == field)?.uint();
            Some(names[&(kind, number)].as_str())
        };
        let (category, name) = (of(1, 3).unwrap_or_default(), of(2, 10).unwrap_or_default());
        let kind = ["", "begin", "end", "instant", "counter"][event.kind as usize];
        let mut line = format!("{} {kind} on {} {category} {name}", event.at_ns, event.track);
        for field in &event.event {
            match field.number {
                4 => line += &annotation(&decode(field.bytes()), &names),
                30 => line += &field.uint().to_string(),
                47 => line += &format!(" flow {}", field.uint()),
                _ => {}
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}

fn annotation(fields: &[Field<'_>], names: &HashMap<(u32, u64), String>) -> String {
    let mut out = String::new();
    for field in fields {
        match field.number {
            1 => out += &format!(" {}=", names[&(3, field.uint())]),
            2..=4 => out += &field.uint().to_string(),
            5 => out += &f64::from_bits(field.uint()).to_string(),
            6 => out += &format!("{:?}", field.text()),
            7 => out += &format!("{:#x}", field.uint()),
            11 => out += &format!("{{{}}}", annotation(&decode(field.bytes()), names).trim_start()),
            12 => out += &format!("[{}]", annotation(&decode(field.bytes()), names)),
            17 => out += &format!("\"{}\"", names[&(29, field.uint())]),
            other => panic!("annotation has field {other}"),
        }
    }
    out
}
