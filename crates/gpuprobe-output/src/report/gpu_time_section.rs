//! The section about what GPUs executed.

use gpuprobe_analysis::gpu_time::{GpuTime, KernelTime};

use super::sections::{MOST_ROWS, end_table, table};
use super::svg::{bar, escape, put};
use crate::gpu_time_text::{agent, copy_bandwidth, copy_name, host, queueing, range_name, unmatched};
use crate::kernel_name::short_names;
use crate::kmod_text::{per_cent, time};
use crate::units::{bytes, count, duration};

pub(super) fn gpu_time(out: &mut String, time: &GpuTime) {
    if time.is_empty() {
        return;
    }
    out.push_str("<h2>GPU time</h2>\n");
    for note in time.agents.iter().filter_map(agent).take(MOST_ROWS) {
        put!(out, "<p class=\"bad\">{}</p>\n", escape(&note));
    }
    if time.executions == 0 {
        return;
    }
    let executions = count(time.executions, "execution", "executions");
    put!(out, "<p>{executions}, {} of GPU time{}</p>\n", duration(time.total_ns()), unmatched(time));
    if let Some(delay) = &time.queueing {
        put!(out, "<p>{}</p>\n", queueing(delay));
    }
    busy(out, time);
    kernels(out, time);
    idle(out, time);
    copies(out, time);
    ranges(out, time);
}

fn busy(out: &mut String, time: &GpuTime) {
    table(out, "gpu-busy", &["GPU", "process", "executions", "busy", "of the time observed", ""]);
    let mut rows = 0;
    for gpu in &time.gpus {
        let process = format!("{} {}", gpu.tgid, escape(&gpu.process));
        let streams = gpu
            .streams
            .iter()
            .map(|row| (format!("GPU {}, stream {}", gpu.gpu, row.stream), row.executions, row.busy_ns));
        let all = std::iter::once((format!("GPU {}", gpu.gpu), gpu.executions, gpu.busy_ns)).chain(streams);
        for (name, executions, busy_ns) in all {
            rows += 1;
            if rows > MOST_ROWS {
                continue;
            }
            put!(
                out,
                "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{process}</td><td>{executions}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                duration(busy_ns),
                per_cent(busy_ns, gpu.covered_ns),
                bar(busy_ns, gpu.covered_ns, "gpu")
            );
        }
    }
    end_table(out, rows);
}

fn kernels(out: &mut String, time: &GpuTime) {
    let rows: Vec<&KernelTime> = time.graphs.iter().chain(&time.kernels).collect();
    let titles = ["CUDA kernel", "executions", "total", "of GPU time", "", "mean", "p50", "p99", "max"];
    table(out, "gpu-kernels", &titles);
    let (total_ns, most_ns) = (time.total_ns(), rows.iter().map(|row| row.total_ns).max().unwrap_or(0));
    let names: Vec<_> = rows.iter().map(|row| &*row.kernel).collect();
    for (row, short) in rows.iter().zip(short_names(&names)).take(MOST_ROWS) {
        let (name, short) = (escape(&row.kernel), escape(&short));
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\" title=\"{name}\"><div>{short}</div></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            row.executions,
            duration(row.total_ns),
            per_cent(row.total_ns, total_ns),
            bar(row.total_ns, most_ns, "gpu"),
            self::time(row.mean_ns()),
            self::time(row.p50_ns),
            self::time(row.p99_ns),
            duration(row.max_ns)
        );
    }
    end_table(out, rows.len());
}

fn idle(out: &mut String, time: &GpuTime) {
    if time.idle.is_empty() {
        return;
    }
    out.push_str("<p>idle time between executions, by what the submitting thread did:</p>\n");
    table(out, "gpu-idle", &["the host was", "times", "idle", "", "longest"]);
    let most_ns = time.idle.first().map_or(0, |row| row.idle_ns);
    for row in time.idle.iter().take(MOST_ROWS) {
        let name = host(row.host);
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            row.times,
            duration(row.idle_ns),
            bar(row.idle_ns, most_ns, "idle"),
            duration(row.longest_ns)
        );
    }
    end_table(out, time.idle.len());
}

fn copies(out: &mut String, time: &GpuTime) {
    if time.copies.is_empty() {
        return;
    }
    table(out, "gpu-copies", &["copies and memsets", "number", "bytes", "GPU time", "bandwidth"]);
    for row in &time.copies {
        let name = copy_name(row);
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            row.copies,
            bytes(row.bytes),
            duration(row.total_ns),
            copy_bandwidth(row)
        );
    }
    end_table(out, time.copies.len());
}

fn ranges(out: &mut String, time: &GpuTime) {
    if time.ranges.is_empty() {
        return;
    }
    table(out, "gpu-ranges", &["NVTX range", "ranges", "executions", "GPU time", "", "host time"]);
    let most_ns = time.ranges.first().map_or(0, |row| row.gpu_ns);
    for row in time.ranges.iter().take(MOST_ROWS) {
        let name = range_name(row);
        let name = escape(&name);
        put!(
            out,
            "<tr data-name=\"{name}\"><td class=\"name\">{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            row.ranges,
            row.executions,
            duration(row.gpu_ns),
            bar(row.gpu_ns, most_ns, "gpu"),
            duration(row.host_ns)
        );
    }
    end_table(out, time.ranges.len());
}
