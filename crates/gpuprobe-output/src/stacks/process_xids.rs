//! The GPU errors (XIDs) that belong to a process: those in the kernel log, and those that NVML counted.

use std::borrow::Cow;

use gpuprobe_analysis::{GpuErrors, GpuStates, ProcessThreads, ProcessXids, RecentXids};
use gpuprobe_event::{PciAddress, driver};
use serde_json::{Value, json};

use super::process_gpus::ProcessGpu;
use super::thread_text::how_long;
use crate::memory_json::seconds;

/// Errors of one number on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownXids {
    /// The host's number of the GPU.
    gpu: Option<u32>,
    /// NVML's counts have only the number.
    pci: Option<PciAddress>,
    xid: u64,
    count: u64,
    /// The age of the last one, if the kernel log has it.
    age_ns: Option<u64>,
    /// Whether the driver names the process.
    is_named: bool,
}

impl From<ProcessXids> for ShownXids {
    fn from(logged: ProcessXids) -> Self {
        let ProcessXids { number, gpu, pci, count, age_ns, is_named } = logged;
        Self { gpu, pci: Some(pci), xid: number.into(), count, age_ns: Some(age_ns), is_named }
    }
}

impl From<&GpuErrors> for ShownXids {
    fn from(counted: &GpuErrors) -> Self {
        let GpuErrors { gpu, xid, count } = *counted;
        Self { gpu: Some(gpu.into()), pci: None, xid, count, age_ns: None, is_named: false }
    }
}

/// The errors of a process that uses these GPUs. What NVML counted is in the kernel log, too, if that can be read.
pub(super) fn of_process(
    process: &ProcessThreads,
    gpus: &[ProcessGpu],
    states: &GpuStates,
    recent: &RecentXids,
) -> Vec<ShownXids> {
    let numbers: Vec<u32> = gpus.iter().map(|gpu| gpu.gpu).collect();
    let logged = recent.of_process(process, &numbers).into_iter().map(ShownXids::from);
    let is_missing = |errors: &&GpuErrors| {
        let gpu = u32::from(errors.gpu);
        numbers.contains(&gpu) && !recent.has(gpu, errors.xid)
    };
    logged.chain(states.xids.iter().filter(is_missing).map(ShownXids::from)).collect()
}

impl ShownXids {
    /// `XID 31 on GPU 3: GPU memory page fault (2 times, 4 min ago)`
    pub(super) fn text(&self) -> String {
        let gpu = match (self.gpu, self.pci) {
            (Some(number), _) => number.to_string(),
            (None, pci) => pci.map(|pci| pci.to_string()).unwrap_or_default(),
        };
        let meaning = self.meaning().map(|meaning| format!(": {meaning}")).unwrap_or_default();
        let times = (self.count != 1).then(|| format!("{} times", self.count));
        let last = if self.count == 1 { "" } else { "last " };
        let age = self.age_ns.map(|ns| format!("{last}{} ago", how_long(ns)));
        let known: Vec<String> = times.into_iter().chain(age).collect();
        let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
        format!("XID {} on GPU {gpu}{meaning}{known}", self.xid)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "gpu": self.gpu,
            "pci": self.pci.map(|pci| pci.to_string()),
            "xid": self.xid,
            "count": self.count,
            "age_seconds": self.age_ns.map(seconds),
            "named": self.is_named,
            "meaning": self.meaning(),
        })
    }

    /// What it means, if that is known.
    fn meaning(&self) -> Option<Cow<'static, str>> {
        driver::xid(u32::try_from(self.xid).ok()?).map(|known| known.meaning)
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::RecentXid;
    use gpuprobe_event::Tgid;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn shown(recent: &RecentXids) -> Vec<String> {
        let process = ProcessThreads { tgid: Tgid(7), ..ProcessThreads::default() };
        let gpus = [ProcessGpu { gpu: 1, busy_percent: None, busy_percent_by_process: None }];
        let errors = |gpu, xid, count| GpuErrors { gpu, xid, count };
        let xids = vec![errors(0, 79, 1), errors(1, 31, 3), errors(1, 999_999, 1)];
        let states = GpuStates { xids, ..GpuStates::default() };
        of_process(&process, &gpus, &states, recent).iter().map(ShownXids::text).collect()
    }

    fn logged(gpu: Option<u32>, number: u32, pid: Option<u32>, seconds: u64) -> RecentXid {
        let pci = PciAddress { domain: 0, bus: 15, device: 0, function: 0 };
        RecentXid { number, gpu, pci, pid: pid.map(Tgid), age_ns: seconds * SECOND }
    }

    #[test]
    fn what_nvml_counted_is_shown_if_the_log_has_it_not() {
        let meaning = driver::xid(31).unwrap().meaning;
        let counted = [format!("XID 31 on GPU 1: {meaning} (3 times)"), "XID 999999 on GPU 1".to_owned()];
        assert_eq!(shown(&RecentXids::default()), counted);
        let of_this = RecentXids { xids: vec![logged(Some(1), 31, Some(7), 240)], problem: None };
        let aged = format!("XID 31 on GPU 1: {meaning} (4 min ago)");
        assert_eq!(shown(&of_this), [&*aged, &counted[1]]);
        let of_another = RecentXids { xids: vec![logged(Some(1), 31, Some(8), 240)], problem: None };
        assert_eq!(shown(&of_another), [&*counted[1]], "NVML does not know which process it was");
    }

    #[test]
    fn a_gpu_that_is_gone_is_named_by_its_address() {
        let xids = [300, 240].map(|age| logged(None, 999_998, Some(7), age)).to_vec();
        let texts = shown(&RecentXids { xids, problem: None });
        assert_eq!(texts[0], "XID 999998 on GPU 0000:0f:00.0 (2 times, last 4 min ago)");
    }
}
