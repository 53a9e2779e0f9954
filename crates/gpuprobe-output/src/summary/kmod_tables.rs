//! The sections about the NVIDIA kernel module: its commands, and its share of each function's time.

use gpuprobe_analysis::distribution::Bucket;
use gpuprobe_analysis::{CommandSummary, KernelModuleSummary, Layer, SummaryReport};

use super::gpu_op_tables::{LEAST_NAME, LONGEST_IN_FILE, WIDTH};
use super::layout::{Fit, heading, line, name};
use crate::curve::{self, Strokes};
use crate::kmod_text::{UNIFIED, outside, scheduler, share, time, top_command, unified};
use crate::table::{Align, room, rows};
use crate::units::{count, duration, fitted, printable};

/// The most rows of a table.
const MOST: usize = 25;
/// The column with the medians in the table of commands.
const P50: usize = 4;

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

pub(super) fn tables(out: &mut String, driver: &KernelModuleSummary, fit: Fit) {
    if !driver.commands.is_empty() {
        heading(out, "driver (NVIDIA kernel module), by command");
        commands(out, &driver.commands, fit);
    }
    if !driver.layers.is_empty() {
        heading(out, "time of calls, in user space and in the driver (NVIDIA kernel module)");
        layers(out, &driver.layers, fit);
    }
    for text in outside(driver).chain(scheduler(driver)) {
        line(out, format_args!("{text}"));
    }
    histograms(out, &driver.commands, fit);
    if !driver.unified.is_empty() {
        heading(out, "unified memory, faults and migrations");
        let table: Vec<_> =
            [UNIFIED.map(str::to_owned).to_vec()].into_iter().chain(unified(driver)).collect();
        rows(out, "  ", &[Align::Right; UNIFIED.len()], &table);
    }
}

/// The distribution of the time of each probed Linux kernel function.
fn histograms(out: &mut String, commands: &[CommandSummary], fit: Fit) {
    use Align::{Left, Right};
    let functions = || commands.iter().filter(|command| command.is_function() && !command.latency.is_empty());
    if functions().next().is_none() {
        return;
    }
    heading(out, "time of Linux kernel functions, by powers of two");
    let mut table = vec![["calls", "from", "", "to"].map(str::to_owned).to_vec()];
    for command in functions().take(MOST) {
        let (from_ns, counts, to_ns) = powers(&command.latency);
        let shown = curve::line(&counts, counts.len(), Strokes::Ascii);
        table.push(vec![command.calls.to_string(), duration(from_ns), shown, duration(to_ns)]);
    }
    push_names(
        &mut table,
        "function",
        functions().take(MOST).map(|command| command.command.to_string()),
        fit,
    );
    rows(out, "  ", &[Right, Right, Left, Right, Left], &table);
    let more = functions().skip(MOST).count();
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

fn commands(out: &mut String, commands: &[CommandSummary], fit: Fit) {
    use Align::{Left, Right};
    // commands that only wait are sorted to the end
    let working = commands.partition_point(|command| !command.waits());
    let (working, waiting) = commands.split_at(working);
    let (top, more) = working.split_at(working.len().min(MOST));
    let shown: Vec<_> = top.iter().chain(waiting.iter().take(MOST)).collect();
    let titles = ["calls", "failed", "total", "mean", "p50", "p99", "max", "device"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    for command in &shown {
        let returned = command.calls > command.unfinished;
        table.push(vec![
            command.calls.to_string(),
            command.failures.to_string(),
            time(returned.then_some(command.total_ns)),
            time(command.mean_ns()),
            time(command.p50_ns),
            time(command.p99_ns),
            time(returned.then_some(command.max_ns)),
            command.device.as_deref().map_or_else(|| "-".to_owned(), name),
        ]);
    }
    let mut align = vec![Right, Right, Right, Right, Right, Right, Right, Left, Left];
    if fit == Fit::Terminal {
        // leaves more room for names
        align.remove(P50);
        table.iter_mut().for_each(|row| drop(row.remove(P50)));
    }
    push_names(&mut table, "command", shown.iter().map(|command| in_short(&command.command, fit)), fit);
    rows(out, "  ", &align, &table);
    if !more.is_empty() {
        let calls = more.iter().fold(0, |sum: u64, command| sum.saturating_add(command.calls));
        let ns = more.iter().fold(0, |sum: u64, command| sum.saturating_add(command.total_ns));
        let (others, calls) =
            (count(more.len() as u64, "other command", "other commands"), count(calls, "call", "calls"));
        line(out, format_args!("and {others}: {calls}, {}", duration(ns)));
    }
}

fn layers(out: &mut String, layers: &[Layer], fit: Fit) {
    use Align::{Left, Right};
    let (shown, more) = layers.split_at(layers.len().min(MOST));
    let titles = ["function", "calls", "in driver", "time", "user space", "driver", "share"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    for layer in shown {
        table.push(vec![
            name(&layer.name),
            layer.calls.to_string(),
            layer.entered.to_string(),
            duration(layer.total_ns),
            duration(layer.user_ns()),
            duration(layer.driver.ns),
            share(layer),
        ]);
    }
    push_names(
        &mut table,
        "top command",
        shown.iter().map(|layer| top_command(layer, |command| in_short(command, fit))),
        fit,
    );
    rows(out, "  ", &[Left, Right, Right, Right, Right, Right, Right, Left], &table);
    if !more.is_empty() {
        let functions = count(more.len() as u64, "function", "functions");
        line(out, format_args!("and {functions} with less time in the driver"));
    }
}

/// On a terminal only the part in parentheses of `NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)`: it is unique
/// among commands.
fn in_short(command: &str, fit: Fit) -> String {
    let inner = command.strip_suffix(')').and_then(|rest| rest.split_once('(')).map(|(_, inner)| inner);
    inner.filter(|inner| fit == Fit::Terminal && !inner.starts_with("0x")).unwrap_or(command).to_owned()
}

/// Adds a last column with names, shortened to the width of a terminal.
fn push_names(table: &mut [Vec<String>], title: &str, names: impl Iterator<Item = String>, fit: Fit) {
    let room = if fit == Fit::Terminal { room(table, WIDTH).max(LEAST_NAME) } else { LONGEST_IN_FILE };
    let names = names.map(|name| fitted(&printable(&name), room).into_owned());
    table
        .iter_mut()
        .zip(std::iter::once(title.to_owned()).chain(names))
        .for_each(|(row, name)| row.push(name));
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
