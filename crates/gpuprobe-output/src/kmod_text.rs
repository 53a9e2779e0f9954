//! Texts about the NVIDIA kernel module (time inside it, unified memory) that several reports share.

use gpuprobe_analysis::{KernelModuleSummary, Layer};

use crate::units::{bytes, count, duration};

/// A duration; `-` if there is none.
pub(crate) fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), duration)
}

/// The share of a function's time that was spent in the NVIDIA kernel module.
pub(crate) fn share(layer: &Layer) -> String {
    per_cent(layer.driver.ns, layer.total_ns)
}

/// A share with one decimal: `12.5%`.
pub(crate) fn per_cent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// The command with most of a function's time in the NVIDIA kernel module, and its share of that time.
pub(crate) fn top_command(layer: &Layer, name: impl Fn(&str) -> String) -> String {
    match layer.commands.first() {
        Some(top) => format!("{} {}", per_cent(top.spent.ns, layer.driver.ns), name(&top.command)),
        None => "-".to_owned(),
    }
}

/// System calls into the NVIDIA kernel module outside of CUDA calls.
pub(crate) fn outside(driver: &KernelModuleSummary) -> impl Iterator<Item = String> {
    let parts = [(driver.outside, "outside of CUDA calls"), (driver.waited, "waiting outside of CUDA calls")];
    parts.into_iter().filter(|(spent, _)| spent.calls > 0).map(|(spent, what)| {
        let calls = count(spent.calls, "system call", "system calls");
        format!("{what}: {calls}, {}", duration(spent.ns))
    })
}

/// Titles of the table of unified memory, which has a row for each process.
pub(crate) const UNIFIED: [&str; 9] = [
    "process",
    "CPU faults",
    "GPU faults",
    "to GPUs",
    "bytes",
    "to the host",
    "bytes",
    "between GPUs",
    "bytes",
];

pub(crate) fn unified(driver: &KernelModuleSummary) -> impl Iterator<Item = Vec<String>> {
    driver.unified.iter().map(|process| {
        let faults = process.totals.faults().map(|(_, faults)| faults.to_string());
        let moved = process.totals.moved();
        let moved = moved.iter().flat_map(|(_, moved)| [moved.migrations.to_string(), bytes(moved.bytes)]);
        [process.pid.to_string()].into_iter().chain(faults).chain(moved).collect()
    })
}

/// The total of scheduler functions, context switches and faults; `None` if none was watched.
pub(crate) fn scheduler(driver: &KernelModuleSummary) -> Option<String> {
    let spent = driver.scheduler()?;
    let calls = count(spent.calls, "call", "calls");
    Some(format!("scheduler functions of the driver: {calls}, {} of overhead", duration(spent.ns)))
}
