//! Any bytes as records of the rings: decoded, written as a trace, and read again.
#![no_main]

use gpuprobe_capture::fuzz::decode;
use gpuprobe_event::trace::{End, Meta, Phases, Reader, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let decoded = decode(bytes);
    assert!(decoded.undecodable <= decoded.records);
    let mut writer = Writer::new(Vec::new(), Phases::Together, &Meta::default()).expect("a buffer takes all");
    for event in &decoded.events {
        writer.event(event).expect("a buffer takes all");
    }
    let trace = writer.finish(&End::default()).expect("a buffer takes all");
    let mut reader = Reader::new(trace.as_slice()).expect("it is a trace");
    let mut lines = 0;
    while reader.read().expect("bytes can be read").is_some() {
        lines += 1;
    }
    // the reader treats times that do not fit other programs as damage; every other line is read back
    assert_eq!(lines + reader.damaged(), decoded.events.len() as u64 + 1);
});
