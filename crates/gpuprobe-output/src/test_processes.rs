//! Processes for unit tests.

use gpuprobe_analysis::{ProcessInfo, ProcessSnapshot};
use gpuprobe_event::Tgid;
use gpuprobe_event::counters::ProcessKey;

/// A running process without figures.
pub(crate) fn process(pid: u32, name: &str) -> ProcessSnapshot {
    let key = ProcessKey { tgid: Tgid(pid), instance: 1 };
    let info = ProcessInfo { name: name.to_owned(), ..ProcessInfo::default() };
    ProcessSnapshot::new(key, &info, &[], None)
}
