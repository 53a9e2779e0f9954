//! Calls of the kernel on the driver's devices: what to watch, and what the records say.

use gpuprobe_discover::Device;
use gpuprobe_event::driver::{DeviceKind, Ioctl, Version, command_name, status_name};
use gpuprobe_event::{Api, Call, DriverCall, Effect, FunctionId, Name, Value, catalogue};
use libbpf_rs::{Map, MapCore, MapFlags};

use crate::error::CaptureError;
use crate::wire::{ProgramName, as_bytes, gp_call, number};

/// The programs that see them: at the end of a call first, for a beginning without it would never end.
pub(crate) const SYSCALLS: [ProgramName; 2] = [ProgramName::OnSyscallEnd, ProgramName::OnSyscall];

/// Where the calls of the kernel begin in the catalogue, in the order of `gp_driver_call`.
pub(crate) fn first_row() -> Option<FunctionId> {
    catalogue().lookup(Api::Kernel, None, "ioctl").map(|f| f.id)
}

/// Whether a row is one of these.
pub(crate) fn call_of(id: FunctionId) -> Option<u32> {
    id.0.checked_sub(first_row()?.0).filter(|call| *call < number::DRIVER_CALLS)
}

/// Tells the kernel side which devices are the driver's. Those that are gone may stay: nobody has their numbers.
pub(crate) fn tell_devices(map: &Map<'_>, devices: &[Device]) -> Result<(), CaptureError> {
    for device in devices {
        let key = device.major << 20 | device.minor.unwrap_or(number::ANY_MINOR);
        map.update(&key.to_ne_bytes(), &[device.kind.number()], MapFlags::ANY)
            .map_err(CaptureError::bpf("name the driver's devices"))?;
    }
    Ok(())
}

/// What a call of the kernel asked of the driver. Everything in the record came from whoever called.
pub(crate) fn tell_driver(call: &mut Call, which: u32, raw: &gp_call, version: Version) {
    let on = raw.detail.device();
    let kind = DeviceKind::from_number(on.kind);
    let device = device_name(kind, on.number);
    let mut command = None;
    let read = raw.flags & number::CALL_UNREAD_STACK == 0;
    match which {
        number::DRIVER_IOCTL => {
            let bytes = as_bytes(&raw.stack);
            let argument = if read { &bytes[..bytes.len().min(on.argument_bytes as usize)] } else { &[] };
            let ioctl = Ioctl { device: kind, request: on.request, argument };
            command = Some(command_name(version, ioctl.code()).text);
            tell_ioctl(call, &ioctl, version);
        }
        number::DRIVER_OPEN => {
            let path =
                if read { text(raw.stack.path()).map_or(Value::Unread, Value::Text) } else { Value::Unread };
            call.args = Some(vec![(Name::Borrowed("path"), path)]);
        }
        _ => {}
    }
    if device.is_some() || command.is_some() {
        call.effect = Effect::DriverCall(DriverCall { device, command });
    }
}

fn tell_ioctl(call: &mut Call, ioctl: &Ioctl<'_>, version: Version) {
    if let Some(args) = &mut call.args {
        let request = args.iter_mut().find(|(name, _)| name == "request");
        request.into_iter().for_each(|(_, value)| *value = Value::Hex(ioctl.request.into()));
        args.extend(ioctl.fields(version));
    }
    let status = ioctl.status().filter(|status| *status != 0);
    if let Some(status) = status.filter(|_| call.error.is_none() && call.duration_ns().is_some()) {
        call.error = Some(match status_name(status) {
            Some(name) => Name::Borrowed(name),
            None => Name::Owned(format!("unknown NV_STATUS {status:#x}")),
        });
    }
}

/// The name of a device as it stands in `/dev`; a file that could not be opened has no number.
fn device_name(kind: DeviceKind, number: u32) -> Option<Name> {
    const MINOR: u32 = (1 << 20) - 1;
    match kind {
        _ if number == 0 => None,
        DeviceKind::Gpu => Some(Name::Owned(format!("{}{}", kind.as_str(), number & MINOR))),
        _ => Some(Name::Borrowed(kind.as_str())),
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// The version of the driver that is loaded; its commands have the newest names where none is.
pub(crate) fn loaded_version() -> Version {
    Version::parse(driver_version().unwrap_or_default().trim())
}

/// What the driver that is loaded says of its version.
pub fn driver_version() -> Option<String> {
    let version = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(version.trim().to_owned())
}
