//! The last line of a trace with the events of several.

use std::collections::BTreeMap;

use gpuprobe_event::trace::End;
use gpuprobe_event::{MemoryAmount, MemoryBySite, MemorySummary, TensorSummary, Tgid};

use super::alignment::Alignment;

impl Alignment {
    /// Joins the last lines of all recordings, `None` for those without one. Memory is only known if all have it.
    pub fn end(&self, ends: &[Option<End>]) -> End {
        let mut all = End::default();
        let mut memory = Some(Box::<MemorySummary>::default());
        let (mut sites, mut other_sites) = (Vec::new(), 0_u64);
        let (mut tensors, mut tensor_sites, mut other_tensor_sites) = (Vec::new(), Vec::new(), 0_u64);
        for (recording, end) in ends.iter().enumerate() {
            let Some(mut end) = end.clone() else {
                memory = None;
                continue;
            };
            self.renumber(recording, &mut end);
            all.events = all.events.saturating_add(end.events);
            all.calls = all.calls.saturating_add(end.calls);
            let starts_ns = self.recordings().get(recording).map_or(0, |of| of.starts_ns);
            all.seconds = all.seconds.max(starts_ns as f64 / 1e9 + end.seconds);
            for (cause, count) in end.lost {
                let sum = all.lost.entry(cause).or_default();
                *sum = sum.saturating_add(count);
            }
            let host = self.recordings().get(recording).map_or("", |of| of.host.as_str());
            all.skipped.extend(end.skipped.iter().map(|skipped| format!("{host}: {skipped}")));
            all.sampled.append(&mut end.sampled);
            all.unified.append(&mut end.unified);
            memory = memory.zip(end.memory).map(|(sum, more)| Box::new(joined(*sum, &more)));
            sites.append(&mut end.memory_by_site.sites);
            other_sites = other_sites.saturating_add(end.memory_by_site.other_sites);
            tensors.append(&mut end.tensors.gpus);
            tensor_sites.append(&mut end.tensors.by_site.sites);
            other_tensor_sites = other_tensor_sites.saturating_add(end.tensors.by_site.other_sites);
        }
        End {
            memory,
            memory_by_site: MemoryBySite::new(sites, other_sites),
            tensors: TensorSummary::new(tensors, MemoryBySite::new(tensor_sites, other_tensor_sites)),
            ..all
        }
    }

    /// Numbers and names the processes of a last line.
    fn renumber(&self, recording: usize, end: &mut End) {
        let renumber = |pid: &mut Tgid, process: &mut String| {
            *pid = pid.of_recording(recording);
            if let Some(name) = self.process_name(*pid) {
                name.clone_into(process);
            }
        };
        for of in &mut end.unified {
            of.pid = Tgid(of.pid).of_recording(recording).0;
        }
        let sites = end.memory_by_site.sites.iter_mut().chain(&mut end.tensors.by_site.sites);
        sites.for_each(|site| renumber(&mut site.pid, &mut site.process));
        end.tensors.gpus.iter_mut().for_each(|gpu| renumber(&mut gpu.pid, &mut gpu.process));
    }
}

/// The memory of several recordings. The peak is that of one process.
fn joined(sum: MemorySummary, more: &MemorySummary) -> MemorySummary {
    MemorySummary {
        allocated: sum.allocated.plus(more.allocated),
        failed_allocations: sum.failed_allocations.saturating_add(more.failed_allocations),
        freed: sum.freed.plus(more.freed),
        replaced: sum.replaced.plus(more.replaced),
        failed_frees: sum.failed_frees.saturating_add(more.failed_frees),
        unknown_frees: sum.unknown_frees.saturating_add(more.unknown_frees),
        freed_with_context: sum.freed_with_context.plus(more.freed_with_context),
        freed_by_exit: amounts(&sum.freed_by_exit, &more.freed_by_exit),
        peak_bytes: sum.peak_bytes.max(more.peak_bytes),
        live: amounts(&sum.live, &more.live),
    }
}

fn amounts(sum: &[MemoryAmount], more: &[MemoryAmount]) -> Vec<MemoryAmount> {
    let mut kinds: BTreeMap<_, MemoryAmount> = BTreeMap::new();
    for amount in sum.iter().chain(more) {
        let none = MemoryAmount { kind: amount.kind, ..MemoryAmount::default() };
        let kind = kinds.entry(amount.kind).or_insert(none);
        kind.allocations = kind.allocations.saturating_add(amount.allocations);
        kind.bytes = kind.bytes.saturating_add(amount.bytes);
    }
    let mut amounts: Vec<_> = kinds.into_values().collect();
    amounts.sort_by_key(|amount| (std::cmp::Reverse(amount.bytes), amount.kind));
    amounts
}
