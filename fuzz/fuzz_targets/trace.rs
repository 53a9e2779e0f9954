//! Any bytes as a trace file, shown in every format.
#![no_main]

#[path = "../../crates/gpuprobe-output/tests/shown/mod.rs"]
mod shown;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(shown) = shown::shown(bytes) {
        let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
        assert!(shown.events + shown.damaged <= lines);
    }
});
