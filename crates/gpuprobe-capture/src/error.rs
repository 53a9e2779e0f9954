//! The errors of a capture, with what to do about them.

use std::path::PathBuf;

use thiserror::Error;

use crate::host::support::Tier;

/// Why capturing is not possible.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// Without it neither processes nor our own privileges are known.
    #[error(
        "/proc is not mounted, and gpuprobe finds processes and their libraries there: mount -t proc proc /proc, or run a \
         container with the host's"
    )]
    NoProc,
    /// Not enough privileges.
    #[error("tracing needs root, or the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE: try sudo")]
    NotPermitted,
    /// A setting of the machine forbids tracing.
    #[error("{name} forbids tracing: {found}")]
    Forbidden {
        /// The name of the setting.
        name: &'static str,
        /// Its value, and what to do.
        found: String,
    },
    /// The Linux kernel has no type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux is missing): it must be built with CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoBtf,
    /// The Linux kernel is too old.
    #[error("the kernel is {found}, gpuprobe needs {needed} or newer")]
    KernelTooOld {
        /// The running release.
        found: String,
        /// The oldest supported release.
        needed: &'static str,
    },
    /// The Linux kernel does not support the tier that the user chose.
    #[error("this kernel cannot attach by `{tier}`: {missing}; `gpuprobe doctor` shows what it can")]
    TierMissing {
        /// The chosen tier.
        tier: Tier,
        /// What is missing for it.
        missing: String,
    },
    /// The Linux kernel refused the programs.
    #[error("the kernel refused the BPF programs: {reason}")]
    Load {
        /// The last lines of the verifier's or loader's log.
        reason: String,
        /// What libbpf returned.
        #[source]
        source: libbpf_rs::Error,
    },
    /// Calls cannot wait on this tier.
    #[error(
        "--lossless is not possible where probes are attached by `{0}`: calls can wait only from Linux 6.6 on"
    )]
    LossyTier(Tier),
    /// What the Linux kernel runs cannot wait.
    #[error(
        "--lossless is for calls of libraries: leave out --driver, and hooks of Linux functions and tracepoints"
    )]
    LossyLinux,
    /// Records that wait to be decoded cannot be read back.
    #[error("cannot read the records that wait to be decoded: {0}")]
    Spool(#[source] std::io::Error),
    /// Probes on our own functions did not see every call.
    #[error("cannot measure the cost of probes on this machine: they saw {seen} of {made} calls")]
    Unmeasured {
        /// Calls that the probes saw.
        seen: u64,
        /// Calls that were made.
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
        /// The library.
        path: PathBuf,
        #[source]
        source: libbpf_rs::Error,
    },
    /// The attach helper could not be started.
    #[error("cannot start the attach helper: {0}")]
    HelperStart(#[source] std::io::Error),
    /// The attach helper was killed, and every probe is detached.
    #[error("the attach helper was killed, so every probe is detached: start gpuprobe again")]
    HelperExited,
    /// An operation on a map or ring failed.
    #[error("cannot {what}: {source}")]
    Bpf {
        /// The operation, as the object of "cannot".
        what: &'static str,
        #[source]
        source: libbpf_rs::Error,
    },
}

impl CaptureError {
    /// Whether the file system of this or of another library did not answer.
    pub fn is_stall(&self) -> bool {
        let kind = libbpf_rs::ErrorKind::WouldBlock;
        self.is_own_stall() || matches!(self, Self::Attach { source, .. } if source.kind() == kind)
    }

    /// Whether the file system of this library did not answer.
    pub fn is_own_stall(&self) -> bool {
        matches!(self, Self::Attach { source, .. } if source.kind() == libbpf_rs::ErrorKind::TimedOut)
    }

    /// Whether the library was removed or replaced since it was found, or the process through whose mounts it was
    /// found has exited.
    pub fn is_removed(&self) -> bool {
        matches!(self, Self::Attach { source, .. } if source.kind() == libbpf_rs::ErrorKind::NotFound)
    }

    pub(crate) fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { what, source }
    }
}
