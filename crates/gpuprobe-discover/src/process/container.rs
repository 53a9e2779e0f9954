//! Finds the container of a process by its cgroup.

use std::fs;
use std::path::Path;

/// Container engines name a cgroup after the container: by 64 hexadecimal digits, or on some clouds by 32 digits and
/// a number.
const SHORTEST_ID: usize = 32;

/// The id of the container of a process; `None` if it is in none, or has exited.
pub fn container_of(proc_root: &Path, pid: u32) -> Option<String> {
    let text = fs::read(proc_root.join(pid.to_string()).join("cgroup")).ok()?;
    container_in(&String::from_utf8_lossy(&text))
}

/// The innermost container in the text of `/proc/PID/cgroup`: lines of `number:controllers:path`.
fn container_in(text: &str) -> Option<String> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.rsplit('/')).find_map(container_named).map(str::to_owned)
}

/// The container id in one component of a cgroup's path: `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `crio-ID`.
pub fn container_named(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let part = part.rsplit_once(':').map_or(part, |(_, last)| last);
    let id = match part.rsplit_once('-') {
        // a task on some clouds: 32 digits, a hyphen, a number
        Some((first, last)) if is_id(first) && last.bytes().all(|b| b.is_ascii_digit()) => part,
        Some((_, last)) => last,
        None => part,
    };
    let digits = id.split('-').next().unwrap_or(id);
    is_id(digits).then_some(id)
}

fn is_id(text: &str) -> bool {
    text.len() >= SHORTEST_ID && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2a9c0d1e2b4f5a6978c0d1e2f3a4b53f2a9c0d1e2b4f5a6978c0d1e2f3a4b5";

    #[test]
    fn the_cgroup_names_of_all_engines_are_known() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"),
            format!("/kubepods/burstable/pod8d1f0b52-6d0d-4a2c-9a63-0d0d5f2a7c11/{ID}"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/kubepods.slice/crio-{ID}.scope"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(container_in(&format!("0::{path}\n")).as_deref(), Some(ID), "{path}");
        }
        let task = "0123456789abcdef0123456789abcdef-1234567890";
        assert_eq!(container_in(&format!("9:cpu:/ecs/{task}\n")).as_deref(), Some(task));
    }

    #[test]
    fn other_cgroups_are_not_containers() {
        for text in [
            "",
            "0::/\n",
            "0::/user.slice/user-0.slice/session-1.scope\n",
            "nonsense",
            "0::/system.slice/ssh.service\n",
        ] {
            assert_eq!(container_in(text), None, "{text}");
        }
        let pod_only = "0::/kubepods/pod8d1f0b52-6d0d-4a2c-9a63-0d0d5f2a7c11\n";
        assert_eq!(container_in(pod_only), None);
    }

    #[test]
    fn an_exited_process_has_no_container() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(container_of(folder.path(), 7), None);
        fs::create_dir(folder.path().join("7")).unwrap();
        fs::write(folder.path().join("7/cgroup"), format!("0::/docker/{ID}\n")).unwrap();
        assert_eq!(container_of(folder.path(), 7).as_deref(), Some(ID));
    }
}
