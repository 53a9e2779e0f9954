//! What does not answer when a file does not: the file system it is on, as far as that can be told without asking it.

use std::fs;
use std::path::{Path, PathBuf};

use super::shown_path::path_from_proc;

/// Where a file lies, or whose memory it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StallDomain {
    /// On a device, by the numbers that the kernel shows for a mapping.
    Device(u32, u32),
    /// Behind a name of a process's own: its memory, its mounts, its open files.
    Process(u32),
    /// The list of all processes.
    Processes,
    /// Below a folder.
    Below(PathBuf),
}

impl StallDomain {
    /// As far as a name tells.
    pub(super) fn of(path: &Path) -> Self {
        if path == Path::new("/proc") {
            return Self::Processes;
        }
        process_of(path).unwrap_or_else(|| Self::Below(path.to_owned()))
    }

    /// All that does not answer when this does not.
    pub(super) fn widened(self) -> Self {
        match self {
            Self::Below(path) => {
                Self::Below(mount_point(&fs::read("/proc/self/mountinfo").unwrap_or_default(), &path))
            }
            domain => domain,
        }
    }

    /// Whether it can be told, by what the kernel shows, that a disk or the kernel itself is behind it, so that no other
    /// program can stall it.
    pub(super) fn is_local(&self) -> bool {
        // file systems without a disk have devices of major number 0
        matches!(self, Self::Device(1.., _) | Self::Processes)
    }

    /// Whether what lies there, or has this name, is part of it.
    pub(super) fn covers(&self, domain: &Self, path: &Path) -> bool {
        match self {
            Self::Below(folder) => path.starts_with(folder),
            _ => self == domain,
        }
    }
}

fn process_of(path: &Path) -> Option<StallDomain> {
    let below = path.strip_prefix("/proc").ok()?;
    let pid = below.components().next()?.as_os_str().to_str()?.parse().ok()?;
    Some(StallDomain::Process(pid))
}

/// Where the file system that a name is on is mounted, by the text of mountinfo; of the outermost one, its folder.
fn mount_point(mounts: &[u8], path: &Path) -> PathBuf {
    let points = mounts.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    let points =
        points.map(path_from_proc).filter(|point| point != Path::new("/") && path.starts_with(point));
    let innermost = points.max_by_key(|point| point.as_os_str().len());
    innermost.unwrap_or_else(|| path.parent().unwrap_or(path).to_owned())
}

/// Whether the file system of a device, served through /dev/fuse, belongs to an ordinary user, by the text of mountinfo. One
/// that is not listed belongs to nobody who is known.
pub(crate) fn is_of_user(mounts: &[u8], device: (u64, u64)) -> bool {
    let device = format!("{}:{}", device.0, device.1);
    let mut lines = mounts.split(|b| *b == b'\n').map(String::from_utf8_lossy);
    let line = lines.find(|line| line.split(' ').nth(2) == Some(device.as_str()));
    let options = line.as_deref().and_then(|line| line.rsplit(' ').next());
    options.is_none_or(|options| !options.split(',').any(|option| option == "user_id=0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:39 / /home/me/with\\040space rw - fuse.sshfs host: rw,user_id=1000,group_id=1000
31 22 0:40 / /srv rw - fuse serve rw,user_id=0,group_id=0,allow_other
32 31 0:41 / /srv/inner rw - nfs4 server:/ rw
";

    #[test]
    fn a_file_lies_on_the_innermost_mount() {
        let of = |path: &str| mount_point(MOUNTS, Path::new(path));
        assert_eq!(of("/srv/x/libcuda.so"), Path::new("/srv"));
        assert_eq!(of("/srv/inner/x"), Path::new("/srv/inner"));
        assert_eq!(of("/home/me/with space/x"), Path::new("/home/me/with space"));
        assert_eq!(of("/srvx/lib/libcuda.so"), Path::new("/srvx/lib"), "not all of the host");
        assert_eq!(of("/libcuda.so"), Path::new("/"));
    }

    #[test]
    fn names_of_processes_are_theirs() {
        assert_eq!(StallDomain::of(Path::new("/proc/77/maps")), StallDomain::Process(77));
        assert!(matches!(StallDomain::of(Path::new("/proc/self/maps")), StallDomain::Below(_)));
        assert!(
            StallDomain::of(Path::new("/proc")).is_local() && StallDomain::of(Path::new("/proc/")).is_local()
        );
        let (a, b) = (StallDomain::Process(1), StallDomain::Device(0, 39));
        assert!(a.covers(&a, Path::new("/x")) && !a.covers(&b, Path::new("/x")));
        let below = StallDomain::Below("/srv".into());
        assert!(below.covers(&b, Path::new("/srv/lib")) && !below.covers(&b, Path::new("/srvx")));
        assert!(
            StallDomain::Device(254, 0).is_local() && !StallDomain::Device(0, 39).is_local() && !a.is_local()
        );
    }

    #[test]
    fn a_file_system_that_a_program_serves_has_an_owner() {
        assert!(is_of_user(MOUNTS, (0, 39)));
        assert!(!is_of_user(MOUNTS, (0, 40)));
        assert!(is_of_user(MOUNTS, (0, 99)), "nobody knows whose it is");
        assert!(is_of_user(b"", (0, 40)));
    }
}
