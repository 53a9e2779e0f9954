//! Watching what processes ask of the driver's devices.

use gpuprobe_discover::Device;
use gpuprobe_event::{Api, Function, FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::attach::Collect;
use crate::driver::{SYSCALLS, first_row, tell_devices};
use crate::error::CaptureError;
use crate::functions::{self, KernelHook, KernelTier, ProbedFunctions, Unprobed};
use crate::handles::program_of;
use crate::rows::{driver_row, function_row};
use crate::tracepoints::{self, TracepointHook};
use crate::wire::{MapName, as_bytes, number};
use crate::xids::XidWay;

impl Capture {
    /// Watches calls of the kernel on these devices. The configuration must have asked for it.
    pub fn attach_driver(&mut self, devices: &[Device], collect: Collect) -> Result<(), CaptureError> {
        let first = first_row().ok_or(CaptureError::Missing("ioctl"))?;
        let rows = self.map(MapName::Functions)?;
        for id in first.0..first.0 + number::DRIVER_CALLS {
            let function = catalogue().get(FunctionId(id)).ok_or(CaptureError::Missing("ioctl"))?;
            rows.update(&id.to_ne_bytes(), as_bytes(&driver_row(function, collect)), MapFlags::ANY)
                .map_err(CaptureError::bpf("fill the table of functions"))?;
        }
        self.tell_devices(devices)?;
        for name in SYSCALLS {
            let link = program_of(&self.object, name)?.attach();
            let link = link.map_err(CaptureError::bpf("attach to the tracepoints of system calls"))?;
            self.tracepoints.push(link);
        }
        Ok(())
    }

    /// How errors of GPUs are heard of as they happen; `None` where only NVML tells of them.
    pub fn xid_way(&self) -> Option<XidWay> {
        self.xids.as_ref().map(|heard| heard.way)
    }

    /// Probes functions of the kernel, each in the best way that it lets itself be probed in.
    pub fn attach_functions(
        &mut self,
        hooks: &[KernelHook],
        tiers: &[KernelTier],
        collect: Collect,
    ) -> Result<ProbedFunctions, CaptureError> {
        let accepted = hooks.iter().filter(|hook| hook.refused.is_none());
        let row = |hook: &KernelHook| catalogue().lookup(Api::Kernel, None, &hook.function.name);
        self.fill_rows(accepted.filter_map(row), collect)?;
        Ok(functions::attach(&mut self.functions, &self.object, hooks, (tiers, self.entry_only)))
    }

    /// Tells of tracepoints; those of the configuration, which the programs were loaded with.
    pub fn attach_tracepoints(
        &mut self,
        hooks: &[TracepointHook],
        collect: Collect,
    ) -> Result<Vec<Unprobed>, CaptureError> {
        self.fill_rows(tracepoints::accepted(hooks).filter_map(TracepointHook::row), collect)?;
        Ok(tracepoints::attach(&mut self.functions, &self.object, hooks))
    }

    fn fill_rows<'f>(
        &self,
        functions: impl Iterator<Item = &'f Function>,
        collect: Collect,
    ) -> Result<(), CaptureError> {
        let rows = self.map(MapName::Functions)?;
        for f in functions {
            rows.update(&f.id.0.to_ne_bytes(), as_bytes(&function_row(f, collect)), MapFlags::ANY)
                .map_err(CaptureError::bpf("fill the table of functions"))?;
        }
        Ok(())
    }

    /// Devices of the driver that have come meanwhile.
    pub fn tell_devices(&self, devices: &[Device]) -> Result<(), CaptureError> {
        tell_devices(&self.map(MapName::Devices)?, devices)
    }
}
