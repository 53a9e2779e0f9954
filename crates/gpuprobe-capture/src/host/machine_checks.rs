//! Checks of settings of this machine that tracing depends on, each with advice.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libbpf_rs::libbpf_sys;

use crate::host::release::{OLDEST, is_too_old, version_of};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// Works, with a limit.
    Limited,
    /// Tracing is not possible.
    Bad,
}

impl Verdict {
    /// The word shown to the user.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Limited => "limited",
            Self::Bad => "bad",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// What was found, and what to do if it is not good.
    pub found: String,
}

/// Root directories of the files that are read; tests use their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roots<'a> {
    pub(crate) proc: &'a Path,
    pub(crate) sys: &'a Path,
}

/// The directories of the host.
pub(crate) fn host() -> Roots<'static> {
    Roots { proc: Path::new("/proc"), sys: Path::new("/sys") }
}

/// Runs all checks.
pub(crate) fn checks(roots: Roots<'_>, kernel: &str) -> Vec<Check> {
    let status = read(roots.proc, "self/status");
    let effective = effective(&status);
    vec![
        proc(!status.is_empty()),
        capabilities(effective),
        release(kernel),
        pid_namespace(&fs::read_link(roots.proc.join("self/ns/pid")).unwrap_or_default()),
        lockdown(&read(roots.sys, "kernel/security/lockdown")),
        memlock(kernel, &read(roots.proc, "self/limits")),
        seccomp(field(&status, "Seccomp:")),
        filter(roots.proc.join("sys/kernel/seccomp").exists()),
        uretprobe(kernel),
        ptrace_scope(&read(roots.proc, "sys/kernel/yama/ptrace_scope"), effective),
    ]
}

/// The effective capabilities in the text of `/proc/PID/status`.
fn effective(status: &str) -> u64 {
    field(status, "CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

fn read(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(name)).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(name)).map(str::trim)
}

/// Processes, their mappings and our own capabilities are read there.
pub(crate) const PROC: &str = "/proc";

fn proc(is_there: bool) -> Check {
    let (verdict, found) = match is_there {
        true => (Verdict::Good, "is mounted".to_owned()),
        false => (Verdict::Bad, "is not mounted: mount -t proc proc /proc".to_owned()),
    };
    Check { name: PROC, verdict, found }
}

/// See [`super::seccomp`].
fn filter(is_there: bool) -> Check {
    let (verdict, found) = match is_there {
        true => (Verdict::Good, "the daemon drops system calls that it never needs".to_owned()),
        false => (
            Verdict::Limited,
            "the Linux kernel has no seccomp filters (CONFIG_SECCOMP_FILTER): the daemon keeps all system calls".to_owned(),
        ),
    };
    Check { name: "system call filter", verdict, found }
}

/// A capability that gpuprobe needs. docs/requirements.md, the systemd unit and the package name the same ones.
struct Capability {
    bit: u32,
    name: &'static str,
    /// What is not seen without it.
    cost: &'static str,
    /// Whether `CAP_SYS_ADMIN` includes it.
    in_sys_admin: bool,
}

const EVERYTHING: &str = "everything";
const WANTED: [Capability; 5] = [
    Capability { bit: 39, name: "CAP_BPF", cost: EVERYTHING, in_sys_admin: true },
    Capability { bit: 38, name: "CAP_PERFMON", cost: EVERYTHING, in_sys_admin: true },
    Capability {
        bit: SYS_PTRACE,
        name: "CAP_SYS_PTRACE",
        cost: "programs in containers and of other users",
        in_sys_admin: false,
    },
    Capability {
        bit: 2,
        name: "CAP_DAC_READ_SEARCH",
        cost: "libraries in closed folders",
        in_sys_admin: false,
    },
    Capability {
        bit: 40,
        name: "CAP_CHECKPOINT_RESTORE",
        cost: "libraries that were deleted or replaced while in use",
        in_sys_admin: true,
    },
];
const SYS_ADMIN: u32 = 21;
const SYS_PTRACE: u32 = 19;

fn capabilities(effective: u64) -> Check {
    let has = |bit: u32| effective & (1 << bit) != 0;
    let missing: Vec<_> =
        WANTED.iter().filter(|wanted| !(has(wanted.bit) || wanted.in_sys_admin && has(SYS_ADMIN))).collect();
    let names = missing.iter().map(|wanted| wanted.name).collect::<Vec<_>>().join(", ");
    let (verdict, found) = if missing.iter().any(|wanted| wanted.cost == EVERYTHING) {
        (Verdict::Bad, format!("{names} missing: run as root, or with these"))
    } else if missing.is_empty() {
        (Verdict::Good, "all that are needed".to_owned())
    } else {
        let costs: Vec<_> = missing.iter().map(|wanted| wanted.cost).collect();
        (Verdict::Limited, format!("{names} missing: not seen are {}", costs.join(", ")))
    };
    Check { name: "capabilities", verdict, found }
}

fn release(kernel: &str) -> Check {
    let (verdict, found) = match is_too_old(kernel) {
        true => (Verdict::Bad, format!("{kernel} is too old: gpuprobe needs {OLDEST} or newer")),
        false => (Verdict::Good, format!("{OLDEST} or newer")),
    };
    Check { name: "Linux kernel", verdict, found }
}

/// Without multi links, probes are perf events, for which many Linux kernels require more than `CAP_PERFMON`.
pub(crate) fn perf_events(roots: Roots<'_>, has_multi: bool) -> Check {
    perf_events_with(effective(&read(roots.proc, "self/status")), has_multi)
}

fn perf_events_with(effective: u64, has_multi: bool) -> Check {
    let (verdict, found) = match (has_multi, effective & (1 << SYS_ADMIN) != 0) {
        (true, _) => (Verdict::Good, "are not needed".to_owned()),
        (false, true) => (Verdict::Good, "are permitted".to_owned()),
        (false, false) => (
            Verdict::Limited,
            "CAP_SYS_ADMIN missing, without which Linux before 6.6 may refuse every probe".to_owned(),
        ),
    };
    Check { name: "perf events", verdict, found }
}

/// Pids are compared in BPF programs, where they are those of the first namespace.
fn pid_namespace(link: &Path) -> Check {
    // the number of the first namespace, which has never changed
    const FIRST: &str = "pid:[4026531836]";
    let name = link.to_string_lossy();
    let (verdict, found) = match name.as_ref() {
        "" | FIRST => (Verdict::Good, "the host's".to_owned()),
        _ => (
            Verdict::Bad,
            "its own, so that processes are not recognised: run in the host's (--pid=host)".to_owned(),
        ),
    };
    Check { name: "pid namespace", verdict, found }
}

/// `none [integrity] confidentiality`: the one in brackets is active.
fn lockdown_mode(text: &str) -> &str {
    text.split(['[', ']']).nth(1).unwrap_or("none")
}

fn lockdown(text: &str) -> Check {
    let (verdict, found) = match lockdown_mode(text) {
        "confidentiality" => (
            Verdict::Bad,
            "confidentiality: BPF may not read memory; boot with lockdown=integrity or none".to_owned(),
        ),
        mode => (Verdict::Good, mode.to_owned()),
    };
    Check { name: "lockdown", verdict, found }
}

/// Whether BPF may write to the memory of processes, which needs `CAP_SYS_ADMIN` and no lockdown. It is used for one
/// thing: to restore a return address that the Linux kernel has replaced (`bpf/core/return_safety.bpf.h`). That is
/// possible on x86-64 only: on aarch64 it is not known where a function has stored the address, and with which signature.
pub(crate) fn may_write_back() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    static MAY: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: asks the Linux kernel whether it accepts a program of two instructions; there is nothing to point
        // to.
        let found = unsafe {
            libbpf_sys::libbpf_probe_bpf_helper(
                libbpf_sys::BPF_PROG_TYPE_KPROBE,
                libbpf_sys::BPF_FUNC_probe_write_user,
                std::ptr::null(),
            )
        };
        found == 1
    });
    *MAY
}

/// Programs that call CUDA on several stacks of one thread: fibers, or signal handlers on an alternate stack. A
/// session skips the return probe of a call that would harm them; other tiers can only undo what the Linux kernel has
/// done.
pub(crate) fn several_stacks(has_sessions: bool, may_write: bool) -> Check {
    let (verdict, found) = match (has_sessions, may_write) {
        (true, _) => (Verdict::Good, "calls on several stacks of a thread are safe".to_owned()),
        (false, true) => (
            Verdict::Good,
            "calls on several stacks of a thread are safe, but for rare moments (docs/internals/safety.md)"
                .to_owned(),
        ),
        (false, false) => {
            let advice = match cfg!(target_arch = "x86_64") {
                true => "run with CAP_SYS_ADMIN and without lockdown, or on kernel 6.13",
                false => "run on kernel 6.13",
            };
            let found = format!(
                "a program that calls CUDA on several stacks of a thread (fibers, alternate signal stacks) may be \
                 killed when traced: {advice}"
            );
            (Verdict::Limited, found)
        }
    };
    Check { name: "several stacks", verdict, found }
}

fn memlock(kernel: &str, limits: &str) -> Check {
    const NO_LONGER_COUNTED: (u32, u32) = (5, 11);
    let limit = field(limits, "Max locked memory").and_then(|l| l.split_whitespace().next()).unwrap_or("?");
    let counted = version_of(kernel).is_none_or(|v| v < NO_LONGER_COUNTED);
    let (verdict, found) = match (counted, limit) {
        (true, limit) if limit != "unlimited" => (
            Verdict::Limited,
            format!("{limit} bytes, which this kernel counts BPF maps against: ulimit -l unlimited"),
        ),
        _ => (Verdict::Good, "no limit on BPF maps".to_owned()),
    };
    Check { name: "memlock", verdict, found }
}

fn seccomp(mode: Option<&str>) -> Check {
    let (verdict, found) = match mode {
        Some("2") => (
            Verdict::Limited,
            "gpuprobe itself runs under a filter: if bpf() is refused, run it outside (container: --privileged)".to_owned(),
        ),
        _ => (Verdict::Good, "gpuprobe runs under no filter".to_owned()),
    };
    Check { name: "seccomp", verdict, found }
}

/// From 6.11 on a return probe enters the Linux kernel by a system call, for which seccomp filters may kill a traced
/// program. 6.14 exempts it from all filters.
pub(crate) fn returns_by_system_call(kernel: &str) -> bool {
    version_of(kernel).is_some_and(|v| ((6, 11)..(6, 14)).contains(&v))
}

fn uretprobe(kernel: &str) -> Check {
    let (verdict, found) = if returns_by_system_call(kernel) {
        let text = "programs with a seccomp filter that does not know the uretprobe system call may be killed \
                    when traced, unless this kernel carries the fix of 6.14";
        (Verdict::Limited, text.to_owned())
    } else {
        (Verdict::Good, "pass seccomp filters of traced programs".to_owned())
    };
    Check { name: "return probes", verdict, found }
}

fn ptrace_scope(text: &str, effective: u64) -> Check {
    let scope = text.trim();
    let (verdict, found) = match scope {
        "" | "0" => (Verdict::Good, "processes may be read".to_owned()),
        scope if effective & (1 << SYS_PTRACE) != 0 && scope != "3" => {
            (Verdict::Good, format!("{scope}, which CAP_SYS_PTRACE passes"))
        }
        "3" => (Verdict::Good, "3: nothing is attached by ptrace here, so this does not matter".to_owned()),
        scope => {
            (Verdict::Limited, format!("{scope}: mappings of other users' processes need CAP_SYS_PTRACE"))
        }
    };
    Check { name: "ptrace scope", verdict, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = u64::MAX;

    #[test]
    fn capabilities_are_named_when_missing() {
        assert_eq!(capabilities(ROOT).verdict, Verdict::Good);
        let none = capabilities(0);
        assert_eq!(none.verdict, Verdict::Bad);
        assert!(none.found.contains("CAP_BPF, CAP_PERFMON"));
        let some = capabilities((1 << 39) | (1 << 38));
        assert_eq!(some.verdict, Verdict::Limited);
        let names =
            "CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE missing: not seen are programs in";
        assert!(some.found.starts_with(names), "{}", some.found);
        let admin = capabilities(1 << SYS_ADMIN);
        assert!(admin.found.starts_with("CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH missing"), "{}", admin.found);
    }

    #[test]
    fn perf_events_need_one_more_capability() {
        assert_eq!(perf_events_with(0, true).verdict, Verdict::Good);
        assert_eq!(perf_events_with(1 << SYS_ADMIN, false).verdict, Verdict::Good);
        assert_eq!(perf_events_with(0, false).verdict, Verdict::Limited);
    }

    #[test]
    fn an_old_linux_kernel_is_named() {
        assert_eq!(release("6.1.0-18-amd64").verdict, Verdict::Good);
        let old = release("5.10.0");
        assert_eq!(
            (old.verdict, &*old.found),
            (Verdict::Bad, "5.10.0 is too old: gpuprobe needs 5.17 or newer")
        );
    }

    #[test]
    fn the_documentation_the_unit_and_the_manifest_name_the_same_capabilities() {
        let page = include_str!("../../../../docs/requirements.md");
        let unit = include_str!("../../../../packaging/systemd/gpuprobe.service");
        let manifest = include_str!("../../../../packaging/kubernetes/daemonset.yaml");
        let package = include_str!("../../../../packaging/deb/control");
        for Capability { name, .. } in WANTED {
            assert!(page.contains(name) && package.contains(name), "{name}");
            assert_eq!(unit.matches(name).count(), 2, "{name}");
            assert!(manifest.contains(name.trim_start_matches("CAP_")), "{name}");
        }
    }

    #[test]
    fn another_pid_namespace_is_refused() {
        assert_eq!(pid_namespace(Path::new("pid:[4026531836]")).verdict, Verdict::Good);
        assert_eq!(pid_namespace(Path::new("pid:[4026532299]")).verdict, Verdict::Bad);
    }

    #[test]
    fn lockdown_stops_only_in_confidentiality() {
        assert_eq!(lockdown("none [integrity] confidentiality\n").verdict, Verdict::Good);
        assert_eq!(lockdown("none integrity [confidentiality]\n").verdict, Verdict::Bad);
        assert_eq!(lockdown("").found, "none");
    }

    #[test]
    fn several_stacks_are_safe_with_sessions_or_write_access() {
        assert_eq!(several_stacks(false, false).verdict, Verdict::Limited);
        assert_eq!(several_stacks(false, true).verdict, Verdict::Good);
        assert_eq!(several_stacks(true, false).verdict, Verdict::Good);
    }

    #[test]
    fn return_probes_and_seccomp_conflict_on_three_kernels_only() {
        for (kernel, verdict) in [
            ("6.1.0-18-amd64", Verdict::Good),
            ("6.11.0", Verdict::Limited),
            ("6.13.4", Verdict::Limited),
            ("6.14.0", Verdict::Good),
            ("7.0.1", Verdict::Good),
        ] {
            assert_eq!(uretprobe(kernel).verdict, verdict, "{kernel}");
        }
    }

    #[test]
    fn memlock_matters_on_old_kernels_only() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         67108864             67108864             bytes     \n";
        assert_eq!(memlock("5.10.0", limits).verdict, Verdict::Limited);
        assert_eq!(memlock("6.1.0", limits).verdict, Verdict::Good);
    }

    #[test]
    fn checks_do_not_fail_without_proc_and_sys() {
        let nowhere = Path::new("/nonexistent");
        let all = checks(Roots { proc: nowhere, sys: nowhere }, "6.18");
        assert_eq!(all.len(), 10);
        assert_eq!((all[0].name, all[0].verdict), (PROC, Verdict::Bad));
        assert_eq!(all[0].found, "is not mounted: mount -t proc proc /proc");
        assert_eq!(all[1].verdict, Verdict::Bad, "no capabilities are known");
    }
}
