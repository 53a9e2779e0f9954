//! The sections about the driver beneath CUDA: what was asked of it, and how much of each function's time that was.

use gpuprobe_analysis::driver::Spent;
use gpuprobe_analysis::{CommandSummary, DriverSummary, Layer, SummaryReport};

use super::work::{LEAST_NAME, LONGEST_NAME, WIDTH};
use super::{Fit, heading, line, name};
use crate::driver::{outside, share, time, top_command};
use crate::table::{Align, room, rows};
use crate::units::{count, duration, fitted, printable};

/// Rows of each table.
const MOST: usize = 25;
/// Where the table of commands has its medians.
const P50: usize = 4;

/// The second block of the classic runner, in its words; nothing where the driver was not watched.
pub(super) fn classic(report: &SummaryReport) -> String {
    let driver = &report.driver;
    // a tracepoint says nothing of whether the driver was watched
    if driver.layers.is_empty() && driver.commands.iter().all(|command| command.calls == command.unfinished) {
        return String::new();
    }
    let ioctls = driver.calls_of("ioctl");
    let time = if report.only_begun {
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

pub(super) fn driver(out: &mut String, driver: &DriverSummary, fit: Fit) {
    if !driver.commands.is_empty() {
        heading(out, "driver, by command");
        commands(out, &driver.commands, fit);
    }
    if !driver.layers.is_empty() {
        heading(out, "time of calls, in user space and in the driver");
        layers(out, &driver.layers, fit);
    }
    for text in outside(driver) {
        line(out, format_args!("{text}"));
    }
    if let Some(Spent { calls, ns }) = driver.scheduler() {
        let calls = count(calls, "call", "calls");
        line(out, format_args!("scheduler functions of the driver: {calls}, {} of overhead", duration(ns)));
    }
}

fn commands(out: &mut String, commands: &[CommandSummary], fit: Fit) {
    use Align::{Left, Right};
    // those that only wait come last
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
        // names need the room
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
        line(out, format_args!("and {functions} with less time there"));
    }
}

/// On a terminal, of `NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_INFO_V2)` what is asked of an object: that is not called
/// so in other commands.
fn in_short(command: &str, fit: Fit) -> String {
    let inner = command.strip_suffix(')').and_then(|rest| rest.split_once('(')).map(|(_, inner)| inner);
    inner.filter(|inner| fit == Fit::Terminal && !inner.starts_with("0x")).unwrap_or(command).to_owned()
}

/// Adds a last column, whose texts are cut where a terminal has no room for them.
fn push_names(table: &mut [Vec<String>], title: &str, names: impl Iterator<Item = String>, fit: Fit) {
    let room = if fit == Fit::Terminal { room(table, WIDTH).max(LEAST_NAME) } else { LONGEST_NAME };
    let names = names.map(|name| fitted(&printable(&name), room).into_owned());
    table
        .iter_mut()
        .zip(std::iter::once(title.to_owned()).chain(names))
        .for_each(|(row, name)| row.push(name));
}
