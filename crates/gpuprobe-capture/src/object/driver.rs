//! Watching what processes ask of the driver's devices.

use gpuprobe_discover::Device;
use gpuprobe_event::{FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::attach::{self, Collect};
use crate::driver::{SYSCALLS, first_row, tell_devices};
use crate::error::CaptureError;
use crate::rows::driver_row;
use crate::wire::{as_bytes, number};

impl Capture {
    /// Watches calls of the kernel on these devices. The configuration must have asked for it.
    pub fn attach_driver(&mut self, devices: &[Device], collect: Collect) -> Result<(), CaptureError> {
        let first = first_row().ok_or(CaptureError::Missing("ioctl"))?;
        let rows = self.map("functions")?;
        for id in first.0..first.0 + number::DRIVER_CALLS {
            let function = catalogue().get(FunctionId(id)).ok_or(CaptureError::Missing("ioctl"))?;
            rows.update(&id.to_ne_bytes(), as_bytes(&driver_row(function, collect)), MapFlags::ANY)
                .map_err(CaptureError::bpf("fill the table of functions"))?;
        }
        self.tell_devices(devices)?;
        for name in SYSCALLS {
            let link = attach::program(&self.object, name)?.attach();
            let link = link.map_err(CaptureError::bpf("attach to the tracepoints of system calls"))?;
            self.tracepoints.push(link);
        }
        Ok(())
    }

    /// Whether the driver tells of errors of GPUs as they happen.
    pub fn sees_xids(&self) -> bool {
        self.sees_xids
    }

    /// Devices of the driver that have come meanwhile.
    pub fn tell_devices(&self, devices: &[Device]) -> Result<(), CaptureError> {
        tell_devices(&self.map("devices")?, devices)
    }
}
