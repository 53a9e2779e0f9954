//! Finds the processes that were using a GPU when it reported an error (XID).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gpuprobe_discover::{NVIDIA_PROC_FOLDER, host_gpus};
use gpuprobe_event::{Evidence, PciAddress, Tgid, XidEvent, XidProcess};

/// Most processes reported with one error.
const MOST_PROCESSES: usize = 32;
/// The name of an unknown process.
const UNKNOWN: &str = "?";
/// Most open files of a process that are checked.
const MOST_FILES: usize = 4096;

/// Fills in the processes of each error: the process that the NVIDIA kernel module names, then the processes that have
/// the GPU open now, then observed processes that have exited and may have used the GPU.
pub(crate) fn fill_users(xids: &mut [XidEvent], proc_root: &Path) {
    for xid in xids {
        let named = xid.named_pid();
        // an exited process gets the name in the message
        let known = xid.named_process().unwrap_or(UNKNOWN);
        let mut users: Vec<_> =
            named.map(|pid| user(proc_root, (pid, known), Evidence::Named)).into_iter().collect();
        let device = device_of(xid);
        if let Some(device) = &device {
            let others = openers(proc_root, device).filter(|pid| Some(*pid) != named);
            users.extend(others.map(|pid| user(proc_root, (pid, UNKNOWN), Evidence::Opened)));
        }
        // a zombie has no open files
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
    let pci = PciAddress::parse(&xid.gpu)?;
    let gpu = host_gpus(Path::new(NVIDIA_PROC_FOLDER)).into_iter().find(|gpu| gpu.pci == pci)?;
    Some(format!("/dev/nvidia{}", gpu.minor?))
}

/// Processes that have this file open, except gpuprobe.
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
    fn a_message_names_a_process_in_several_forms_or_not_at_all() {
        let pid = |message: &str| xid(message).named_pid();
        assert_eq!(pid("pid=436, name=python3, Ch 00000008"), Some(436));
        assert_eq!(pid("pid='436', name=python3"), Some(436));
        assert_eq!(pid("pid='<unknown>', name=<unknown>"), None);
        assert_eq!((pid("GPU has fallen off the bus."), pid("pid=")), (None, None));
    }

    #[test]
    fn a_named_process_gets_its_current_name() {
        let own = std::process::id();
        let mut xids = [xid(&format!("pid={own}, name=x"))];
        fill_users(&mut xids, Path::new("/proc"));
        let [user] = xids[0].processes.as_slice() else { panic!("{xids:?}") };
        assert_eq!((user.tgid, user.evidence), (Tgid(own), Evidence::Named));
        assert_ne!(&*user.process, "?");
    }

    #[test]
    fn an_exited_process_gets_the_name_in_the_message() {
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
    fn an_observed_process_that_exited_is_kept() {
        let watched = |pid| XidProcess { tgid: Tgid(pid), process: "p".into(), evidence: Evidence::Watched };
        let mut xids = [xid("GPU has fallen off the bus.")];
        // no process has this pid
        xids[0].processes = vec![watched(u32::MAX)];
        fill_users(&mut xids, Path::new("/proc"));
        assert_eq!(xids[0].processes, [watched(u32::MAX)]);
    }

    #[test]
    fn no_process_has_an_unknown_device_open() {
        let found: Vec<_> = openers(Path::new("/proc"), "/dev/no-such-device").collect();
        assert_eq!(found, [] as [u32; 0]);
    }
}
