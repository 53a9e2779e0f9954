//! What was asked of the driver, in words that every view has.

use gpuprobe_analysis::{DriverSummary, Layer};

use crate::units::{bytes, count, duration};

/// A time, where there is one.
pub(crate) fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), duration)
}

/// How much of a function's time was spent in the driver.
pub(crate) fn share(layer: &Layer) -> String {
    per_cent(layer.driver.ns, layer.total_ns)
}

fn per_cent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// The command that most of a function's time in the driver was spent in, and how much of it.
pub(crate) fn top_command(layer: &Layer, name: impl Fn(&str) -> String) -> String {
    match layer.commands.first() {
        Some(top) => format!("{} {}", per_cent(top.spent.ns, layer.driver.ns), name(&top.command)),
        None => "-".to_owned(),
    }
}

/// What was asked of the driver outside of any call of CUDA.
pub(crate) fn outside(driver: &DriverSummary) -> impl Iterator<Item = String> {
    let parts = [(driver.outside, "outside of calls"), (driver.waited, "waiting outside of calls")];
    parts.into_iter().filter(|(spent, _)| spent.calls > 0).map(|(spent, what)| {
        let calls = count(spent.calls, "call of the kernel", "calls of the kernel");
        format!("{what}: {calls}, {}", duration(spent.ns))
    })
}

/// What became of unified memory: titles, and a row for each process.
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

pub(crate) fn unified(driver: &DriverSummary) -> impl Iterator<Item = Vec<String>> {
    driver.unified.iter().map(|process| {
        let faults = process.totals.faults().map(|(_, faults)| faults.to_string());
        let moved = process.totals.moved();
        let moved = moved.iter().flat_map(|(_, moved)| [moved.migrations.to_string(), bytes(moved.bytes)]);
        [process.pid.to_string()].into_iter().chain(faults).chain(moved).collect()
    })
}

/// What functions of the scheduler, context switches and faults took together, where any was watched.
pub(crate) fn scheduler(driver: &DriverSummary) -> Option<String> {
    let spent = driver.scheduler()?;
    let calls = count(spent.calls, "call", "calls");
    Some(format!("scheduler functions of the driver: {calls}, {} of overhead", duration(spent.ns)))
}
