//! How errors of GPUs (XIDs) are heard of: by the driver's tracepoint, else by the function that tells of them in every
//! release, and where neither can be had by NVML alone.

use std::fmt;

use libbpf_rs::{Link, Object};

use crate::attach::bpf_link::BpfLink;
use crate::attach::linux::builtin_kprobe::{BuiltinKprobe, nvidia_function};
use crate::attach::linux::linux_functions::KernelTier;
use crate::error::CaptureError;
use crate::host::linux_support::KernelSupport;
use crate::host::support::Tier;
use crate::wire::ProgramName;
use crate::wire::object_handles::program_of;

/// The program on the tracepoint.
const TRACEPOINT: ProgramName = ProgramName::OnXid;
/// What the kernel has for the programs on it.
const OF_TRACEPOINT: &str = "__bpf_trace_nvidia_dev_xid";
/// The function that tells of errors.
const REPORT: BuiltinKprobe = BuiltinKprobe {
    function: "nv_report_error",
    fentry: ProgramName::ReportTraced,
    kprobe: ProgramName::ReportProbed,
};

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
                let (function, tier) = (REPORT.function, tier.as_str());
                write!(f, "by the driver's function {function} ({tier}): it has no tracepoint")
            }
        }
    }
}

/// A way that works, for as long as it is kept.
pub(crate) struct XidListener {
    pub(crate) source: XidWay,
    _tracepoint: Option<Link>,
    _function: Option<BpfLink>,
}

/// Begins to listen; `None` where the driver is not there, or can be heard in none of these ways.
pub(crate) fn listen(object: &Object, forced: Option<Tier>) -> Result<Option<XidListener>, CaptureError> {
    if let Ok(link) = program_of(object, TRACEPOINT)?.attach() {
        return Ok(Some(XidListener {
            source: XidWay::Tracepoint,
            _tracepoint: Some(link),
            _function: None,
        }));
    }
    let made = REPORT.attach(object, forced).and_then(Result::ok);
    Ok(made.map(|(link, tier)| XidListener {
        source: XidWay::Function(tier),
        _tracepoint: None,
        _function: Some(link),
    }))
}

/// How they will be heard of on this machine, as far as that can be told without doing it.
pub fn xid_way(support: &KernelSupport) -> Option<XidWay> {
    match nvidia_function(OF_TRACEPOINT) {
        Some(_) => Some(XidWay::Tracepoint),
        None => REPORT.tier(support).map(XidWay::Function),
    }
}
