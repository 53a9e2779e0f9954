//! Any bytes as the answer of a receiver of OTLP, and as a headers file.
#![no_main]

use gpuprobe_output::otlp::{Headers, PartialSuccess};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let partial = PartialSuccess::of(bytes);
    assert!(i64::try_from(partial.rejected).is_ok(), "{partial:?}");
    assert!(partial.message.len() <= 200, "{partial:?}");
    if let Err(error) = Headers::parse(&String::from_utf8_lossy(bytes)) {
        assert!(error.starts_with("line ") && error.lines().count() == 1, "{error}");
    }
});
