//! Any bytes from a client of the daemon's endpoint, in one piece and in several.
#![no_main]

use gpuprobe_output::http::fuzz::{answer, credentials};
use libfuzzer_sys::fuzz_target;

const STATUSES: [&str; 8] = ["200", "400", "404", "405", "413", "414", "431", "503"];

/// The status of an answer, if there is one.
fn status(answer: &[u8]) -> Option<String> {
    let head = std::str::from_utf8(answer.get(..12)?).expect("an answer begins with text");
    let (version, status) = head.split_once(' ').expect("an answer has a status");
    assert!(version.starts_with("HTTP/1."), "{head}");
    assert!(STATUSES.contains(&status), "{head}");
    Some(status.to_owned())
}

fuzz_target!(|bytes: &[u8]| {
    let whole = status(&answer(bytes, 1));
    let pieces = status(&answer(bytes, 3));
    // a client that closes its side may get no answer; if both deliveries get one, they are the same
    let is_same = whole == pieces || whole.is_none() || pieces.is_none();
    assert!(is_same, "the answer depends on how the request arrives: {whole:?} {pieces:?}");
    credentials(bytes);
});
