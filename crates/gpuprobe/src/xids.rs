//! Who was using a GPU that reported an error.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gpuprobe_discover::{DRIVER_FOLDER, host_gpus};
use gpuprobe_event::{Evidence, PciAddress, Tgid, XidEvent, XidProcess};

/// Processes that are told with one error.
const MOST_PROCESSES: usize = 32;
/// Files of a process that are looked at.
const MOST_FILES: usize = 4096;

/// Fills in the process that the driver names, and those that had the GPU open in this moment.
pub(crate) fn fill_users(xids: &mut [XidEvent], proc_root: &Path) {
    for xid in xids {
        let named = xid.named_pid();
        let mut processes: Vec<_> =
            named.map(|pid| user(proc_root, pid, Evidence::Named)).into_iter().collect();
        if let Some(device) = device_of(xid) {
            let others = openers(proc_root, &device).filter(|pid| Some(*pid) != named);
            processes.extend(others.map(|pid| user(proc_root, pid, Evidence::Opened)));
        }
        processes.truncate(MOST_PROCESSES);
        xid.processes = processes;
    }
}

fn user(proc_root: &Path, pid: u32, evidence: Evidence) -> XidProcess {
    let name = fs::read(proc_root.join(pid.to_string()).join("comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
    let process: Arc<str> = if name.is_empty() { "?".into() } else { name.into() };
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
    fn those_who_have_a_file_open_are_found() {
        let found: Vec<_> = openers(Path::new("/proc"), "/dev/no-such-device").collect();
        assert_eq!(found, [] as [u32; 0]);
    }
}
