//! What this Linux kernel supports.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use libbpf_rs::ReferencesType as _;
use libbpf_rs::btf::{Btf, types};

use super::machine_checks::{self, Check, Verdict};
use super::release::{is_too_old, kernel_release};

/// How probes are attached to libraries. All three run the same BPF code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// A perf event for each function and direction; works on every supported Linux kernel.
    Perf,
    /// One link for many functions; Linux 6.6.
    Multi,
    /// One program for entry and return; Linux 6.13.
    Session,
}

impl Tier {
    /// Best first.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Perf];

    /// The value of `--attach`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Multi => "multi",
            Self::Session => "session",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|t| t.as_str() == word);
        known.ok_or_else(|| format!("`{word}` is not one of session, multi, perf"))
    }
}

/// One feature of the Linux kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// What was looked for.
    pub name: &'static str,
    /// Whether the Linux kernel has it.
    pub present: bool,
    /// Whether gpuprobe can do without it: it is slower, or lacks one option.
    pub optional: bool,
    /// The consequence, or what to do, if it is missing.
    pub without: &'static str,
}

/// What this machine supports.
#[derive(Clone, Debug)]
pub struct Support {
    /// The release of the Linux kernel.
    pub kernel: String,
    /// Settings of the machine.
    pub checks: Vec<Check>,
    /// Features of the Linux kernel.
    pub features: Vec<Feature>,
}

/// Examines the machine.
pub fn support() -> Support {
    let btf = Btf::from_vmlinux().ok();
    let attach_type = |name| btf.as_ref().is_some_and(|btf| has_attach_type(btf, name));
    let tracepoint =
        |name| btf.as_ref().is_some_and(|b| b.type_by_name::<types::Typedef<'_>>(name).is_some());
    let features = vec![
        Feature {
            name: BTF,
            optional: false,
            present: Path::new("/sys/kernel/btf/vmlinux").exists(),
            without: "nothing can be loaded: the kernel must be built with CONFIG_DEBUG_INFO_BTF=y",
        },
        Feature {
            name: SESSION,
            optional: true,
            present: attach_type("BPF_TRACE_UPROBE_SESSION") && btf.as_ref().is_some_and(has_session_return),
            without: "entry and return are two programs (kernel 6.13 has sessions)",
        },
        Feature {
            name: MULTI,
            optional: true,
            present: attach_type("BPF_TRACE_UPROBE_MULTI"),
            without: "each function is attached, and slowly detached, one by one (kernel 6.6 has multi links)",
        },
        Feature {
            name: TRACEPOINTS,
            optional: false,
            present: tracepoint("btf_trace_sched_process_exec"),
            without: "starts and exits of processes are not seen",
        },
    ];
    let kernel = kernel_release();
    let mut checks = machine_checks::checks(machine_checks::host(), &kernel);
    let has_sessions = features.iter().any(|f| f.name == SESSION && f.present);
    checks.push(machine_checks::several_stacks(has_sessions, machine_checks::may_write_back()));
    let has_multi = features.iter().any(|f| f.name == MULTI && f.present);
    checks.push(machine_checks::perf_events(machine_checks::host(), has_multi));
    Support { checks, kernel, features }
}

const BTF: &str = "BTF type information";
const SESSION: &str = "uprobe sessions";
const MULTI: &str = "uprobe multi links";
const TRACEPOINTS: &str = "BTF tracepoints of the scheduler";

impl Support {
    /// Whether the capabilities and settings allow tracing at all.
    pub fn privileged(&self) -> bool {
        self.checks.iter().all(|c| c.verdict != Verdict::Bad)
    }

    fn has(&self, name: &str) -> bool {
        self.features.iter().any(|f| f.name == name && f.present)
    }

    /// Whether the Linux kernel has type information.
    pub fn has_btf(&self) -> bool {
        self.has(BTF)
    }

    /// The feature that a tier lacks here; `None` if it can be used.
    pub fn lacks(&self, tier: Tier) -> Option<&Feature> {
        let needed: &[&str] = match tier {
            Tier::Session => &[BTF, SESSION],
            Tier::Multi => &[BTF, MULTI],
            Tier::Perf => &[BTF],
        };
        self.features.iter().find(|f| needed.contains(&f.name) && !f.present)
    }

    /// The best tier that can be used; none on a Linux kernel that is too old.
    pub fn best_tier(&self) -> Option<Tier> {
        Tier::ALL.into_iter().find(|t| self.lacks(*t).is_none() && !is_too_old(&self.kernel))
    }
}

pub(crate) fn has_attach_type(btf: &Btf<'_>, name: &str) -> bool {
    let Some(attach_types) = btf.type_by_name::<types::Enum<'_>>("bpf_attach_type") else { return false };
    attach_types.iter().any(|m| m.name.is_some_and(|n| n == name))
}

/// Whether a session program can ask whether it runs at the return of a call. It can use both forms of the kernel
/// function: without an argument (6.13), and with the context (7.0).
pub(crate) fn has_session_return(btf: &Btf<'_>) -> bool {
    let function = btf.type_by_name::<types::Func<'_>>("bpf_session_is_return");
    let prototype = function.and_then(|f| types::FuncProto::try_from(f.referenced_type()).ok());
    prototype.is_some_and(|p| p.len() <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_round_trip() {
        for tier in Tier::ALL {
            assert_eq!(tier.as_str().parse(), Ok(tier));
        }
        assert!("kprobe".parse::<Tier>().is_err());
    }
}
