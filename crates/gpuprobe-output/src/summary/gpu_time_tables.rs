//! What GPUs executed: GPU time by CUDA kernel and NVTX range, busy and idle times, queueing delay, copies.

use gpuprobe_analysis::gpu_time::{AgentSummary, GpuTime, KernelTime};

use super::layout::{NameTable, SummaryOptions, heading, line, name};
use super::quality::{Quality, marked};
use crate::gpu_time_text::{agent, copy_bandwidth, copy_name, host, queueing, range_name, unmatched};
use crate::kernel_name::short_names;
use crate::kmod_text::per_cent;
use crate::units::{bytes, count, duration};

pub(super) fn tables(out: &mut String, time: &GpuTime, options: &SummaryOptions, quality: Quality) {
    kernels(out, time, options, quality);
    busy(out, time, options);
    idle(out, time, options);
    copies(out, time, options);
    ranges(out, time, options);
    agents(out, &time.agents, options);
}

fn kernels(out: &mut String, time: &GpuTime, options: &SummaryOptions, quality: Quality) {
    if time.executions == 0 {
        return;
    }
    out.push('\n');
    let total_ns = time.total_ns();
    let mut rows: Vec<_> = time.graphs.iter().chain(&time.kernels).zip(names(time, options)).collect();
    rows.sort_by_key(|(row, _)| std::cmp::Reverse(row.total_ns));
    let (shown, more) = rows.split_at(rows.len().min(options.most()));
    if !shown.is_empty() {
        let title = marked("GPU time by CUDA kernel", quality);
        let titles = [&title, "executions", "total", "of GPU time", "mean", "p50", "p99", "max"];
        let mut table = NameTable::new(&titles, &[], &["p50", "p99", "max"]);
        for (row, name) in shown {
            table.push([vec![name.clone()], cells(row, total_ns)].concat());
        }
        table.write(out, options);
    }
    if !more.is_empty() {
        let ns = more.iter().fold(0, |sum: u64, (row, _)| sum.saturating_add(row.total_ns));
        let kernels = count(more.len() as u64, "more CUDA kernel", "more CUDA kernels");
        line(out, format_args!("and {kernels}: {} (--rows 0 shows all)", duration(ns)));
    }
    let executions = count(time.executions, "execution", "executions");
    line(out, format_args!("{executions}, {} of GPU time{}", duration(total_ns), unmatched(time)));
    if let Some(delay) = &time.queueing {
        line(out, format_args!("{}", queueing(delay)));
    }
}

/// The names of all rows: whether two differ must not depend on how many rows are shown.
fn names(time: &GpuTime, options: &SummaryOptions) -> Vec<String> {
    let names: Vec<_> = time.kernels.iter().map(|row| &*row.kernel).collect();
    let names: Vec<_> = match options.full_names {
        true => names.into_iter().map(name).collect(),
        false => short_names(&names).iter().map(|short| name(short)).collect(),
    };
    let graphs = time.graphs.iter().map(|_| "CUDA graphs, as a whole".to_owned());
    graphs.chain(names).collect()
}

fn cells(row: &KernelTime, total_ns: u64) -> Vec<String> {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
    vec![
        row.executions.to_string(),
        duration(row.total_ns),
        per_cent(row.total_ns, total_ns),
        time(row.mean_ns()),
        time(row.p50_ns),
        time(row.p99_ns),
        duration(row.max_ns),
    ]
}

fn busy(out: &mut String, time: &GpuTime, options: &SummaryOptions) {
    if time.gpus.is_empty() {
        return;
    }
    let mut table = NameTable::new(&["GPU", "executions", "busy", "of the time"], &[], &[]);
    let has_several = time.gpus.iter().any(|row| row.tgid != time.gpus[0].tgid);
    let (shown, more) = time.gpus.split_at(time.gpus.len().min(options.most()));
    for row in shown {
        let process = match has_several {
            true => format!("{} {}: ", row.tgid, name(&row.process)),
            false => String::new(),
        };
        let share = |ns| if row.covered_ns > 0 { per_cent(ns, row.covered_ns) } else { "-".to_owned() };
        table.push(vec![
            format!("{process}GPU {}, {} observed", row.gpu, duration(row.covered_ns)),
            row.executions.to_string(),
            duration(row.busy_ns),
            share(row.busy_ns),
        ]);
        for stream in row.streams.iter().take(options.few()) {
            table.push(vec![
                format!("  stream {}", stream.stream),
                stream.executions.to_string(),
                duration(stream.busy_ns),
                share(stream.busy_ns),
            ]);
        }
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        line(out, format_args!("and {}", count(more.len() as u64, "more GPU", "more GPUs")));
    }
}

fn idle(out: &mut String, time: &GpuTime, options: &SummaryOptions) {
    if time.idle.is_empty() {
        return;
    }
    let titles = ["GPU idle between executions, while the host was", "times", "idle", "longest"];
    let mut table = NameTable::new(&titles, &[], &[]);
    let (shown, more) = time.idle.split_at(time.idle.len().min(options.most()));
    for row in shown {
        table.push(vec![
            format!("  {}", host(row.host)),
            row.times.to_string(),
            duration(row.idle_ns),
            duration(row.longest_ns),
        ]);
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        let ns = more.iter().fold(0, |sum: u64, row| sum.saturating_add(row.idle_ns));
        let functions = count(more.len() as u64, "other function", "other functions");
        line(out, format_args!("and in {functions}: {}", duration(ns)));
    }
}

fn copies(out: &mut String, time: &GpuTime, options: &SummaryOptions) {
    if time.copies.is_empty() {
        return;
    }
    let titles = ["copies and memsets on the GPU", "number", "bytes", "GPU time", "bandwidth"];
    let mut table = NameTable::new(&titles, &[], &[]);
    for row in &time.copies {
        table.push(vec![
            copy_name(row).to_owned(),
            row.copies.to_string(),
            bytes(row.bytes),
            duration(row.total_ns),
            copy_bandwidth(row),
        ]);
    }
    out.push('\n');
    table.write(out, options);
}

fn ranges(out: &mut String, time: &GpuTime, options: &SummaryOptions) {
    if time.ranges.is_empty() {
        return;
    }
    let titles = ["NVTX range", "ranges", "executions", "GPU time", "host time"];
    let mut table = NameTable::new(&titles, &[], &["executions"]);
    let (shown, more) = time.ranges.split_at(time.ranges.len().min(options.most()));
    for row in shown {
        table.push(vec![
            name(&range_name(row)),
            row.ranges.to_string(),
            row.executions.to_string(),
            duration(row.gpu_ns),
            duration(row.host_ns),
        ]);
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        line(out, format_args!("and {}", count(more.len() as u64, "more name", "more names")));
    }
}

/// Why there are no GPU times, or not those of all the time.
fn agents(out: &mut String, agents: &[AgentSummary], options: &SummaryOptions) {
    let notes: Vec<_> = agents.iter().filter_map(agent).collect();
    if notes.is_empty() {
        return;
    }
    heading(out, "GPU times");
    for note in notes.iter().take(options.most()) {
        line(out, format_args!("{}", name(note)));
    }
    let more = notes.len().saturating_sub(options.most());
    if more > 0 {
        line(out, format_args!("and {more} more"));
    }
}
