//! What can go wrong, and what to do about it.

use std::path::PathBuf;

use thiserror::Error;

use crate::host::support::Tier;

/// Why capturing is not possible.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// Nothing is known of any process, nor of our own privileges.
    #[error(
        "/proc is not mounted, and gpuprobe finds processes and their libraries there: mount -t proc proc /proc, or run a \
         container with the host's"
    )]
    NoProc,
    /// Not enough privileges.
    #[error("tracing needs root, or the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE: try sudo")]
    NotPermitted,
    /// A setting of the machine forbids it.
    #[error("{name} forbids tracing: {found}")]
    Forbidden {
        /// Which.
        name: &'static str,
        /// How it stands, and what to do.
        found: String,
    },
    /// The kernel has no type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux is missing): it must be built with CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoBtf,
    /// The kernel is older than anything supported.
    #[error("the kernel is {found}, gpuprobe needs {needed} or newer")]
    KernelTooOld {
        /// What runs.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A forced tier that the kernel does not have.
    #[error("this kernel cannot attach by `{tier}`: {missing}; `gpuprobe doctor` shows what it can")]
    TierMissing {
        /// The tier asked for.
        tier: Tier,
        /// What it lacks.
        missing: String,
    },
    /// The kernel refused the programs.
    #[error("the kernel refused the BPF programs: {reason}")]
    Load {
        /// The verifier's or loader's own words.
        reason: String,
        /// What libbpf returned.
        #[source]
        source: libbpf_rs::Error,
    },
    /// Probes on functions of our own did not see every call.
    #[error("what probes cost here could not be measured: they saw {seen} of {made} calls")]
    Unmeasured {
        /// What they saw.
        seen: u64,
        /// What there was.
        made: u64,
    },
    /// A map or program of the object was not loaded.
    #[error("{0} of the BPF object was not loaded")]
    NotLoaded(&'static str),
    /// Something that every build has.
    #[error("gpuprobe has no {0}: the build is broken")]
    Missing(&'static str),
    /// A library could not be probed.
    #[error("cannot probe {path}: {source:#}")]
    Attach {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The process that puts probes in could not be started.
    #[error("cannot start the process that keeps the probes: {0}")]
    Keeper(#[source] std::io::Error),
    /// It was killed, and every probe is out.
    #[error("the process that keeps the probes was ended by somebody: start gpuprobe again")]
    KeeperEnded,
    /// An operation on a map or ring failed.
    #[error("cannot {what}: {source}")]
    Bpf {
        /// Which operation.
        what: &'static str,
        /// Why.
        #[source]
        source: libbpf_rs::Error,
    },
}

impl CaptureError {
    /// Whether the file system of a library did not answer: of this one or of another.
    pub fn is_stall(&self) -> bool {
        let kind = libbpf_rs::ErrorKind::WouldBlock;
        self.is_own_stall() || matches!(self, Self::Attach { source, .. } if source.kind() == kind)
    }

    /// Whether that of the library itself did not.
    pub fn is_own_stall(&self) -> bool {
        matches!(self, Self::Attach { source, .. } if source.kind() == libbpf_rs::ErrorKind::TimedOut)
    }

    /// Whether the library has been removed or replaced since it was found, or the process that led to it has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Attach { source, .. } if source.kind() == libbpf_rs::ErrorKind::NotFound)
    }

    pub(crate) fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { what, source }
    }
}
