//! The sections about the NVIDIA kernel module: its commands, and its share of each function's time.

use gpuprobe_analysis::{CommandSummary, KernelModuleSummary, Layer};

use super::sections::{MOST_ROWS, end_table, table};
use super::svg::{bar, distribution, escape, put};
use crate::kmod_text::{UNIFIED, outside, scheduler, share, time, top_command, unified};
use crate::units::duration;

pub(super) fn sections(out: &mut String, driver: &KernelModuleSummary) {
    if driver.is_empty() {
        return;
    }
    layers(out, &driver.layers);
    outside(driver).chain(scheduler(driver)).for_each(|text| put!(out, "<p>{text}</p>\n"));
    commands(out, &driver.commands);
    if !driver.unified.is_empty() {
        out.push_str("<h2>Unified memory</h2>\n");
        table(out, "unified", &UNIFIED);
        for row in unified(driver).take(MOST_ROWS) {
            let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            put!(out, "<tr data-name=\"{}\">{cells}</tr>\n", row[0]);
        }
        end_table(out, driver.unified.len());
    }
}

fn layers(out: &mut String, layers: &[Layer]) {
    if layers.is_empty() {
        return;
    }
    out.push_str("<h2>Time in user space and in the driver (NVIDIA kernel module)</h2>\n");
    let titles =
        ["function", "calls", "in the driver", "time", "user space", "driver", "", "share", "top command"];
    table(out, "layers", &titles);
    let most = layers.iter().map(|layer| layer.driver.ns).max().unwrap_or(0);
    for layer in layers.iter().take(MOST_ROWS) {
        let (name, top) = (escape(&layer.name), escape(&top_command(layer, str::to_owned)));
        put!(
            out,
            "<tr data-name=\"{name} {top}\"><td class=\"name\">{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"name\">{top}</td></tr>\n",
            layer.calls,
            layer.entered,
            duration(layer.total_ns),
            duration(layer.user_ns()),
            duration(layer.driver.ns),
            bar(layer.driver.ns, most, "kernel"),
            share(layer)
        );
    }
    end_table(out, layers.len());
}

fn commands(out: &mut String, commands: &[CommandSummary]) {
    if commands.is_empty() {
        return;
    }
    out.push_str("<h2>Commands of the driver (NVIDIA kernel module)</h2>\n");
    let took = "distribution of durations";
    let titles = ["command", "calls", "failed", "total", "", "mean", "p50", "p99", "max", took, "device"];
    table(out, "commands", &titles);
    // commands that only wait are left out of the scale, because they would dwarf all others
    let working = commands.iter().filter(|command| !command.waits());
    let most = working.map(|command| command.total_ns).max().unwrap_or(0);
    for command in commands.iter().take(MOST_ROWS) {
        let name = escape(&command.command);
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}</td><td{}>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            command.calls,
            if command.failures > 0 { " class=\"bad\"" } else { "" },
            command.failures,
            duration(command.total_ns),
            bar(if command.waits() { 0 } else { command.total_ns }, most, "kernel"),
            time(command.mean_ns()),
            time(command.p50_ns),
            time(command.p99_ns),
            duration(command.max_ns),
            distribution(&command.latency, "kernel"),
            escape(command.device.as_deref().unwrap_or("-"))
        );
    }
    end_table(out, commands.len());
}
