//! Device files with the names of the NVIDIA kernel module's, for hosts without that module.

use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::fixtures;

/// Names, major and minor numbers. Those with the names of the NVIDIA devices are memory devices without any ioctl:
/// each ioctl fails with ENOTTY.
const NODES: [(&str, u64, u64); 9] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
    ("nvidiactl", 1, 7),
    ("nvidia0", 1, 5),
    ("nvidia-uvm", 1, 11),
];

/// Gives this thread, and what it starts, a `/dev` of its own with these files.
pub fn make() {
    let shown = |what: &'static str| move |error: nix::Error| panic!("{what}: {error}");
    unshare(CloneFlags::CLONE_NEWNS).unwrap_or_else(shown("a mount namespace"));
    let (none, no_data) = (None::<&Path>, None::<&str>);
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, no_data)
        .unwrap_or_else(shown("keep mounts private"));
    let folder = fixtures::folder();
    mount(Some("none"), folder.path(), Some("tmpfs"), MsFlags::empty(), no_data)
        .unwrap_or_else(shown("mount a tmpfs"));
    let all_users = Mode::from_bits_truncate(0o666);
    for (name, major, minor) in NODES {
        let path = folder.path().join(name);
        mknod(&path, SFlag::S_IFCHR, all_users, makedev(major, minor)).unwrap_or_else(shown(name));
    }
    mount(Some(folder.path()), "/dev", none, MsFlags::MS_MOVE, no_data)
        .unwrap_or_else(shown("move it to /dev"));
}
