//! The root of the fuzz target `settings` (see `fuzz/Cargo.toml`): arbitrary bytes as the daemon's settings file. It
//! is not part of gpuprobe; it lies here because it uses the module `cli` of this crate, which has no library.
#![no_main]
#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports, reason = "only the settings file is fuzzed, not the rest of the command line")]

mod cli;

use std::ffi::OsString;
use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::NamedTempFile;

static FILE: LazyLock<NamedTempFile> = LazyLock::new(|| NamedTempFile::new().expect("a file for the input"));

fuzz_target!(|bytes: &[u8]| {
    fs::write(FILE.path(), bytes).expect("room for the input");
    let words = ["gpuprobe".into(), "daemon".into(), "--config".into(), OsString::from(FILE.path())];
    if let Err(error) = cli::daemon_settings::read(&words) {
        let message = format!("{error:#}");
        assert!(!message.chars().any(char::is_control), "{message:?}");
    }
});
