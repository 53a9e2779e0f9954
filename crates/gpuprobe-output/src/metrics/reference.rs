//! The table of metrics as a page for people: `docs/metrics.md` is what this writes.

use std::collections::BTreeSet;

use super::labels::put;
use super::metric::Metric;
use super::metric_list::metrics;
use super::write::{kind_word, sample_name};

/// What is above the table.
const HEAD: &str = "\
# Metrics

Every metric of `gpuprobe daemon`, made from the table that the daemon itself serves them from; `GPUPROBE_BLESS=1 cargo
test -p gpuprobe-output` writes this page anew. A metric without a series is left out of an answer, so a feature that is
off, a GPU that cannot tell something, or a host without a CUDA process has fewer of them.

`/metrics` answers in Prometheus' text format, or in OpenMetrics where it is asked for by `Accept`. Names are the same in
both. A histogram has the series `_bucket`, `_sum` and `_count`. Gauges of a process end with it; its counters stay for
five minutes, so that the last scrape sees them, and are summed up by name in `gpuprobe_ended_*` after that. A process that
runs its own program again, or gets the pid and the name of one that ended, has the series of that one. They hold what all of
them did, and are summed up when the last of them goes, so no counter falls while it is there.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
";

const LABELS_HEAD: &str = "
## Labels

A label that has no value is left out. None grows without bound: kernels and sites beyond the largest are one series,
`other`, and no label holds an address.

| label | meaning |
|---|---|
";

/// What each label says, by its name.
const LABELS: &[(&str, &str)] = &[
    (
        "after",
        "What the stream was given before the gap: `sync`, a synchronisation, or `launch`, another launch.",
    ),
    (
        "api",
        "Whose function it is: `driver` (libcuda), `runtime` (libcudart), `kernel` (ioctl, mmap, open and poll on the driver's devices, and functions of the kernel), or `hook`: one that the user has named.",
    ),
    ("cause", "Why something was not seen; `docs/performance.md` says what to do about some."),
    ("clock", "Which of a GPU's clocks."),
    ("code", "The status of an answer over HTTP."),
    (
        "command",
        "What an ioctl asks of the driver, by the names of its public headers; numbers for what has none, and `other` for all that have no series of their own.",
    ),
    ("container", "The name of the container in its pod, where the kubelet of the host tells."),
    ("container_id", "The id of the container that the process runs in, by its cgroup."),
    (
        "device",
        "The kind of device file: `nvidiactl`, `nvidia` (those of GPUs), `nvidia-uvm`; none where commands are summed up.",
    ),
    ("direction", "To the GPU or from it."),
    ("engine", "The part of a GPU: compute, memory, encoder, decoder."),
    ("error", "The name of the error, as CUDA's headers have it."),
    ("function", "The function of the API, without the suffixes of its variants where they are one call."),
    ("gpu", "The host's number of a GPU, counted by places on the bus; see `numbering`."),
    (
        "kernel",
        "The kernel's name, demangled and cut to 200 bytes; `other` is all that have no series of their own. There are 20 for each process, and two more each time its launches double, for kernels among its 20 most launched. A series stays, and what was launched before it began stays in `other`.",
    ),
    (
        "kind",
        "Of memory: `device`, `pool`, `managed`, `pinned`, `vmm` or `array`; of a copy: its direction, or `memset`.",
    ),
    ("library", "The file that is probed."),
    ("meanwhile", "The call that took the launching thread longest in the gap; `none` where it made none."),
    ("memory", "What host memory is at the other end of a copy: `pinned`, `pageable` or `managed`."),
    ("mode", "`sync` where the call waits for the copy, else `async`."),
    ("name", "The GPU's model."),
    ("namespace", "The Kubernetes namespace of the pod."),
    (
        "numbering",
        "`process` where it is not certain which GPU of the host is meant: `gpu` is the process's own number then.",
    ),
    ("path", "The path that was asked for over HTTP."),
    ("pci", "The place on the bus."),
    ("pid", "The process, by its number in the namespace of gpuprobe."),
    ("pod", "The Kubernetes pod of the process."),
    ("process", "The name of the process, as the kernel has it."),
    ("processor", "Who touched unified memory where it was not: `cpu` or `gpu`."),
    (
        "reason",
        "Why: of a file or of a function of the kernel, why it is not probed; of a GPU, why its clocks are held back.",
    ),
    ("severity", "Whether an error was corrected."),
    (
        "site",
        "The place in the program: function and line, and the caller where that is not enough; `other` is the rest.",
    ),
    ("state", "`attached`, or `skipped` where a function has no probe."),
    ("uuid", "The GPU's name for itself; it stays when numbers change."),
    ("version", "The version of gpuprobe."),
    ("xid", "The number of the driver's error."),
];

/// The page.
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
    fn nothing_in_the_table_breaks_a_row() {
        assert!(metrics().all(|metric| !metric.help.contains('|')));
        assert!(LABELS.iter().all(|(_, meaning)| !meaning.contains(['|', '\n'])));
    }
}
