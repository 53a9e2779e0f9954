//! Who was using a GPU that reported an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use gpuprobe_analysis::GpuErrors;
use gpuprobe_discover::{DRIVER_FOLDER, host_gpus};
use gpuprobe_event::{Evidence, HostGpu, PciAddress, Tgid, XidEvent, XidProcess};
use gpuprobe_output::units::printable;

use crate::notes::note;

/// Processes that are told with one error.
const MOST_PROCESSES: usize = 32;
/// The name of a process that is not known.
const UNKNOWN: &str = "?";
/// Files of a process that are looked at.
const MOST_FILES: usize = 4096;

/// Finds out who has to do with an error: the process that the driver names, and those that have the GPU open in this
/// moment. Of those that are watched and have ended by now, nobody knows.
pub(crate) fn fill_users(xids: &mut [XidEvent], proc_root: &Path) {
    for xid in xids {
        let named = xid.named_pid();
        // one that has ended has the name by which the driver knew it
        let known = xid.named_process().unwrap_or(UNKNOWN);
        let mut users: Vec<_> =
            named.map(|pid| user(proc_root, (pid, known), Evidence::Named)).into_iter().collect();
        let device = device_of(xid);
        if let Some(device) = &device {
            let others = openers(proc_root, device).filter(|pid| Some(*pid) != named);
            users.extend(others.map(|pid| user(proc_root, (pid, UNKNOWN), Evidence::Opened)));
        }
        // one that has ended and is not buried yet has nothing open any more
        let is_there = |pid: u32| {
            let files = fs::read_dir(proc_root.join(pid.to_string()).join("fd"));
            files.is_ok_and(|mut files| files.next().is_some())
        };
        let mut watched = std::mem::take(&mut xid.processes);
        watched.retain(|process| {
            let is_known = users.iter().any(|user| user.tgid == process.tgid);
            !is_known && (device.is_none() || !is_there(process.tgid.0))
        });
        users.extend(watched);
        users.truncate(MOST_PROCESSES);
        xid.processes = users;
    }
}

fn user(proc_root: &Path, (pid, known): (u32, &str), evidence: Evidence) -> XidProcess {
    let name = fs::read(proc_root.join(pid.to_string()).join("comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
    let process: Arc<str> = if name.is_empty() { known.into() } else { name.into() };
    XidProcess { tgid: Tgid(pid), process, evidence }
}

/// The device file of the GPU.
fn device_of(xid: &XidEvent) -> Option<String> {
    let place = PciAddress::parse(&xid.gpu)?;
    let gpu = host_gpus(Path::new(DRIVER_FOLDER)).into_iter().find(|gpu| gpu.pci == place)?;
    Some(format!("/dev/nvidia{}", gpu.minor?))
}

/// Processes that have a file of this name open, but for ourselves.
fn openers(proc_root: &Path, device: &str) -> impl Iterator<Item = u32> {
    let has = move |pid: &u32| {
        let files = fs::read_dir(proc_root.join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
        let is_it = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(device));
        files.take(MOST_FILES).any(is_it)
    };
    let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).filter(has)
}

/// Pairs of a GPU and an error that are counted: more than there are, unless somebody makes them up.
const MOST_COUNTS: usize = 4096;

/// How often each GPU reported each error, since the beginning.
#[derive(Debug, Default)]
pub(crate) struct XidCounts {
    counts: BTreeMap<(PciAddress, u32), u64>,
}

impl XidCounts {
    /// Counts an error, and tells of it: who runs a host reads the daemon's log.
    pub(crate) fn add(&mut self, xid: &XidEvent) {
        note!("gpuprobe: {}", printable(&gpuprobe_output::xid_line(xid)));
        let Some(place) = PciAddress::parse(&xid.gpu) else { return };
        if self.counts.len() < MOST_COUNTS || self.counts.contains_key(&(place, xid.number)) {
            *self.counts.entry((place, xid.number)).or_default() += 1;
        }
    }

    /// By the host's numbers of its GPUs.
    pub(crate) fn numbered(&self, gpus: &[HostGpu]) -> Vec<GpuErrors> {
        let number = |place: PciAddress| gpus.iter().find(|gpu| gpu.pci == place).map(|gpu| gpu.index);
        let errors = |(&(place, xid), &count): (&(PciAddress, u32), &u64)| {
            Some(GpuErrors { gpu: number(place)?, xid: xid.into(), count })
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
    fn the_driver_names_a_process_in_several_ways_or_not_at_all() {
        let pid = |message: &str| xid(message).named_pid();
        assert_eq!(pid("pid=436, name=python3, Ch 00000008"), Some(436));
        assert_eq!(pid("pid='436', name=python3"), Some(436));
        assert_eq!(pid("pid='<unknown>', name=<unknown>"), None);
        assert_eq!((pid("GPU has fallen off the bus."), pid("pid=")), (None, None));
    }

    #[test]
    fn a_process_that_is_named_is_told_with_its_name() {
        let own = std::process::id();
        let mut xids = [xid(&format!("pid={own}, name=x"))];
        fill_users(&mut xids, Path::new("/proc"));
        let [user] = xids[0].processes.as_slice() else { panic!("{xids:?}") };
        assert_eq!((user.tgid, user.evidence), (Tgid(own), Evidence::Named));
        assert_ne!(&*user.process, "?");
    }

    #[test]
    fn one_that_has_ended_has_the_name_that_the_driver_gives() {
        let names = |message: &str| {
            let mut xids = [xid(message)];
            fill_users(&mut xids, Path::new("/nowhere"));
            xids[0].processes.iter().map(|user| user.process.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("pid='436', name=python3, Ch 00000008"), ["python3"]);
        assert_eq!(names("pid=436, name=<unknown>"), ["?"]);
        assert_eq!((names("pid=436"), names("pid=436, name=, x")), (vec!["?".into()], vec!["?".into()]));
    }

    #[test]
    fn who_was_watched_and_has_ended_may_have_used_it() {
        let watched = |pid| XidProcess { tgid: Tgid(pid), process: "p".into(), evidence: Evidence::Watched };
        let mut xids = [xid("GPU has fallen off the bus.")];
        // no process has a number as high as this
        xids[0].processes = vec![watched(u32::MAX)];
        fill_users(&mut xids, Path::new("/proc"));
        assert_eq!(xids[0].processes, [watched(u32::MAX)]);
    }

    #[test]
    fn errors_are_counted_by_the_hosts_numbers() {
        let mut counts = XidCounts::default();
        (0..3).for_each(|_| counts.add(&xid("x")));
        let pci = PciAddress { domain: 0, bus: 15, device: 0, function: 0 };
        let gpu = HostGpu { index: 4, uuid: None, pci, minor: None, is_parted: false };
        assert_eq!(counts.numbered(&[gpu]), [GpuErrors { gpu: 4, xid: 31, count: 3 }]);
        assert_eq!(counts.numbered(&[]), []);
    }

    #[test]
    fn those_who_have_a_file_open_are_found() {
        let found: Vec<_> = openers(Path::new("/proc"), "/dev/no-such-device").collect();
        assert_eq!(found, [] as [u32; 0]);
    }
}
