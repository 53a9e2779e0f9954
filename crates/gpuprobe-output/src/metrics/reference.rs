//! Writes `docs/reference/metrics.md` from the list of metrics.

use std::collections::BTreeSet;

use super::labels::put;
use super::metric::Metric;
use super::metric_list::metrics;
use super::write::{kind_word, sample_name};

/// The text above the table.
const HEAD: &str = "\
# Metrics

All metrics of `gpuprobe daemon`, for Prometheus and OpenMetrics. A metric without a series is omitted, so there are
fewer if a feature is off, if a GPU does not report a value, or if no process uses CUDA. The meaning of each label is
[at the end](#labels).

This page is generated from the list that the daemon serves. To write it again, run
`GPUPROBE_BLESS=1 cargo test -p gpuprobe-output`.

`/metrics` answers in the Prometheus text format, or in OpenMetrics if the client accepts it. Names are the same in
both. A histogram has the series `_bucket`, `_sum` and `_count`, and is over all processes of the host.

## Processes

The number of series is bounded, whatever runs on the host:

| | its series |
|---|---|
| at most 50 running processes (`--max-series-processes`): those with the most live memory, then those with the most calls | its own, with a `pid` |
| all other running processes | shared by name, without a `pid` |
| a process that exited in the last five minutes (`--keep-exited`); at most 128 (`--max-exited`) | its counters, so that the last scrape sees them; gauges end at once |
| a process that exited before | added to a series with the label `ended`, without a `pid`: the sum over all series of its name that have ended |

Which processes have series of their own is chosen again every five minutes, too. A process with series of its own takes some
20 kB of a scrape, so the default keeps a scrape of a hundred processes at about 1 MB
([Cost](../results/performance.md#size-of-a-scrape)).

Each time a sum with the label `ended` rises, it gets another value of `ended`, so that `rate()` does not count the same
calls again:

- `sum(gpuprobe_calls_total)` is always the number of all calls, and does not fall when a process exits.
- `sum(rate(gpuprobe_calls_total[5m]))` sees each call once, except those from before the first scrape of a process. If the
  endpoint is scraped regularly, processes that exit before their first scrape have no series of their own. They
  count in the series of their name, and `rate()` sees them.

A process that executes its own program again, or gets the pid and the name of an exited process, continues the same
series.

With `--aggregate container` or `pod`, all processes with these labels in common share series. With `--aggregate name`
there are only the sums by name: no series has a `pid` or the label `ended`, because no series ends when a process does.

## All metrics

`gpuprobe_call_pending_seconds` knows the functions whose entry and return are probed. By default these are the waits,
copies, launches and allocations of the CUDA driver, and NCCL's functions that make and end communicators. With
`--memleak`, `--cudatrace` or `--bandwidth-util` there are no waits among them.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
";

const LABELS_HEAD: &str = "
## Labels

A label without a value is omitted. The number of values is bounded: CUDA kernels and call sites beyond the largest
share one series, `other`, and no label contains an address.

| label | meaning |
|---|---|
";

/// The meaning of each label, sorted by name.
const LABELS: &[(&str, &str)] = &[
    ("after", "The call before the gap: `sync`, a synchronization, or `launch`, another launch."),
    (
        "api",
        "The API of the function: `driver` (libcuda), `runtime` (libcudart), `kernel` (ioctl, mmap, open and poll on devices of the NVIDIA kernel module, and functions of the Linux kernel), or `hook`: a function that the user has named.",
    ),
    (
        "cause",
        "Why something was lost; `docs/results/performance.md` and `docs/guides/otlp.md` say what to do about some causes.",
    ),
    ("clock", "The clock of the GPU."),
    ("code", "The HTTP status of an answer."),
    (
        "command",
        "The command of an ioctl, by its name in NVIDIA's public headers; a number if it has no name, and `other` for all commands without a series of their own.",
    ),
    ("compute_instance", "The number of a compute instance of a GPU instance (MIG)."),
    ("container", "The name of the container in its pod, if it is known from the kubelet of the host."),
    ("container_id", "The id of the container of the process, from its cgroup."),
    (
        "device",
        "The kind of device file: `nvidiactl`, `nvidia` (GPUs), `nvidia-uvm`; empty for the sum of other commands.",
    ),
    ("direction", "To or from the GPU."),
    (
        "ended",
        "When series of processes ended and their counters were added to this sum, in seconds since 1970; see above.",
    ),
    (
        "engine",
        "The engine of a GPU: `sm` (multiprocessors), `memory`, `encoder`, `decoder`, `jpeg`, `optical_flow`.",
    ),
    (
        "error",
        "The name of the error in CUDA's headers; of an NVLink: `replay`, `recovery` and `crc`, or on Blackwell and later `malformed_packet`, `buffer_overrun`, `receive`, `receive_remote`, `receive_general`, `local_integrity`, `transmit_discard`, `recovery_successful`, `recovery_failed`, `effective` (after correction) and `symbol`.",
    ),
    ("function", "The function of the API, without the suffixes of variants that are the same call."),
    ("gpu", "The host's number of a GPU, in the order of PCI addresses; see `numbering`."),
    ("gpu_instance", "The number of a GPU instance (MIG) of a GPU."),
    (
        "kernel",
        "The name of the CUDA kernel, demangled and cut to 200 bytes; `other` is the sum of all without a series of their own. Each process has 20 series, and two more each time its launches double, for kernels among its 20 most launched. A series stays, and launches before it began stay in `other`.",
    ),
    (
        "kind",
        "Of memory: `device`, `pool`, `managed`, `pinned`, `vmm` or `array`; of a copy: its direction, or `memset`.",
    ),
    ("library", "The file that is probed."),
    ("link", "`pcie` or `nvlink`."),
    ("meanwhile", "The longest call of the launching thread during the gap; `none` if it made no call."),
    (
        "memory",
        "The kind of host memory of a copy: `pinned`, `pageable`, `managed`, or `unknown` if the process may have pinned it before it was observed.",
    ),
    ("mig_uuid", "The UUID of a MIG instance, as `CUDA_VISIBLE_DEVICES` accepts it."),
    ("mode", "`sync` if the call waits for the copy, otherwise `async`."),
    ("name", "The GPU's model."),
    ("namespace", "The Kubernetes namespace of the pod."),
    (
        "numbering",
        "`process` if the GPU of the host is not known: `gpu` is then the number that the process uses.",
    ),
    ("nvlink", "The number of an NVLink of a GPU."),
    (
        "part",
        "The part of a GPU: `graphics` (any engine for compute or graphics), `sm` (multiprocessors with at least one warp), `sm_occupancy` (warps), `tensor` (tensor cores, also by the type of their numbers: `tensor_fp64`, `tensor_fp16`, `tensor_integer`), `dram` (bandwidth), `fp64`, `fp32`, `fp16`, `integer`.",
    ),
    ("path", "The requested HTTP path."),
    ("pci", "The PCI address."),
    (
        "pid",
        "The pid of the process, in the pid namespace of gpuprobe. Omitted for the sum over processes without series of their own.",
    ),
    ("pod", "The Kubernetes pod of the process."),
    ("process", "The name of the process in the Linux kernel."),
    ("processor", "The processor that accessed unified memory that was elsewhere: `cpu` or `gpu`."),
    ("profile", "The profile of a MIG instance, which is its size: `1g.18gb` is one slice with 18 GB."),
    (
        "reason",
        "The reason: why a file or a function of the Linux kernel is not probed, why the clocks of a GPU are reduced, or why a connection was refused.",
    ),
    (
        "result",
        "The result of a request: `accepted`, `busy` (the receiver asked to send it again), `refused`, or `unreachable` (no connection, or no answer in time).",
    ),
    ("severity", "Whether errors were corrected: `corrected` or `uncorrected`."),
    ("signal", "`metrics` or `logs`."),
    ("site", "The call site: function and line, and the caller if that is ambiguous; `other` is the rest."),
    (
        "source",
        "Where the figures of tensors come from: `reports` of the framework, or `cudaMallocAsync` if each tensor is one allocation by it.",
    ),
    ("state", "`attached`, or `skipped` if a function has no probe."),
    ("uuid", "The UUID of the GPU, which does not change with its number."),
    ("version", "The version of gpuprobe."),
    ("xid", "The XID error number."),
];

/// The text of `docs/reference/metrics.md`.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    metrics().for_each(|metric| row(&mut out, metric));
    out.push_str(LABELS_HEAD);
    let used: BTreeSet<&str> = metrics().flat_map(|metric| metric.labels).copied().collect();
    for (label, meaning) in LABELS.iter().filter(|(label, _)| used.contains(label)) {
        put(&mut out, format_args!("| `{label}` | {meaning} |\n"));
    }
    out
}

fn row(out: &mut String, metric: &Metric) {
    let Metric { kind, unit, help, labels, .. } = metric;
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    let (name, kind, labels) = (sample_name(metric), kind_word(*kind), labels.join(" "));
    put(out, format_args!("| `{name}` | {kind} | {} | {labels} | {help} |\n", unit.unwrap_or_default()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_explained_once() {
        let explained: Vec<&str> = LABELS.iter().map(|(label, _)| *label).collect();
        assert!(explained.is_sorted() && explained.windows(2).all(|two| two[0] != two[1]), "{explained:?}");
        for metric in metrics() {
            for label in metric.labels {
                assert!(
                    explained.contains(label),
                    "{} has a label without a meaning: {label}",
                    metric.family
                );
            }
        }
    }

    #[test]
    fn no_text_breaks_a_table_row() {
        assert!(metrics().all(|metric| !metric.help.contains('|')));
        assert!(LABELS.iter().all(|(_, meaning)| !meaning.contains(['|', '\n'])));
    }
}
