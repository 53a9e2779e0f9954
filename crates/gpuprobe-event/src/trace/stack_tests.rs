//! Stacks of calls: written once for each call site, and known at each of its calls.

use std::sync::Arc;

use super::tests::{free, launch, malloc};
use super::*;
use crate::*;

fn stack(frame: &str) -> Option<Arc<[String]>> {
    Some([frame.to_owned(), "main (a.c:9)".to_owned()].into())
}

fn events() -> Vec<Event> {
    let at = |site, frame, call: Call| Call { site: Some(SiteId(site)), stack: stack(frame), ..call };
    let allocated = Effect::Alloc(Allocation { bytes: 64, site: Some(SiteId(3)), ..Allocation::default() });
    let freed = Free {
        freed: Some(MemoryAmount { kind: Space::Unknown, allocations: 1, bytes: 64 }),
        site: Some(SiteId(3)),
        ..Free::default()
    };
    let calls = [
        at(1, "forward", launch()),
        at(1, "forward", launch()),
        at(2, "backward", launch()),
        Call { effect: allocated.clone(), stack: stack("load"), ..malloc() },
        Call { effect: allocated, stack: stack("load"), ..malloc() },
        // it has the call site of the allocation, and not its stack
        free(Effect::Free(freed)),
        at(1, "forward", launch()),
        // without a call site, every call has its stack
        launch(),
        launch(),
    ];
    calls.into_iter().map(|call| Event::Call(Box::new(call))).collect()
}

#[test]
fn a_stack_is_written_once_for_each_call_site_and_known_at_each_of_its_calls() {
    let mut writer = Writer::new(Vec::new(), Phases::Together, &Meta::default()).unwrap();
    events().iter().for_each(|event| writer.event(event).unwrap());
    let bytes = writer.finish(&End::default()).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let with_stack: Vec<_> = text.lines().map(|line| line.contains("\"stack\":")).collect();
    assert_eq!(
        with_stack,
        [false, true, false, true, true, false, false, false, true, true, false],
        "{text}"
    );
    assert!(text.contains(r#""site":2,"stack":["backward","main (a.c:9)"]}"#), "{text}");
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    for event in events() {
        assert_eq!(reader.read().unwrap(), Some(Line::Event(event)));
    }
}

#[test]
fn a_stack_whose_line_could_not_be_written_is_written_again() {
    let mut writer = Writer::new(Vec::new(), Phases::Together, &Meta::default()).unwrap();
    let events = events();
    assert!(!writer.event_if(&events[0], |_, _| Ok(false)).unwrap());
    writer.event(&events[1]).unwrap();
    let text = String::from_utf8(writer.finish(&End::default()).unwrap()).unwrap();
    assert!(text.contains(r#""stack":["forward""#), "{text}");
}
