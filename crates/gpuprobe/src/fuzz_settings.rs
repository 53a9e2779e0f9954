//! The root of the fuzz target `settings` (see `fuzz/Cargo.toml`): any bytes as the daemon's settings file. It is not part
//! of gpuprobe; it is here because the modules that it uses are.
#![no_main]
#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports, reason = "the command line has more than what a settings file can say")]

mod cli;
mod settings;

/// What the command line needs of modules that are not under test.
mod kernel {
    pub(crate) const DEVICES_ALONE: &str = "";

    #[derive(Clone, Debug, Default)]
    pub(crate) struct Chosen;
}

mod watch {
    pub(crate) const RESCAN_SECONDS: u64 = 10;
}

use std::ffi::OsString;
use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::NamedTempFile;

static FILE: LazyLock<NamedTempFile> = LazyLock::new(|| NamedTempFile::new().expect("a file for the input"));

fuzz_target!(|bytes: &[u8]| {
    fs::write(FILE.path(), bytes).expect("room for the input");
    let words = ["gpuprobe".into(), "daemon".into(), "--config".into(), OsString::from(FILE.path())];
    if let Err(error) = settings::read(&words) {
        let message = format!("{error:#}");
        assert!(!message.chars().any(char::is_control), "{message:?}");
    }
});
