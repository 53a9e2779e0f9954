//! Which files stall together, determined without asking their file system.

use std::fs;
use std::path::{Path, PathBuf};

use super::shown_path::path_from_proc;

/// A set of files that stall together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StallDomain {
    /// Files on a device, by the numbers that the Linux kernel shows for a mapping.
    Device(u32, u32),
    /// Files below /proc/PID: memory, mounts, open files.
    Process(u32),
    /// The list of all processes, /proc itself.
    Processes,
    /// Files below a directory.
    Below(PathBuf),
}

impl StallDomain {
    /// From the path alone.
    pub(super) fn of(path: &Path) -> Self {
        if path == Path::new("/proc") {
            return Self::Processes;
        }
        process_of(path).unwrap_or_else(|| Self::Below(path.to_owned()))
    }

    /// Widened to everything that stalls with it: a path becomes its mount point.
    pub(super) fn widened(self) -> Self {
        match self {
            Self::Below(path) => {
                Self::Below(mount_point(&fs::read("/proc/self/mountinfo").unwrap_or_default(), &path))
            }
            domain => domain,
        }
    }

    /// Whether it is certainly backed by a disk or by the Linux kernel itself, so that no other program can stall it.
    pub(super) fn is_local(&self) -> bool {
        // file systems without a disk have devices of major number 0
        matches!(self, Self::Device(1.., _) | Self::Processes)
    }

    /// Whether a file of that domain or with this path belongs to this domain.
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

/// The mount point of the file system that a path is on, from the text of mountinfo. For the root file system it is
/// the file's directory, because blocking all of it would block everything.
fn mount_point(mounts: &[u8], path: &Path) -> PathBuf {
    let points = mounts.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    let points =
        points.map(path_from_proc).filter(|point| point != Path::new("/") && path.starts_with(point));
    let innermost = points.max_by_key(|point| point.as_os_str().len());
    innermost.unwrap_or_else(|| path.parent().unwrap_or(path).to_owned())
}

/// Whether a FUSE file system, given by its device, belongs to an ordinary user, from the text of mountinfo. One that
/// is not listed counts as a user's.
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
    fn a_file_is_on_the_innermost_mount() {
        let of = |path: &str| mount_point(MOUNTS, Path::new(path));
        assert_eq!(of("/srv/x/libcuda.so"), Path::new("/srv"));
        assert_eq!(of("/srv/inner/x"), Path::new("/srv/inner"));
        assert_eq!(of("/home/me/with space/x"), Path::new("/home/me/with space"));
        assert_eq!(of("/srvx/lib/libcuda.so"), Path::new("/srvx/lib"), "not all of the host");
        assert_eq!(of("/libcuda.so"), Path::new("/"));
    }

    #[test]
    fn paths_below_proc_belong_to_their_process() {
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
    fn a_fuse_file_system_has_an_owner() {
        assert!(is_of_user(MOUNTS, (0, 39)));
        assert!(!is_of_user(MOUNTS, (0, 40)));
        assert!(is_of_user(MOUNTS, (0, 99)), "the owner is unknown");
        assert!(is_of_user(b"", (0, 40)));
    }
}
