//! What gauges, and metrics of gpuprobe itself, take from a snapshot. Gauges of a process end with it.

use std::collections::HashSet;
use std::sync::Arc;

use gpuprobe_analysis::leaks::call_sites::number_alike;
use gpuprobe_analysis::snapshot::GpuMemory;
use gpuprobe_analysis::{PlaceMemory, ProcessSnapshot, Snapshot, Total};
use gpuprobe_event::{Container, Gpu, Tgid};

use super::Samples;
use super::write::clean;
use crate::units::fitted;

/// Names of functions may be as long as a page.
const LONGEST_SITE: usize = 160;
/// The site of whatever has no series of its own.
const OTHER: &str = "other";

/// Begins the series of one process.
pub(super) fn of_process(samples: &mut Samples, process: &ProcessSnapshot) {
    named(samples, process.pid, &process.name, process.container.as_ref());
}

pub(super) fn named(samples: &mut Samples, pid: Tgid, name: &str, container: Option<&Container>) {
    let id = container.map_or("", |container| &container.id);
    let pod = container.and_then(|container| container.pod.as_ref());
    let [container, pod, namespace] =
        pod.map_or([""; 3], |pod| [&pod.container, &pod.name, &pod.namespace].map(String::as_str));
    samples.of(&[&pid.to_string(), name, id, container, pod, namespace]);
}

fn each_kind(snapshot: &Snapshot, samples: &mut Samples, value: impl Fn(&GpuMemory) -> u64) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none()) {
        of_process(samples, process);
        for held in &process.memory.live {
            let gpu = held.gpu.map(|gpu| gpu.number().to_string()).unwrap_or_default();
            let numbering = if matches!(held.gpu, Some(Gpu::OfProcess(_))) { "process" } else { "" };
            samples.number(&[&gpu, numbering, held.amount.kind.as_str()], value(held));
        }
    }
}

pub(super) fn live_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_kind(snapshot, samples, |held| held.amount.bytes);
}

pub(super) fn live_allocations(snapshot: &Snapshot, samples: &mut Samples) {
    each_kind(snapshot, samples, |held| held.amount.allocations);
}

/// Places with series of their own, and what all others of their process come to.
fn each_site(
    snapshot: &Snapshot,
    samples: &mut Samples,
    value: impl Fn(&PlaceMemory) -> u64,
    rest: impl Fn(&Total) -> u64,
) {
    for process in snapshot.places.iter().filter(|p| !p.has_ended) {
        named(samples, process.pid, &process.name, process.container.as_ref());
        let mut put = |site: &str, n| samples.number(&[site], n);
        let (shown, others): (Vec<_>, Vec<_>) = process.places.iter().partition(|place| place.has_series);
        site_labels(&shown).iter().zip(&shown).for_each(|(site, place)| put(site, value(place)));
        others.iter().for_each(|place| put(OTHER, value(place)));
        put(OTHER, rest(&process.other));
    }
}

/// Labels for places, no two alike: what is left of a name in a label may be the same for several.
fn site_labels(places: &[&PlaceMemory]) -> Vec<String> {
    let mut labels: Vec<String> = places.iter().map(|p| clean(&fitted(&p.name, LONGEST_SITE))).collect();
    number_alike(&mut labels, &places.iter().map(|p| Arc::clone(&p.place)).collect::<Vec<_>>());
    labels
}

pub(super) fn site_live_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_site(snapshot, samples, |place| place.live.bytes, |other| other.bytes);
}

pub(super) fn site_live_allocations(snapshot: &Snapshot, samples: &mut Samples) {
    each_site(snapshot, samples, |place| place.live.count, |other| other.count);
}

pub(super) fn leak_suspects(snapshot: &Snapshot, samples: &mut Samples) {
    each_site(snapshot, samples, |place| u64::from(place.is_suspect()), |_| 0);
}

pub(super) fn sites_not_followed(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.places.iter().filter(|p| !p.has_ended) {
        named(samples, process.pid, &process.name, process.container.as_ref());
        samples.number(&[], process.not_followed as u64);
    }
}

pub(super) fn peak(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none() && !p.memory.live.is_empty())
    {
        of_process(samples, process);
        samples.number(&[], process.memory.peak_bytes);
    }
}

/// What one of many did is a gauge of a process that runs.
pub(super) fn longest_gaps(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none()) {
        of_process(samples, process);
        let mut told = HashSet::new();
        // the longest come first
        for gap in &process.work.gaps.longest {
            let (after, meanwhile) = (gap.kind.as_str(), gap.meanwhile.unwrap_or("none"));
            if told.insert((after, meanwhile)) {
                samples.nanoseconds(&[after, meanwhile], gap.ns);
            }
        }
    }
}

pub(super) fn ended_processes(snapshot: &Snapshot, samples: &mut Samples) {
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
