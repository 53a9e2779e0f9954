//! Effects of calls, written and read back, and as in traces of earlier versions.

use std::sync::Arc;

use super::tests::{amount, context_end, copy, free, graph_launch, launch, malloc, read, read_back};
use super::*;
use crate::counters::{CopyDirection, HostMemory};
use crate::*;

fn line(call: &Call) -> String {
    let mut line = Vec::new();
    Lines::default().event(&Event::Call(Box::new(call.clone())), &mut line);
    String::from_utf8(line).unwrap()
}

/// Calls with the fields of their effects.
fn calls_with_fields() -> Vec<(Call, &'static str)> {
    let allocation = Allocation {
        bytes: 64,
        address: Some(0x10),
        kind: Space::Pool,
        gpu: Some(3),
        site: Some(SiteId(7)),
        replaced: Some(Replaced { bytes: 50, kind: Space::Pool }),
        live_bytes: Some(4096),
    };
    let free_of =
        |address, freed| free(Effect::Free(Free { address: Some(address), freed, ..Free::default() }));
    let captured = Transfer { captured: true, ..Transfer::new(CopyDirection::DeviceToHost, false) };
    let driver = Some(DeviceTime { calls: 2, ns: 1500 });
    let on_two = Effect::Launch(Launch { kernels: 2, ..Launch::default() });
    vec![
        (
            Call { effect: Effect::Alloc(allocation), ..malloc() },
            r#","size":64,"replaced":50,"live":4096,"gpu":3,"ptr":"0x10","site":7,"kind":"pool"}"#,
        ),
        (free_of(0x10, None), r#","ptr":"0x10"}"#),
        (free_of(0x10, Some(amount(Space::Unknown, 1, 64))), r#","freed":64,"ptr":"0x10"}"#),
        (
            free_of(0x10, Some(amount(Space::Vmm, 2, 64))),
            r#","freed":64,"freed_allocations":2,"ptr":"0x10","kind":"vmm"}"#,
        ),
        (
            context_end(Effect::ContextEnd(vec![amount(Space::Device, 1, 8), amount(Space::Unknown, 2, 5)])),
            r#","freed":13,"freed_with_context":{"device":[1,8],"unknown":[2,5]}}"#,
        ),
        (copy(captured), r#","kind":"D2H","async":false,"captured":true}"#),
        (copy(Transfer::new(CopyDirection::Unknown, true)), r#","async":true}"#),
        (Call { effect: on_two, stack: None, ..launch() }, r#","parent":7,"kernels":2,"stream":"0x0"}"#),
        (Call { driver, ..graph_launch() }, r#","stream":"0x30","driver_calls":2,"driver_us":1.500}"#),
        (
            Call { nested: true, parent: Some(3), depth: 1, effect: Effect::None, ..malloc() },
            r#","parent":3,"nested":true}"#,
        ),
        (
            Call { weight: 8, parent: Some(3), depth: 1, effect: Effect::None, ..malloc() },
            r#","parent":3,"weight":8}"#,
        ),
    ]
}

#[test]
fn effects_are_written_and_read_back() {
    for (call, fields) in calls_with_fields() {
        let line = line(&call);
        assert!(line.ends_with(&format!("{fields}\n")), "{line}");
        assert_eq!(read_back(call.clone()), call, "{line}");
    }
}

/// Reads a call with these fields from a trace of this format.
fn of_format(format: u32, name: &str, fields: &str) -> Call {
    let text = format!(
        "{{\"type\":\"meta\",\"format\":{format}}}\n{{\"event_id\":1,\"ts\":1,\"type\":\"memory\",\"name\":\"{name}\",\
         \"phase\":\"X\",\"pid\":1,\"tid\":1,\"process\":\"\",\"duration_us\":1,\"api\":\"driver\",\"ret\":0{fields}}}\n"
    );
    let Some(Event::Call(call)) = read(&text).0.pop() else { panic!("it is a call: {text}") };
    *call
}

#[test]
fn the_freed_bytes_of_an_allocation_in_an_old_trace_are_replaced_bytes() {
    let call = of_format(1, "cuMemAlloc_v2", r#","size":64,"freed":50,"ptr":"0x10","kind":"device""#);
    assert_eq!(
        call.effect.allocation().map(|a| (a.bytes, a.replaced.map(|of| of.bytes))),
        Some((64, Some(50)))
    );
    assert_eq!(call.effect.freed(), None);
    let context = of_format(1, "cuCtxDestroy_v2", r#","freed":50"#);
    assert_eq!(
        context.effect.freed(),
        Some(&amount(Space::Unknown, 1, 50)),
        "the kinds were not always recorded"
    );
}

#[test]
fn in_an_old_trace_memory_inside_any_call_is_nested() {
    let nested = |format, name, fields| of_format(format, name, fields).nested;
    for name in ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostRegister_v2", "cuMemHostUnregister"] {
        assert!(nested(1, name, r#","parent":9"#), "{name}");
        assert!(!nested(1, name, ""), "{name}");
        assert!(!nested(2, name, r#","parent":9"#), "{name}");
        assert!(nested(2, name, r#","parent":9,"nested":true"#), "{name}");
    }
    assert!(!nested(1, "cuLaunchKernel", r#","parent":9"#), "the enclosing calls decide");
}

#[test]
fn unknown_words_are_read_as_unknown() {
    let kind = |fields| of_format(2, "cuMemAlloc_v2", fields).effect.allocation().map(|a| a.kind);
    assert_eq!(kind(r#","size":1,"kind":"tape""#), Some(Space::Unknown));
    assert_eq!(kind(r#","size":1,"kind":7"#), Some(Space::Unknown));
    let copy = |fields| of_format(2, "cuMemcpyAsync", fields).effect.transfer().unwrap().clone();
    for fields in [r#","kind":"Default""#, r#","kind":"X2Y","host":"paper""#, ""] {
        let Transfer { direction, host, is_async, bytes, .. } = copy(fields);
        assert_eq!((direction, host), (CopyDirection::Unknown, HostMemory::Unknown), "{fields}");
        assert_eq!((is_async, bytes), (true, None), "the name says that it is asynchronous");
    }
    assert_eq!(copy(r#","kind":"D2D","size":5"#).host, HostMemory::Nothing);
}

#[test]
fn fields_and_losses_of_earlier_formats_are_read_by_their_earlier_names() {
    let ended = |fields| of_format(2, "cuCtxDestroy_v2", fields).effect;
    let expected = Effect::ContextEnd(vec![amount(Space::Device, 1, 8)]);
    assert_eq!(ended(r#","ended":{"device":[1,8]}"#), expected);
    assert_eq!(ended(r#","freed_with_context":{"device":[1,8]}"#), expected);
    for (earlier, now) in [
        ("work_full", LossCause::GpuOpsFull),
        ("unread_work", LossCause::UnreadGpuOp),
        ("gone_before_attach", LossCause::ExitedBeforeAttach),
    ] {
        assert_eq!(LossCause::from_name(earlier), Some(now));
    }
}

#[test]
fn the_kernels_of_a_graph_are_written_once_and_known_at_each_of_its_launches() {
    let launch = |graph: u64, contents: &Arc<GraphContents>| {
        let contents = Some(Arc::clone(contents));
        let launch = GraphLaunch {
            kernels: Some(4),
            graph: Some(graph),
            contents,
            disabled: 1,
            conditional: 2,
            incomplete: true,
            captured: false,
        };
        Event::Call(Box::new(Call { effect: Effect::GraphLaunch(launch), ..graph_launch() }))
    };
    let named = |name: &str| Some(Arc::from(name));
    let add = Arc::new(GraphContents::of([(named("add"), 1), (None, 1), (named("gemm"), 2)]));
    let scale = Arc::new(GraphContents::of([(named("scale"), 4)]));
    let more = Arc::new(GraphContents::of([(named("add"), 1), (named("norm"), 1), (named("gemm"), 2)]));
    let events = [launch(1, &add), launch(1, &add), launch(2, &scale), launch(1, &add), launch(1, &more)];
    let mut writer = Writer::new(Vec::new(), Phases::Together, &Meta::default()).unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    let bytes = writer.finish(&End::default()).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let with_list: Vec<_> = text.lines().map(|line| line.contains("graph_kernels")).collect();
    assert_eq!(with_list, [false, true, false, true, false, true, false]);
    assert!(text.contains(
        r#""kernels":4,"graph":1,"disabled":1,"conditional":2,"incomplete":true,"stream":"0x30","graph_kernels":[{"kernel":"gemm","count":2},{"kernel":"add","count":1},{"count":1}]}"#
    ), "{text}");
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    for event in events {
        assert_eq!(reader.read().unwrap(), Some(Line::Event(event)));
    }
}

#[test]
fn the_kernels_of_a_graph_are_bounded() {
    let many = (0..5000).map(|n| (Some(Arc::from(format!("kernel_{n}"))), 1));
    let contents = GraphContents::of(many);
    assert_eq!(contents.kernels.len(), GraphContents::MOST_KERNELS + 1);
    assert_eq!(contents.kernels.iter().map(|(_, n)| n).sum::<u64>(), 5000);
    assert_eq!(contents.kernels.last(), Some(&(None, 5000 - GraphContents::MOST_KERNELS as u64)));
    let long = (0..200).map(|n| (Some(Arc::from(format!("{n}{}", "x".repeat(4096)))), u64::MAX));
    let contents = GraphContents::of(long);
    assert!(contents.kernels.len() < 150 && !contents.is_named());
}
