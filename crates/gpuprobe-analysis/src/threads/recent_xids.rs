//! GPU errors (XIDs) in the kernel log, and the processes that they belong to.

use std::cmp::Reverse;

use gpuprobe_event::{PciAddress, Tgid};

use super::report::ProcessThreads;

/// Ages of processes are known to the second, by another clock than that of the log.
const CLOCKS_DIFFER_BY_NS: u64 = 2_000_000_000;

/// An error in the kernel log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentXid {
    pub number: u32,
    /// The host's number of the GPU; `None` if it is not listed, as one that has fallen off the bus.
    pub gpu: Option<u32>,
    pub pci: PciAddress,
    /// The process that the message names.
    pub pid: Option<Tgid>,
    pub age_ns: u64,
}

/// The errors in the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentXids {
    pub xids: Vec<RecentXid>,
    /// Why there may be others.
    pub problem: Option<String>,
}

/// The errors of one number on one GPU that belong to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessXids {
    pub number: u32,
    /// The host's number of the GPU.
    pub gpu: Option<u32>,
    pub pci: PciAddress,
    pub count: u64,
    /// The age of the last one.
    pub age_ns: u64,
    /// Whether a message names the process; else they are errors of its GPU.
    pub is_named: bool,
}

impl RecentXids {
    /// The errors of a process that uses these GPUs, the last one first: those whose messages name it, and those of its
    /// GPUs whose messages name none.
    pub fn of_process(&self, process: &ProcessThreads, gpus: &[u32]) -> Vec<ProcessXids> {
        let mut found: Vec<ProcessXids> = Vec::new();
        for xid in &self.xids {
            let belongs = match xid.pid {
                Some(pid) => pid == process.tgid && !is_before(xid, process),
                None => xid.gpu.is_some_and(|gpu| gpus.contains(&gpu)),
            };
            if !belongs {
                continue;
            }
            let is_named = xid.pid.is_some();
            match found.iter_mut().find(|known| (known.number, known.pci) == (xid.number, xid.pci)) {
                Some(known) => {
                    known.count += 1;
                    known.age_ns = known.age_ns.min(xid.age_ns);
                    known.is_named |= is_named;
                }
                None => found.push(ProcessXids {
                    number: xid.number,
                    gpu: xid.gpu,
                    pci: xid.pci,
                    count: 1,
                    age_ns: xid.age_ns,
                    is_named,
                }),
            }
        }
        found.sort_by_key(|xids| (xids.age_ns, Reverse(xids.count)));
        found
    }

    /// Whether the log has such an error, of any process.
    pub fn has(&self, gpu: u32, number: u64) -> bool {
        self.xids.iter().any(|xid| xid.gpu == Some(gpu) && u64::from(xid.number) == number)
    }
}

/// Whether an error is older than the process: another one had that pid then.
fn is_before(xid: &RecentXid, process: &ProcessThreads) -> bool {
    let age = process.age_ns.map(|age_ns| age_ns.saturating_add(CLOCKS_DIFFER_BY_NS));
    age.is_some_and(|age_ns| xid.age_ns > age_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn xid(number: u32, gpu: u8, pid: Option<u32>, seconds: u64) -> RecentXid {
        let pci = PciAddress { domain: 0, bus: gpu, device: 0, function: 0 };
        let gpu = (gpu < 8).then_some(gpu.into());
        RecentXid { number, gpu, pci, pid: pid.map(Tgid), age_ns: seconds * SECOND }
    }

    fn process(tgid: u32, seconds: u64) -> ProcessThreads {
        ProcessThreads { tgid: Tgid(tgid), age_ns: Some(seconds * SECOND), ..ProcessThreads::default() }
    }

    fn found(xids: Vec<RecentXid>, process: &ProcessThreads, gpus: &[u32]) -> Vec<(u32, u64, u64, bool)> {
        let recent = RecentXids { xids, problem: None };
        let of_process = recent.of_process(process, gpus).into_iter();
        of_process.map(|x| (x.number, x.count, x.age_ns / SECOND, x.is_named)).collect()
    }

    #[test]
    fn errors_belong_to_the_process_that_is_named_or_to_those_of_the_gpu() {
        let all = vec![xid(31, 0, Some(7), 60), xid(79, 0, None, 50), xid(48, 1, None, 40)];
        assert_eq!(found(all.clone(), &process(7, 900), &[0]), [(79, 1, 50, false), (31, 1, 60, true)]);
        assert_eq!(found(all.clone(), &process(8, 900), &[0]), [(79, 1, 50, false)]);
        assert_eq!(found(all.clone(), &process(8, 900), &[1]), [(48, 1, 40, false)]);
        assert_eq!(found(all.clone(), &process(7, 900), &[]), [(31, 1, 60, true)], "its GPU is not known");
        assert_eq!(found(vec![xid(79, 9, None, 5)], &process(7, 900), &[9]), [], "not a GPU of the host");
        assert_eq!(found(vec![xid(79, 9, Some(7), 5)], &process(7, 900), &[]), [(79, 1, 5, true)]);
    }

    #[test]
    fn errors_are_counted_by_number_and_gpu() {
        let all = vec![xid(31, 0, Some(7), 60), xid(31, 0, None, 20), xid(31, 1, Some(7), 30)];
        assert_eq!(found(all, &process(7, 900), &[0, 1]), [(31, 2, 20, true), (31, 1, 30, true)]);
    }

    #[test]
    fn an_error_from_before_the_start_names_another_process() {
        let all = vec![xid(31, 0, Some(7), 60)];
        assert_eq!(found(all.clone(), &process(7, 50), &[0]), []);
        assert_eq!(found(all.clone(), &process(7, 59), &[0]).len(), 1, "the start is not known better");
        let unknown = ProcessThreads { age_ns: None, ..process(7, 0) };
        assert_eq!(found(all, &unknown, &[0]).len(), 1);
        let gpu = vec![xid(79, 0, None, 60)];
        assert_eq!(found(gpu, &process(7, 50), &[0]).len(), 1, "the GPU may still be broken");
    }

    #[test]
    fn the_log_has_errors_of_any_process() {
        let recent = RecentXids { xids: vec![xid(31, 0, Some(7), 60)], problem: None };
        assert!(recent.has(0, 31) && !recent.has(1, 31) && !recent.has(0, u64::MAX));
    }
}
