//! The probes on the Linux kernel and the NVIDIA kernel module.

use std::io;
use std::rc::Rc;

use gpuprobe_discover::Device;
use gpuprobe_event::{Api, Function, FunctionId, catalogue};
use libbpf_rs::{Link, MapCore, MapFlags, Object};

use super::builtin_kprobe::BuiltinKprobe;
use super::linux_functions::{self, LinuxTier, ProbedFunctions};
use super::linux_tracepoints;
use super::xid_source::{self, XidListener, XidSource};
use crate::attach::bpf_link::BpfLink;
use crate::error::CaptureError;
use crate::function_table::function_row::{device_call_row, linux_function_row};
use crate::host::support::Tier;
use crate::load::collect::Collect;
use crate::load::config::CaptureConfig;
use crate::load::hooks::{LinuxFunctionHook, TracepointHook, Unprobed, accepted};
use crate::wire::device_rows::first_row;
use crate::wire::object_handles::{map_of, program_of};
use crate::wire::{MapName, ProgramName, as_bytes, number};

/// The programs on system calls. The one at the end is attached first: a call whose end is not seen would stay open.
const SYSCALLS: [ProgramName; 2] = [ProgramName::OnSyscallEnd, ProgramName::OnSyscall];

/// The function by which the UVM kernel module notifies its own parts of faults and migrations.
const UVM_NOTIFY: BuiltinKprobe = BuiltinKprobe {
    function: "uvm_perf_event_notify",
    fentry: ProgramName::UnifiedTraced,
    kprobe: ProgramName::UnifiedProbed,
};

/// The probes on the Linux kernel.
pub(crate) struct LinuxAttacher {
    object: Rc<Object>,
    /// Tracepoints of processes and system calls.
    tracepoints: Vec<Link>,
    /// Probed functions, and tracepoints that the user has named.
    links: Vec<BpfLink>,
    xids: Option<XidListener>,
    entry_only: bool,
    /// The tier that the user asked for.
    forced: Option<Tier>,
}

impl std::fmt::Debug for LinuxAttacher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinuxAttacher").field("links", &self.links).finish_non_exhaustive()
    }
}

impl LinuxAttacher {
    /// Attaches to the tracepoints of processes, and to GPU errors if the NVIDIA kernel module reports them.
    pub(crate) fn start(object: Rc<Object>, config: &CaptureConfig) -> Result<Self, CaptureError> {
        let mut tracepoints = Vec::new();
        for name in [ProgramName::OnExit, ProgramName::OnExec, ProgramName::OnFork] {
            let link = program_of(&object, name)?.attach();
            tracepoints.push(link.map_err(CaptureError::bpf("attach to the scheduler's tracepoints"))?);
        }
        let xids = xid_source::listen(&object, config.tier)?;
        let (entry_only, forced) = (config.entry_only, config.tier);
        Ok(Self { object, tracepoints, links: Vec::new(), xids, entry_only, forced })
    }

    pub(crate) fn attach_device_calls(
        &mut self,
        devices: &[Device],
        collect: Collect,
    ) -> Result<(), CaptureError> {
        let first = first_row().ok_or(CaptureError::Missing("ioctl"))?;
        let rows = map_of(&self.object, MapName::Functions)?;
        for id in first.0..first.0 + number::DEVICE_SYSCALLS {
            let function = catalogue().get(FunctionId(id)).ok_or(CaptureError::Missing("ioctl"))?;
            rows.update(&id.to_ne_bytes(), as_bytes(&device_call_row(function, collect)), MapFlags::ANY)
                .map_err(CaptureError::bpf("fill the table of functions"))?;
        }
        self.add_devices(devices)?;
        for name in SYSCALLS {
            let link = program_of(&self.object, name)?.attach();
            let link = link.map_err(CaptureError::bpf("attach to the tracepoints of system calls"))?;
            self.tracepoints.push(link);
        }
        Ok(())
    }

    /// Writes which device files belong to the NVIDIA kernel module. Removed ones may stay: nothing else has their
    /// numbers.
    pub(crate) fn add_devices(&self, devices: &[Device]) -> Result<(), CaptureError> {
        let map = map_of(&self.object, MapName::Devices)?;
        for device in devices {
            let key = device.major << 20 | device.minor.unwrap_or(number::ANY_MINOR);
            map.update(&key.to_ne_bytes(), &[device.kind.number()], MapFlags::ANY)
                .map_err(CaptureError::bpf("register the NVIDIA device files"))?;
        }
        Ok(())
    }

    pub(crate) fn xid_source(&self) -> Option<XidSource> {
        self.xids.as_ref().map(|listener| listener.source)
    }

    pub(crate) fn attach_linux_functions(
        &mut self,
        hooks: &[LinuxFunctionHook],
        tiers: &[LinuxTier],
        collect: Collect,
    ) -> Result<ProbedFunctions, CaptureError> {
        let accepted = hooks.iter().filter(|hook| hook.refused.is_none());
        let row = |hook: &LinuxFunctionHook| catalogue().lookup(Api::Kernel, None, &hook.function.name);
        self.fill_rows(accepted.filter_map(row), collect)?;
        Ok(linux_functions::attach(&mut self.links, &self.object, hooks, (tiers, self.entry_only)))
    }

    pub(crate) fn attach_tracepoints(
        &mut self,
        hooks: &[TracepointHook],
        collect: Collect,
    ) -> Result<Vec<Unprobed>, CaptureError> {
        self.fill_rows(accepted(hooks).filter_map(TracepointHook::row), collect)?;
        Ok(linux_tracepoints::attach(&mut self.links, &self.object, hooks))
    }

    fn fill_rows<'f>(
        &self,
        functions: impl Iterator<Item = &'f Function>,
        collect: Collect,
    ) -> Result<(), CaptureError> {
        let rows = map_of(&self.object, MapName::Functions)?;
        for f in functions {
            rows.update(&f.id.0.to_ne_bytes(), as_bytes(&linux_function_row(f, collect)), MapFlags::ANY)
                .map_err(CaptureError::bpf("fill the table of functions"))?;
        }
        Ok(())
    }

    pub(crate) fn attach_unified(&mut self) -> Option<io::Result<LinuxTier>> {
        let attached = UVM_NOTIFY.attach(&self.object, self.forced)?;
        Some(attached.map(|(link, tier)| {
            self.links.push(link);
            tier
        }))
    }

    /// Detaches everything but the tracepoints of processes and system calls.
    pub(crate) fn detach_probes(&mut self) {
        self.links.clear();
        self.xids = None;
    }

    /// Detaches the last ones first: the beginnings of system calls before their ends.
    pub(crate) fn detach_tracepoints(&mut self) {
        while self.tracepoints.pop().is_some() {}
    }
}
