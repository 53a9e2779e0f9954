//! What this Linux kernel supports for `--driver`. Not part of [`crate::support`], which every start calls, because
//! it takes some milliseconds.

use std::path::Path;

use libbpf_rs::btf::{Btf, types};
use libbpf_rs::libbpf_sys::{self, bpf_insn, bpf_prog_load_opts};

use crate::host::support::{Feature, Tier, has_attach_type, has_session_return};

/// Where the Linux kernel lists the sources of perf events.
pub(crate) const EVENT_SOURCES: &str = "/sys/bus/event_source/devices";

const KPROBES: &str = "kprobes";
const KPROBE_MULTI: &str = "kprobe multi links";
const KPROBE_SESSION: &str = "kprobe sessions";
const FENTRY: &str = "fentry";

/// The features of the Linux kernel.
#[derive(Clone, Debug)]
pub struct LinuxSupport {
    /// Each with the consequence if it is missing.
    pub features: Vec<Feature>,
}

impl LinuxSupport {
    fn has(&self, name: &str) -> bool {
        self.features.iter().any(|f| f.name == name && f.present)
    }

    /// Whether functions can be probed by kprobes of this tier.
    pub(crate) fn has_kprobes(&self, tier: Tier) -> bool {
        self.has(match tier {
            Tier::Session => KPROBE_SESSION,
            Tier::Multi => KPROBE_MULTI,
            Tier::Perf => KPROBES,
        })
    }

    /// Whether programs can be loaded for single functions.
    pub(crate) fn has_fentry(&self) -> bool {
        self.has(FENTRY)
    }
}

/// Examines the Linux kernel.
pub fn linux_support() -> LinuxSupport {
    let btf = Btf::from_vmlinux().ok();
    let btf = btf.as_ref();
    let attach_type = |name| btf.is_some_and(|btf| has_attach_type(btf, name));
    let function = |name| btf.and_then(|btf| btf.type_by_name::<types::Func<'_>>(name));
    let tracepoint = |name| btf.is_some_and(|btf| btf.type_by_name::<types::Typedef<'_>>(name).is_some());
    let multi = attach_type("BPF_TRACE_KPROBE_MULTI") && function("register_fprobe_ips").is_some();
    // some kernels have all features and still refuse to load one
    let fentry = function("vfs_open").is_some_and(|f| loads_for(u32::from(f.type_id())));
    let kprobes = Path::new(EVENT_SOURCES).join("kprobe").exists();
    let features = vec![
        Feature {
            name: "BTF tracepoints of system calls",
            optional: true,
            present: tracepoint("btf_trace_sys_enter"),
            without: "--driver does not see system calls on NVIDIA device files",
        },
        Feature {
            name: FENTRY,
            optional: true,
            present: fentry,
            without: match kprobes {
                true => "--driver=GLOB has only kprobes, which cost more: the kernel refuses such programs",
                false => "the kernel refuses such programs, and --driver=GLOB has no kprobes to use instead",
            },
        },
        Feature {
            name: KPROBES,
            optional: true,
            present: kprobes,
            without: match fentry {
                true => "--driver=GLOB has only fentry (CONFIG_KPROBES=y and CONFIG_KPROBE_EVENTS=y)",
                false => {
                    "--driver=GLOB can probe nothing; system calls on NVIDIA device files are still seen (CONFIG_KPROBES=y)"
                }
            },
        },
        Feature {
            name: KPROBE_MULTI,
            optional: true,
            present: multi,
            without: "kprobes are attached, and slowly detached, one by one (CONFIG_FPROBE=y)",
        },
        Feature {
            name: KPROBE_SESSION,
            optional: true,
            present: multi && attach_type("BPF_TRACE_KPROBE_SESSION") && btf.is_some_and(has_session_return),
            without: match multi {
                true => {
                    "kprobes also trap the returns of calls that are not watched (kernel 6.10 has sessions)"
                }
                false => "they need kprobe multi links",
            },
        },
        Feature {
            name: "tracefs",
            optional: true,
            present: gpuprobe_discover::tracefs(Path::new("/proc")).is_some(),
            without: "`list --driver` does not know which functions can be probed (mount -t tracefs tracefs /sys/kernel/tracing)",
        },
    ];
    LinuxSupport { features }
}

/// Whether an empty program can be loaded for a function.
fn loads_for(function: u32) -> bool {
    // r0 = 0; exit
    let program =
        [bpf_insn { code: 0xb7, ..bpf_insn::default() }, bpf_insn { code: 0x95, ..bpf_insn::default() }];
    let mut options = bpf_prog_load_opts {
        sz: size_of::<bpf_prog_load_opts>() as _,
        expected_attach_type: libbpf_sys::BPF_TRACE_FENTRY,
        attach_btf_id: function,
        ..Default::default()
    };
    // SAFETY: the instructions, the texts and the options are valid for the call; the descriptor is closed at once.
    unsafe {
        let fd = libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_TRACING,
            c"gpuprobe".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            &raw mut options,
        );
        fd >= 0 && libc::close(fd) == 0
    }
}
