//! How much of the memory that a framework has reserved is free, but in pieces: it is part of segments that have live
//! tensors, so that the framework cannot give it back.

use std::collections::HashMap;

use gpuprobe_event::counters::{Allocation, DeviceRange, ProcessKey};
use serde::Serialize;

/// Of one process on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fragmentation {
    /// Free bytes inside segments that have at least one live tensor.
    pub bytes: u64,
    /// Bytes of live tensors whose segments were not observed. The free bytes of these segments are not known.
    pub unplaced_bytes: u64,
}

/// By process, and by the process's number of the GPU.
pub type FragmentationByGpu = HashMap<(ProcessKey, Option<u8>), Fragmentation>;

/// A part of device memory that a framework has reserved at once.
#[derive(Clone, Copy, Debug)]
struct Segment {
    process: ProcessKey,
    start: u64,
    end: u64,
    is_mapping: bool,
    /// The GPU of its tensors, and their bytes.
    gpu: Option<u8>,
    used: u64,
}

/// Finds the segment of every live tensor. Processes and GPUs without a live tensor are left out: nothing there is
/// fragmented.
pub fn fragmentation(tensors: &[Allocation], ranges: &[DeviceRange]) -> FragmentationByGpu {
    let mut segments = segments(ranges);
    let mut found = FragmentationByGpu::new();
    for tensor in tensors {
        let of_gpu = found.entry((tensor.process, tensor.gpu)).or_default();
        let after = segments.partition_point(|s| (s.process, s.start) <= (tensor.process, tensor.ptr));
        let segment = after.checked_sub(1).and_then(|at| segments.get_mut(at));
        let end = tensor.ptr.saturating_add(tensor.bytes);
        match segment.filter(|segment| segment.process == tensor.process && end <= segment.end) {
            Some(segment) => {
                segment.gpu = tensor.gpu;
                segment.used = segment.used.saturating_add(tensor.bytes);
            }
            None => of_gpu.unplaced_bytes = of_gpu.unplaced_bytes.saturating_add(tensor.bytes),
        }
    }
    for segment in segments.iter().filter(|segment| segment.used > 0) {
        let free = (segment.end - segment.start).saturating_sub(segment.used);
        let sum = &mut found.entry((segment.process, segment.gpu)).or_default().bytes;
        *sum = sum.saturating_add(free);
    }
    found
}

/// The segments in the order of their addresses. An expandable segment consists of mappings that follow each other.
fn segments(ranges: &[DeviceRange]) -> Vec<Segment> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|range| (range.process, range.start));
    let mut segments: Vec<Segment> = Vec::with_capacity(ranges.len());
    for DeviceRange { process, start, bytes, is_mapping } in ranges {
        let end = start.saturating_add(bytes);
        match segments.last_mut() {
            Some(last) if is_mapping && last.is_mapping && (last.process, last.end) == (process, start) => {
                last.end = end;
            }
            _ => segments.push(Segment { process, start, end, is_mapping, gpu: None, used: 0 }),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{SiteId, Space, Tgid};

    use super::*;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { tgid: Tgid(pid), instance: 1 }
    }

    fn tensor(pid: u32, gpu: u8, ptr: u64, bytes: u64) -> Allocation {
        let (process, gpu) = (key(pid), Some(gpu));
        Allocation { process, ptr, bytes, space: Space::Device, gpu, since_ns: 0, site: SiteId(1) }
    }

    fn range(pid: u32, start: u64, bytes: u64, is_mapping: bool) -> DeviceRange {
        DeviceRange { process: key(pid), start, bytes, is_mapping }
    }

    fn found(tensors: &[Allocation], ranges: &[DeviceRange], pid: u32, gpu: u8) -> Option<(u64, u64)> {
        let all = fragmentation(tensors, ranges);
        all.get(&(key(pid), Some(gpu))).map(|found| (found.bytes, found.unplaced_bytes))
    }

    #[test]
    fn free_bytes_count_only_in_segments_with_a_tensor() {
        // the second segment follows the first one and is empty; the third is on another GPU
        let ranges = [range(1, 300, 100, false), range(1, 0, 100, false), range(1, 100, 100, false)];
        let tensors = [tensor(1, 0, 0, 10), tensor(1, 0, 90, 10), tensor(1, 1, 350, 50)];
        assert_eq!(found(&tensors, &ranges, 1, 0), Some((80, 0)));
        assert_eq!(found(&tensors, &ranges, 1, 1), Some((50, 0)));
        assert_eq!(found(&tensors, &ranges, 2, 0), None);
    }

    #[test]
    fn mappings_that_follow_each_other_are_one_segment() {
        let ranges = [range(1, 20, 10, true), range(1, 0, 10, true), range(1, 10, 10, true)];
        assert_eq!(found(&[tensor(1, 0, 5, 10)], &ranges, 1, 0), Some((20, 0)));
        // but not across a gap, another process, or an allocation
        let ranges = [range(1, 0, 10, true), range(1, 10, 10, false), range(2, 10, 10, true)];
        assert_eq!(found(&[tensor(1, 0, 5, 5)], &ranges, 1, 0), Some((5, 0)));
        assert_eq!(found(&[tensor(1, 0, 5, 10)], &ranges, 1, 0), Some((0, 10)));
    }

    #[test]
    fn tensors_outside_of_all_segments_are_counted_as_such() {
        let ranges = [range(1, 100, 100, false), range(2, 500, 100, false)];
        let tensors =
            [tensor(1, 0, 0, 7), tensor(1, 0, 150, 60), tensor(1, 0, 500, 1), tensor(1, 0, 100, 40)];
        assert_eq!(found(&tensors, &ranges, 1, 0), Some((60, 68)));
    }

    #[test]
    fn impossible_addresses_do_no_harm() {
        let ranges = [range(1, u64::MAX - 5, 100, true), range(1, 0, u64::MAX, false)];
        let twice = [tensor(1, 0, 8, u64::MAX / 2 + 9), tensor(1, 0, 8, u64::MAX / 2 + 9)];
        assert_eq!(found(&twice, &ranges, 1, 0), Some((0, 0)));
        assert_eq!(found(&[tensor(1, 0, u64::MAX, u64::MAX)], &ranges, 1, 0), Some((0, 0)));
    }
}
