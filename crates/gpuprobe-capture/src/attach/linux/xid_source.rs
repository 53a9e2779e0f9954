//! Where GPU errors (XIDs) are reported: by the tracepoint of the NVIDIA kernel module; if it has none, by the
//! function that every release reports errors with; else only by NVML.

use std::fmt;

use libbpf_rs::{Link, Object};

use crate::attach::bpf_link::BpfLink;
use crate::attach::linux::builtin_kprobe::{BuiltinKprobe, nvidia_function};
use crate::attach::linux::linux_functions::LinuxTier;
use crate::error::CaptureError;
use crate::host::linux_support::LinuxSupport;
use crate::host::support::Tier;
use crate::wire::ProgramName;
use crate::wire::object_handles::program_of;

/// The program on the tracepoint.
const TRACEPOINT: ProgramName = ProgramName::OnXid;
/// The symbol that exists if the module has the tracepoint.
const OF_TRACEPOINT: &str = "__bpf_trace_nvidia_dev_xid";
/// The function that reports errors.
const REPORT: BuiltinKprobe = BuiltinKprobe {
    function: "nv_report_error",
    fentry: ProgramName::ReportTraced,
    kprobe: ProgramName::ReportProbed,
};

/// How GPU errors are reported as they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    /// By the tracepoint of the NVIDIA kernel module.
    Tracepoint,
    /// By a probe on the function that reports errors.
    Function(LinuxTier),
}

impl fmt::Display for XidSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tracepoint => f.write_str("by the NVIDIA kernel module's tracepoint nvidia:nvidia_dev_xid"),
            Self::Function(tier) => {
                let (function, tier) = (REPORT.function, tier.as_str());
                write!(f, "by the NVIDIA kernel module's function {function} ({tier}): it has no tracepoint")
            }
        }
    }
}

/// An attached source of GPU errors. Dropping it detaches it.
pub(crate) struct XidListener {
    pub(crate) source: XidSource,
    _tracepoint: Option<Link>,
    _function: Option<BpfLink>,
}

/// Attaches to the first source that works; `None` if there is none.
pub(crate) fn listen(object: &Object, forced: Option<Tier>) -> Result<Option<XidListener>, CaptureError> {
    if let Ok(link) = program_of(object, TRACEPOINT)?.attach() {
        return Ok(Some(XidListener {
            source: XidSource::Tracepoint,
            _tracepoint: Some(link),
            _function: None,
        }));
    }
    let made = REPORT.attach(object, forced).and_then(Result::ok);
    Ok(made.map(|(link, tier)| XidListener {
        source: XidSource::Function(tier),
        _tracepoint: None,
        _function: Some(link),
    }))
}

/// How errors will be reported on this machine, as far as this is known without attaching.
pub fn xid_source(support: &LinuxSupport) -> Option<XidSource> {
    match nvidia_function(OF_TRACEPOINT) {
        Some(_) => Some(XidSource::Tracepoint),
        None => REPORT.tier(support).map(XidSource::Function),
    }
}
