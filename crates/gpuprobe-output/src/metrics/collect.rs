//! Collects gauges, and metrics of gpuprobe itself, from a snapshot. Gauges of a process end when it exits.

use std::collections::HashSet;
use std::sync::Arc;

use gpuprobe_analysis::leaks::call_sites::number_duplicates;
use gpuprobe_analysis::snapshot::GpuMemory;
use gpuprobe_analysis::{CallSiteMemory, ProcessCallSites, ProcessSnapshot, Snapshot, Total};
use gpuprobe_event::{Container, Gpu, Tgid};

use super::labels::clean;
use super::samples::Samples;
use crate::units::fitted;

/// Longer names of call sites are shortened: function names may have thousands of characters.
const LONGEST_SITE: usize = 160;
/// The `site` label of all call sites without a series of their own.
const OTHER: &str = "other";

/// Begins the series of a process.
pub(super) fn begin_process(samples: &mut Samples, process: &ProcessSnapshot) {
    begin_named(samples, process.pid, &process.name, process.container.as_ref());
}

/// Begins the series of a process by its pid, name and container.
pub(super) fn begin_named(samples: &mut Samples, pid: Tgid, name: &str, container: Option<&Container>) {
    samples.set_process(samples.plan().series_of(pid, name, container).labels(), "");
}

/// Whether a process shares its series with no other.
fn has_own(samples: &Samples, pid: Tgid, name: &str, container: Option<&Container>) -> bool {
    !samples.plan().series_of(pid, name, container).is_shared()
}

/// The labels `gpu` and `numbering`.
pub(super) fn gpu_labels(gpu: Option<Gpu>) -> (String, &'static str) {
    let number = gpu.map(|gpu| gpu.number().to_string()).unwrap_or_default();
    (number, if matches!(gpu, Some(Gpu::OfProcess(_))) { "process" } else { "" })
}

fn each_kind(snapshot: &Snapshot, samples: &mut Samples, value: impl Fn(&GpuMemory) -> u64) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none()) {
        begin_process(samples, process);
        for live in &process.memory.live {
            let (gpu, numbering) = gpu_labels(live.gpu);
            samples.number(&[&gpu, numbering, live.amount.kind.as_str()], value(live));
        }
    }
}

pub(super) fn live_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_kind(snapshot, samples, |live| live.amount.bytes);
}

pub(super) fn live_allocations(snapshot: &Snapshot, samples: &mut Samples) {
    each_kind(snapshot, samples, |live| live.amount.allocations);
}

/// Call sites with series of their own, and the sum of the others of their process.
pub(super) fn each_site<'a>(
    processes: impl Iterator<Item = &'a ProcessCallSites>,
    samples: &mut Samples,
    value: impl Fn(&CallSiteMemory) -> u64,
    rest: impl Fn(&Total) -> u64,
) {
    for process in processes.filter(|p| !p.has_exited) {
        begin_named(samples, process.pid, &process.name, process.container.as_ref());
        let has_own = has_own(samples, process.pid, &process.name, process.container.as_ref());
        let mut put = |label: &str, n| samples.number(&[label], n);
        let (shown, others): (Vec<_>, Vec<_>) =
            process.call_sites.iter().partition(|site| site.has_series && has_own);
        site_labels(&shown).iter().zip(&shown).for_each(|(label, site)| put(label, value(site)));
        others.iter().for_each(|site| put(OTHER, value(site)));
        put(OTHER, rest(&process.other));
    }
}

/// Unique labels for call sites: names that were shortened or cleaned may have become equal.
fn site_labels(sites: &[&CallSiteMemory]) -> Vec<String> {
    let mut labels: Vec<String> = sites.iter().map(|p| clean(&fitted(&p.name, LONGEST_SITE))).collect();
    number_duplicates(&mut labels, &sites.iter().map(|p| Arc::clone(&p.call_site)).collect::<Vec<_>>());
    labels
}

pub(super) fn site_live_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_site(snapshot.call_sites.iter(), samples, |site| site.live.bytes, |other| other.bytes);
}

pub(super) fn site_live_allocations(snapshot: &Snapshot, samples: &mut Samples) {
    each_site(snapshot.call_sites.iter(), samples, |site| site.live.count, |other| other.count);
}

pub(super) fn leak_suspects(snapshot: &Snapshot, samples: &mut Samples) {
    each_site(snapshot.call_sites.iter(), samples, |site| u64::from(site.is_suspect()), |_| 0);
}

pub(super) fn sites_not_followed(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.call_sites.iter().filter(|p| !p.has_exited) {
        begin_named(samples, process.pid, &process.name, process.container.as_ref());
        samples.number(&[], process.not_followed as u64);
    }
}

pub(super) fn peak(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none() && !p.memory.live.is_empty())
    {
        begin_process(samples, process);
        samples.at_least(&[], process.memory.peak_bytes, 0);
    }
}

/// The longest gap of each kind, of running processes only.
pub(super) fn longest_gaps(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none()) {
        begin_process(samples, process);
        let mut written = HashSet::new();
        // sorted by length, the longest first
        for gap in &process.gpu_ops.gaps.longest {
            let (after, meanwhile) = (gap.kind.as_str(), gap.meanwhile.unwrap_or("none"));
            if written.insert((after, meanwhile)) {
                samples.at_least(&[after, meanwhile], gap.ns, 9);
            }
        }
    }
}

pub(super) fn pending_calls(snapshot: &Snapshot, samples: &mut Samples) {
    for call in &snapshot.pending {
        begin_named(samples, call.pid, &call.name, call.container.as_ref());
        samples.at_least(&[call.function], call.age_ns, 9);
    }
}

pub(super) fn exited_processes(snapshot: &Snapshot, samples: &mut Samples) {
    for past in &snapshot.past {
        samples.number(&[&past.name], past.processes);
    }
}

pub(super) fn gpus(snapshot: &Snapshot, samples: &mut Samples) {
    for gpu in &snapshot.gpus {
        let uuid = gpu.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
        samples.number(&[&gpu.index.to_string(), &uuid, &gpu.pci.to_string()], 1);
    }
}

pub(super) fn lost(snapshot: &Snapshot, samples: &mut Samples) {
    for loss in &snapshot.losses {
        samples.number(&[loss.cause.as_str()], loss.count);
    }
}

pub(super) fn probes(snapshot: &Snapshot, samples: &mut Samples) {
    for library in &snapshot.libraries {
        samples.number(&[&library.path, "attached"], library.attached);
        samples.number(&[&library.path, "skipped"], library.skipped);
    }
}

pub(super) fn skipped(snapshot: &Snapshot, samples: &mut Samples) {
    for skipped in &snapshot.skipped {
        samples.number(&[skipped.reason], skipped.files);
    }
}

pub(super) fn build(_: &Snapshot, samples: &mut Samples) {
    samples.number(&[env!("CARGO_PKG_VERSION")], 1);
}
