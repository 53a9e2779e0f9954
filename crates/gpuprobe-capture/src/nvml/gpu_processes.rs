//! The processes that use a GPU, merged from NVML's lists.

use std::collections::BTreeMap;

use gpuprobe_event::{GpuProcess, Tgid};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::{ProcessInfo, ProcessUtilizationSample};

/// Samples with more than this are invalid: some drivers fill in meaningless numbers.
const WHOLE: u32 = 100;

/// Each process once. One that computes and draws is in both lists with all its memory, so the larger figure counts.
/// One that uses several parts of a GPU (MIG) is in a list once for each part, with the memory of that part.
pub(super) fn merged(lists: &[Vec<ProcessInfo>], samples: &[ProcessUtilizationSample]) -> Vec<GpuProcess> {
    type Part = (Option<u32>, Option<u32>);
    let mut found: BTreeMap<u32, BTreeMap<Part, Option<u64>>> = BTreeMap::new();
    for process in lists.iter().flatten() {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let parts = found.entry(process.pid).or_default();
        let part = parts.entry((process.gpu_instance_id, process.compute_instance_id)).or_default();
        *part = (*part).max(bytes);
    }
    let process = |(pid, parts): (u32, BTreeMap<Part, Option<u64>>)| GpuProcess {
        pid: Tgid(pid),
        memory_bytes: parts.into_values().flatten().reduce(u64::saturating_add),
        busy_percent: busy(pid, samples),
    };
    found.into_iter().map(process).collect()
}

/// The newest sample of a process.
fn busy(pid: u32, samples: &[ProcessUtilizationSample]) -> Option<[u32; 4]> {
    let newest = samples.iter().filter(|sample| sample.pid == pid).max_by_key(|sample| sample.timestamp)?;
    let busy = [newest.sm_util, newest.mem_util, newest.enc_util, newest.dec_util];
    busy.iter().all(|percent| *percent <= WHOLE).then_some(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pid: u32, bytes: Option<u64>, part: Option<u32>) -> ProcessInfo {
        let used_gpu_memory = bytes.map_or(UsedGpuMemory::Unavailable, UsedGpuMemory::Used);
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: part, compute_instance_id: part }
    }

    fn sample(pid: u32, timestamp: u64, sm_util: u32) -> ProcessUtilizationSample {
        ProcessUtilizationSample { pid, timestamp, sm_util, mem_util: 2, enc_util: 3, dec_util: 4 }
    }

    #[test]
    fn a_process_is_reported_once_with_the_sum_of_its_parts() {
        let compute = vec![info(7, Some(100), None), info(8, None, None), info(9, Some(1), Some(1))];
        let graphics = vec![info(7, Some(100), None), info(9, Some(2), Some(2)), info(9, Some(1), Some(1))];
        let mps = vec![info(6, Some(5), None)];
        let samples =
            [sample(7, 2, 50), sample(7, 3, 60), sample(7, 1, 40), sample(9, 1, 101), sample(5, 1, 1)];
        let found: Vec<_> = merged(&[compute, graphics, mps], &samples)
            .into_iter()
            .map(|p| (p.pid.0, p.memory_bytes, p.busy_percent))
            .collect();
        let busy = Some([60, 2, 3, 4]);
        assert_eq!(found, [(6, Some(5), None), (7, Some(100), busy), (8, None, None), (9, Some(3), None)]);
    }
}
