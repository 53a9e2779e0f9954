//! The overview: GPUs and processes.

use gpuprobe_analysis::view::{Column, GpuRow, Line, View};

use super::canvas::{Canvas, Ink};
use super::columns::{cell, fitting, is_stuck, is_text, with_pending};
use super::figures::{bar, history, or_dash, percent, short_bytes};
use super::{DrawnTable, Shown, TopScreens};
use crate::units::{count, grouped};

/// Readings of a GPU's history that a line has room for.
const HISTORY: usize = 12;
/// Above this temperature a GPU is marked.
const HOT_CELSIUS: u32 = 85;

impl TopScreens {
    pub(super) fn draw_overview(&mut self, shown: &Shown<'_>, canvas: &mut Canvas<'_>) {
        let mut y = self.draw_status(shown, canvas);
        y = draw_gpus(shown, canvas, y);
        self.draw_processes(shown, canvas, y);
        let last = canvas.height().saturating_sub(1);
        if !shown.has_keys {
            return;
        }
        if self.is_typing {
            let text = format!("Filter: {}_", self.arranged.filter);
            canvas.text(0, last, canvas.width(), &text, Ink::Strong);
        } else {
            let keys = "Enter open  / filter  < > sort  r reverse  t tree  p pause  ? help  q quit";
            canvas.text(0, last, canvas.width(), keys, Ink::Faint);
        }
    }

    /// The first lines: what is observed, and what is wrong with it.
    fn draw_status(&self, shown: &Shown<'_>, canvas: &mut Canvas<'_>) -> u16 {
        let view = shown.view;
        let running = view.processes.iter().filter(|row| !row.has_exited).count() as u64;
        let mut parts = vec![count(running, "process", "processes")];
        parts.push(count(view.gpus.len() as u64, "GPU", "GPUs"));
        parts.push(format!("{} lost", grouped(view.lost)));
        parts.extend(view.budget.map(|share| format!("budget {}%", percent(share))));
        let sampled = view.estimated.len() as u64;
        parts.extend((sampled > 0).then(|| format!("~ {} sampled", count(sampled, "function", "functions"))));
        parts.extend(view.own_cpu_share.map(|share| format!("gpuprobe {}% CPU", percent(share))));
        let x = canvas.text(0, 0, canvas.width(), "gpuprobe top ", Ink::Strong);
        let mut x = canvas.text(x, 0, canvas.width(), shown.time, Ink::Plain);
        // what the user has chosen comes first: without it, the figures are misleading
        if self.is_paused {
            x = canvas.text(x + 2, 0, canvas.width(), "PAUSED", Ink::Heading);
        }
        if !self.arranged.filter.is_empty() {
            x = canvas.text(
                x + 2,
                0,
                canvas.width(),
                &format!("filter \"{}\"", self.arranged.filter),
                Ink::Strong,
            );
        }
        let ink = if view.lost > 0 { Ink::Warning } else { Ink::Plain };
        canvas.text(x + 2, 0, canvas.width(), &parts.join(", "), ink);
        let mut y = 1;
        if let Some(problem) = shown.problem {
            canvas.text(0, y, canvas.width(), problem, Ink::Alarm);
            y += 1;
        }
        y
    }

    fn draw_processes(&mut self, shown: &Shown<'_>, canvas: &mut Canvas<'_>, heading_row: u16) {
        let columns = fitting(canvas.width(), shown.view.hosts.len() > 1);
        canvas.line(heading_row, Ink::Heading);
        for (x, width, column) in &columns {
            let order = self.arranged.order;
            let is_sorted = order.column == *column;
            let ink = if is_sorted { Ink::SortedBy } else { Ink::Heading };
            if is_text(*column) {
                canvas.text(*x, heading_row, *width, column.as_str(), ink);
            } else {
                canvas.right(*x, heading_row, *width, column.as_str(), ink);
            }
        }
        let first = heading_row + 1;
        let rows = canvas.height().saturating_sub(first + u16::from(shown.has_keys));
        self.drawn = DrawnTable { heading_row, rows, columns };
        let lines = self.arranged.lines(shown.view);
        self.keep_cursor(&lines, rows);
        for (y, line) in (first..first + rows).zip(lines.iter().skip(self.scrolled)) {
            self.draw_line(shown, canvas, y, line);
        }
        if lines.is_empty() {
            canvas.text(0, first, canvas.width(), &nothing(shown.view, &self.arranged.filter), Ink::Faint);
        }
    }

    fn draw_line(&self, shown: &Shown<'_>, canvas: &mut Canvas<'_>, y: u16, line: &Line<'_>) {
        match line {
            Line::Group { container, processes, live_bytes } => {
                let name = container.unwrap_or("no container");
                let processes = count(*processes as u64, "process", "processes");
                let text = format!("{name}: {processes}, {} live", short_bytes(*live_bytes));
                canvas.text(0, y, canvas.width(), &text, Ink::Strong);
            }
            Line::Process(row) => {
                let has_pending = self.drawn.columns.iter().any(|(_, _, column)| *column == Column::Pending);
                for (x, width, column) in &self.drawn.columns {
                    let (text, ink) = match column {
                        Column::Name if !has_pending && is_stuck(row) => {
                            with_pending(shown.view, row, shown.users)
                        }
                        column => cell(shown.view, row, *column, shown.users),
                    };
                    let ink = if row.has_exited && ink == Ink::Plain { Ink::Faint } else { ink };
                    if is_text(*column) {
                        canvas.text(*x, y, *width, &text, ink);
                    } else {
                        canvas.right(*x, y, *width, &text, ink);
                    }
                }
                if self.selected == Some(row.id) {
                    canvas.line(y, Ink::Selected);
                }
            }
        }
    }

    /// Keeps the cursor on a listed process, and that one on the screen.
    fn keep_cursor(&mut self, lines: &[Line<'_>], rows: u16) {
        let position = |wanted| {
            lines.iter().position(|line| matches!(line, Line::Process(row) if Some(row.id) == wanted))
        };
        let first = || {
            lines.iter().find_map(|line| match line {
                Line::Process(row) => Some(row.id),
                Line::Group { .. } => None,
            })
        };
        if !self.has_moved || position(self.selected).is_none() {
            self.selected = first();
        }
        let at = position(self.selected).unwrap_or(0);
        let rows = usize::from(rows).max(1);
        let most = lines.len().saturating_sub(rows);
        self.scrolled = self.scrolled.clamp(at.saturating_sub(rows - 1), at).min(most);
    }
}

/// Why no process is listed.
fn nothing(view: &View, filter: &str) -> String {
    if view.processes.is_empty() {
        "No process has used CUDA yet.".to_owned()
    } else {
        format!("No process matches \"{filter}\": Esc shows all.")
    }
}

/// One line for each GPU, on at most a third of the screen. Returns the row after them.
fn draw_gpus(shown: &Shown<'_>, canvas: &mut Canvas<'_>, first: u16) -> u16 {
    let view = shown.view;
    if view.gpus.is_empty() && view.is_nvml_up == Some(false) {
        let text = "GPUs: NVML is not available, so their utilization, memory and power are unknown.";
        canvas.text(0, first, canvas.width(), text, Ink::Faint);
        return first + 1;
    }
    let most = usize::from((canvas.height() / 3).max(1));
    let drawn = if view.gpus.len() > most { most - 1 } else { view.gpus.len() };
    let with_activity = view.gpus.iter().filter(|gpu| !gpu.activity.is_empty()).count();
    let has_room = view.gpus.len() + with_activity <= most;
    let mut y = first;
    for gpu in &view.gpus[..drawn] {
        draw_gpu(shown, canvas, y, gpu);
        y += 1;
        if has_room && !gpu.activity.is_empty() {
            canvas.text(0, y, canvas.width(), &format!("      {}", activity(gpu)), Ink::Plain);
            y += 1;
        }
    }
    if drawn < view.gpus.len() {
        let text = format!("and {} more GPUs", view.gpus.len() - drawn);
        canvas.text(0, y, canvas.width(), &text, Ink::Faint);
        y += 1;
    }
    y
}

/// What the parts of a GPU did. Of parts that most programs do not use, only what is above zero.
fn activity(gpu: &GpuRow) -> String {
    const ALWAYS: [&str; 4] = ["sm", "sm_occupancy", "tensor", "dram"];
    // it is shown in the line above, or part of another one
    const NEVER: [&str; 4] = ["graphics", "tensor_fp64", "tensor_fp16", "tensor_integer"];
    let is_shown =
        |(part, share): &&(&str, f64)| ALWAYS.contains(part) || (!NEVER.contains(part) && *share >= 0.005);
    let shares = gpu.activity.iter().filter(is_shown).map(|(part, share)| {
        let name = match *part {
            "sm_occupancy" => "occupancy".to_owned(),
            "tensor" | "integer" => (*part).to_owned(),
            other => other.to_uppercase(),
        };
        format!("{name} {:.0}%", share * 100.0)
    });
    let traffic = gpu.traffic.iter().map(|(link, rate)| {
        let name = link.replace("pcie_", "PCIe ").replace("nvlink_", "NVLink ");
        format!("{name} {}/s", short_bytes(*rate))
    });
    shares.chain(traffic).collect::<Vec<_>>().join("  ")
}

fn draw_gpu(shown: &Shown<'_>, canvas: &mut Canvas<'_>, y: u16, gpu: &GpuRow) {
    let strokes = canvas.strokes;
    let width = canvas.width();
    let wide = width >= 120;
    let host = shown.view.host_name(gpu.host).map(|host| format!("{host} ")).unwrap_or_default();
    let name = if wide { format!(" {:<16.16}", gpu.name) } else { String::new() };
    let mut x = canvas.text(0, y, width, &format!("{host}GPU {}{name} ", gpu.gpu), Ink::Strong);
    let busy = or_dash(gpu.busy_percent.map(|percent| format!("{percent}%")));
    let line = history(&gpu.busy_history, if wide { 2 * HISTORY } else { HISTORY }, strokes);
    x = canvas.text(x, y, width, &format!("{line} {busy:>4}  "), Ink::Good);
    if let (Some(used), Some(total)) = (gpu.used_bytes, gpu.total_bytes) {
        let share = (used as f64 / total.max(1) as f64 * 100.0) as u32;
        let bar = bar(share, if wide { 16 } else { 6 }, strokes);
        let ink = if share >= 95 { Ink::Warning } else { Ink::Plain };
        let text = format!("{bar} {}/{} ", short_bytes(used), short_bytes(total));
        x = canvas.text(x, y, width, &text, ink);
    }
    // before what is always there, so that a narrow screen has them
    if gpu.xids > 0 {
        x = canvas.text(x, y, width, &format!(" {} XID ", gpu.xids), Ink::Alarm);
    }
    if !gpu.throttled.is_empty() {
        let text = format!(" throttled: {} ", gpu.throttled.join(" ").replace('_', " "));
        x = canvas.text(x, y, width, &text, Ink::Warning);
    }
    if let Some(watts) = gpu.watts {
        let limit = gpu.limit_watts.map(|limit| format!("/{limit:.0}")).unwrap_or_default();
        x = canvas.text(x, y, width, &format!(" {watts:.0}{limit}W"), Ink::Plain);
    }
    if let Some(celsius) = gpu.celsius {
        let ink = if celsius > HOT_CELSIUS { Ink::Alarm } else { Ink::Plain };
        x = canvas.text(x, y, width, &format!(" {celsius}C"), ink);
    }
    if let Some(mhz) = gpu.sm_mhz {
        x = canvas.text(x, y, width, &format!(" {mhz}MHz"), Ink::Plain);
    }
    // GPM reports it for a longer time
    if wide && gpu.traffic.is_empty() {
        let rate = |label: &str, bytes: Option<u64>| {
            bytes.map(|bytes| format!("  {label} {}/s", short_bytes(bytes))).unwrap_or_default()
        };
        let pcie = rate("rx", gpu.pcie_rx_bytes_per_second) + &rate("tx", gpu.pcie_tx_bytes_per_second);
        canvas.text(x, y, width, &pcie, Ink::Faint);
    }
}
