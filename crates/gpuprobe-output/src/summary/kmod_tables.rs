//! The sections about the NVIDIA kernel module: its commands, and its share of each function's time.

use gpuprobe_analysis::distribution::Bucket;
use gpuprobe_analysis::{CommandSummary, KernelModuleSummary, Layer, SummaryReport};

use super::layout::{NameTable, SummaryOptions, heading, line, name};
use crate::curve::{self, Strokes};
use crate::kmod_text::{UNIFIED, outside, scheduler, share, time, top_command, unified};
use crate::units::{count, duration};

/// The second block of the classic runner, byte for byte. Empty if the NVIDIA kernel module was not watched.
pub(super) fn classic(report: &SummaryReport) -> String {
    let driver = &report.driver;
    // calls without a duration are tracepoints, which do not mean that the module was watched
    if driver.layers.is_empty() && driver.commands.iter().all(|command| command.calls == command.unfinished) {
        return String::new();
    }
    let ioctls = driver.calls_of("ioctl");
    let time = if report.only_entries {
        "not known".to_owned()
    } else {
        format!("{}.{:03} ms", ioctls.ns / 1_000_000, ioctls.ns / 1000 % 1000)
    };
    let mut out =
        format!("KERNEL SPACE (nvidia.ko):\n  IOCTL calls: {}\n  Total IOCTL time: {time}\n", ioctls.calls);
    if let Some(scheduler) = driver.scheduler() {
        line(&mut out, format_args!("Scheduler calls: {}", scheduler.calls));
    }
    out.push('\n');
    out
}

pub(super) fn tables(out: &mut String, driver: &KernelModuleSummary, options: &SummaryOptions) {
    commands(out, &driver.commands, options);
    layers(out, &driver.layers, options);
    for text in outside(driver).chain(scheduler(driver)) {
        line(out, format_args!("{text}"));
    }
    histograms(out, &driver.commands, options);
    if !driver.unified.is_empty() {
        // the bytes of a migration are in the column of its number
        let titles: Vec<_> = UNIFIED.into_iter().filter(|title| *title != "bytes").collect();
        let mut table = NameTable::new(&titles, &[], &[]);
        for row in unified(driver) {
            let (counts, moved) = row.split_at(3.min(row.len()));
            let moved = moved.chunks(2).map(|pair| match pair.first().map(String::as_str) {
                Some("0") => "-".to_owned(),
                _ => pair.join(", "),
            });
            table.push(counts.iter().cloned().chain(moved).collect());
        }
        heading(out, "unified memory, faults and migrations");
        table.write(out, options);
    }
}

/// The distribution of the time of each probed Linux kernel function.
fn histograms(out: &mut String, commands: &[CommandSummary], options: &SummaryOptions) {
    let functions = || commands.iter().filter(|command| command.is_function() && !command.latency.is_empty());
    if functions().next().is_none() {
        return;
    }
    let titles = ["time of Linux kernel function", "calls", "from", "by powers of two", "to"];
    let mut table = NameTable::new(&titles, &["by powers of two"], &[]);
    for command in functions().take(options.most()) {
        let (from_ns, counts, to_ns) = powers(&command.latency);
        let shown = curve::line(&counts, counts.len(), Strokes::Ascii);
        let (function, calls) = (name(&command.command), command.calls.to_string());
        table.push(vec![function, calls, duration(from_ns), shown, duration(to_ns)]);
    }
    out.push('\n');
    table.write(out, options);
    let more = functions().skip(options.most()).count();
    if more > 0 {
        line(out, format_args!("and {} with less time", count(more as u64, "function", "functions")));
    }
}

/// The lower bound of the first power of two with a value, the number of values in each power of two from there on, and
/// the upper bound of the last.
fn powers(buckets: &[Bucket]) -> (u64, Vec<u64>, u64) {
    let power = |bucket: &Bucket| bucket.from.checked_ilog2().unwrap_or(0);
    let least = buckets.iter().map(power).min().unwrap_or(0);
    let greatest = buckets.iter().map(power).max().unwrap_or(0);
    let mut counts = vec![0_u64; (greatest - least + 1) as usize];
    for bucket in buckets {
        let count = &mut counts[(power(bucket) - least) as usize];
        *count = count.saturating_add(bucket.count);
    }
    (1 << least, counts, 1_u64.checked_shl(greatest + 1).unwrap_or(u64::MAX))
}

fn commands(out: &mut String, commands: &[CommandSummary], options: &SummaryOptions) {
    if commands.is_empty() {
        return;
    }
    // commands that only wait are sorted to the end
    let working = commands.partition_point(|command| !command.waits());
    let (working, waiting) = commands.split_at(working);
    let (top, more) = working.split_at(working.len().min(options.most()));
    let titles = [
        "command of the driver (NVIDIA kernel module)",
        "calls",
        "failed",
        "total",
        "mean",
        "p50",
        "p99",
        "max",
        "device",
    ];
    let mut table = NameTable::new(&titles, &["device"], &["p50", "device", "mean", "p99"]);
    for command in top.iter().chain(waiting.iter().take(options.few())) {
        let returned = command.calls > command.unfinished;
        table.push(vec![
            in_short(&command.command, options),
            command.calls.to_string(),
            if command.failures > 0 { command.failures.to_string() } else { "-".to_owned() },
            time(returned.then_some(command.total_ns)),
            time(command.mean_ns()),
            time(command.p50_ns),
            time(command.p99_ns),
            time(returned.then_some(command.max_ns)),
            command.device.as_deref().map_or_else(|| "-".to_owned(), name),
        ]);
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        let calls = more.iter().fold(0, |sum: u64, command| sum.saturating_add(command.calls));
        let ns = more.iter().fold(0, |sum: u64, command| sum.saturating_add(command.total_ns));
        let (others, calls) =
            (count(more.len() as u64, "other command", "other commands"), count(calls, "call", "calls"));
        line(out, format_args!("and {others}: {calls}, {}", duration(ns)));
    }
}

fn layers(out: &mut String, layers: &[Layer], options: &SummaryOptions) {
    if layers.is_empty() {
        return;
    }
    let (shown, more) = layers.split_at(layers.len().min(options.most()));
    let titles = [
        "time in user space and in the driver",
        "calls",
        "in driver",
        "time",
        "user space",
        "driver",
        "share",
        "top command",
    ];
    let mut table = NameTable::new(&titles, &["top command"], &["top command", "in driver", "user space"]);
    for layer in shown {
        table.push(vec![
            name(&layer.name),
            layer.calls.to_string(),
            layer.entered.to_string(),
            duration(layer.total_ns),
            duration(layer.user_ns()),
            duration(layer.driver.ns),
            share(layer),
            top_command(layer, |command| in_short(command, options)),
        ]);
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        let functions = count(more.len() as u64, "function", "functions");
        line(out, format_args!("and {functions} with less time in the driver"));
    }
}

/// Only the part in parentheses of `NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)`: it is unique among commands.
fn in_short(command: &str, options: &SummaryOptions) -> String {
    let inner = command.strip_suffix(')').and_then(|rest| rest.split_once('(')).map(|(_, inner)| inner);
    name(inner.filter(|inner| !options.full_names && !inner.starts_with("0x")).unwrap_or(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_powers_of_two_from_the_first_to_the_last_used() {
        let bucket = |from, to, count| Bucket { from, to, count };
        let buckets = [bucket(1024, 1152, 2), bucket(1920, 2048, 1), bucket(4096, 4608, 5)];
        assert_eq!(powers(&buckets), (1024, vec![3, 0, 5], 8192));
        assert_eq!(powers(&[bucket(0, 1, 4), bucket(1, 2, 1)]), (1, vec![5], 2));
        assert_eq!(powers(&[bucket(1 << 63, u64::MAX, 1)]), (1 << 63, vec![1], u64::MAX));
    }
}
