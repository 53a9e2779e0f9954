//! How errors of GPUs (XIDs) are heard of: by the driver's tracepoint, else by the function that tells of them in every
//! release, and where neither can be had by NVML alone.

use std::fmt;
use std::io;
use std::path::Path;

use gpuprobe_discover::{KernelFunction, driver_modules, kernel_functions};
use libbpf_rs::{Link, Object};

use crate::attach::program;
use crate::error::CaptureError;
use crate::functions::{KernelTier, open_again, with_program};
use crate::kernel_support::KernelSupport;
use crate::kernel_types::results;
use crate::link::{KernelWay, MadeLink, make_in_kernel};
use crate::load::quietly;
use crate::support::Tier;

/// The program on the tracepoint.
const TRACEPOINT: &str = "on_xid";
/// What the kernel has for the programs on it.
const OF_TRACEPOINT: &str = "__bpf_trace_nvidia_dev_xid";
/// The function that tells of errors, and the programs on it.
const FUNCTION: &str = "nv_report_error";
const TRACED: &str = "report_traced";
const PROBED: &str = "report_probed";

/// How errors of GPUs are heard of as they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidWay {
    /// By the driver's tracepoint.
    Tracepoint,
    /// By a probe on the function that tells of them.
    Function(KernelTier),
}

impl fmt::Display for XidWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tracepoint => f.write_str("by the driver's tracepoint nvidia:nvidia_dev_xid"),
            Self::Function(tier) => {
                write!(f, "by the driver's function {FUNCTION} ({}): it has no tracepoint", tier.as_str())
            }
        }
    }
}

/// A way that works, for as long as it is kept.
pub(crate) struct Heard {
    pub(crate) way: XidWay,
    _tracepoint: Option<Link>,
    _function: Option<MadeLink>,
}

/// Begins to listen; `None` where the driver is not there, or can be heard in none of these ways. A tier that was forced is
/// that of kprobes.
pub(crate) fn listen(object: &Object, forced: Option<Tier>) -> Result<Option<Heard>, CaptureError> {
    if let Ok(link) = program(object, TRACEPOINT)?.attach() {
        return Ok(Some(Heard { way: XidWay::Tracepoint, _tracepoint: Some(link), _function: None }));
    }
    let proc_root = Path::new("/proc");
    // a look at all of the kernel's symbols takes a while
    if driver_modules(proc_root, Path::new("/sys")).is_empty() {
        return Ok(None);
    }
    let Some(function) = found(proc_root, FUNCTION) else { return Ok(None) };
    let heard =
        |tier| move |link| Heard { way: XidWay::Function(tier), _tracepoint: None, _function: Some(link) };
    let by_fentry = || by_program(object, TRACED, KernelWay::Entry, 0).ok().map(heard(KernelTier::Fentry));
    let by_kprobe = || {
        // several of one name cannot be
        let &[address] = function.addresses.as_slice() else { return None };
        let link = by_program(object, PROBED, KernelWay::Perf, address).ok();
        link.map(heard(KernelTier::Kprobes(Tier::Perf)))
    };
    let fentry = if forced.is_none() { by_fentry() } else { None };
    Ok(fentry.or_else(by_kprobe))
}

/// Loads one of the programs, apart from the others, and has it run where the function begins.
fn by_program(main: &Object, name: &str, way: KernelWay, address: u64) -> io::Result<MadeLink> {
    let loaded = || {
        let mut object = open_again(main)?;
        for mut program in object.progs_mut() {
            let is_it = program.name() == name;
            program.set_autoload(is_it);
            if is_it && way == KernelWay::Entry {
                program.set_attach_target(0, Some(FUNCTION.to_owned()))?;
            }
        }
        object.load()
    };
    let object = quietly(loaded).map_err(io::Error::other)?;
    with_program(&object, name, |program| make_in_kernel(program, way, &[(address, 0)]))
}

/// A function of one of the driver's modules.
fn found(proc_root: &Path, wanted: &str) -> Option<KernelFunction> {
    let is_it =
        |name: &str, module: Option<&str>| name == wanted && module.is_some_and(|m| m.starts_with("nvidia"));
    kernel_functions(proc_root, is_it).ok()?.pop()
}

/// How they will be heard of on this machine, as far as that can be told without doing it.
pub fn xid_way(support: &KernelSupport) -> Option<XidWay> {
    let proc_root = Path::new("/proc");
    if driver_modules(proc_root, Path::new("/sys")).is_empty() {
        return None;
    }
    if found(proc_root, OF_TRACEPOINT).is_some() {
        return Some(XidWay::Tracepoint);
    }
    let function = found(proc_root, FUNCTION)?;
    let is_typed = results(std::slice::from_ref(&function)).iter().any(Option::is_some);
    let tier = match () {
        () if is_typed && support.has_fentry() => KernelTier::Fentry,
        () if support.has_kprobes(Tier::Perf) => KernelTier::Kprobes(Tier::Perf),
        () => return None,
    };
    Some(XidWay::Function(tier))
}
