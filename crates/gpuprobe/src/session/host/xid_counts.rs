//! Counts the errors (XIDs) that each GPU reports.

use std::collections::BTreeMap;

use gpuprobe_analysis::GpuErrors;
use gpuprobe_event::{HostGpu, PciAddress, XidEvent};
use gpuprobe_output::units::printable;

use crate::terminal::notes::note;

/// Most pairs of a GPU and an error number. Real hosts have fewer; the limit guards against made-up messages.
const MOST_COUNTS: usize = 4096;

/// How often each GPU reported each error since the start.
#[derive(Debug, Default)]
pub(crate) struct XidCounts {
    counts: BTreeMap<(PciAddress, u32), u64>,
}

impl XidCounts {
    /// Counts an error and writes it to the daemon's log.
    pub(crate) fn add(&mut self, xid: &XidEvent) {
        note!("gpuprobe: {}", printable(&gpuprobe_output::xid_line(xid)));
        let Some(pci) = PciAddress::parse(&xid.gpu) else { return };
        if self.counts.len() < MOST_COUNTS || self.counts.contains_key(&(pci, xid.number)) {
            *self.counts.entry((pci, xid.number)).or_default() += 1;
        }
    }

    /// The counts by the host's GPU numbers.
    pub(crate) fn indexed(&self, gpus: &[HostGpu]) -> Vec<GpuErrors> {
        let number = |pci: PciAddress| gpus.iter().find(|gpu| gpu.pci == pci).map(|gpu| gpu.index);
        let errors = |(&(pci, xid), &count): (&(PciAddress, u32), &u64)| {
            Some(GpuErrors { gpu: number(pci)?, xid: xid.into(), count })
        };
        let mut all: Vec<_> = self.counts.iter().filter_map(errors).collect();
        all.sort_unstable_by_key(|errors| (errors.gpu, errors.xid));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(message: &str) -> XidEvent {
        let (gpu, message) = ("0000:0f:00.0".into(), message.into());
        XidEvent { id: 1, at_ns: 0, number: 31, gpu, message, processes: Vec::new() }
    }

    #[test]
    fn errors_are_counted_by_gpu_number() {
        let mut counts = XidCounts::default();
        (0..3).for_each(|_| counts.add(&xid("x")));
        let address = PciAddress { domain: 0, bus: 15, device: 0, function: 0 };
        let gpu = HostGpu { index: 4, uuid: None, pci: address, minor: None, is_parted: false };
        assert_eq!(counts.indexed(&[gpu]), [GpuErrors { gpu: 4, xid: 31, count: 3 }]);
        assert_eq!(counts.indexed(&[]), []);
    }
}
