//! Decodes system calls on NVIDIA device files.

use gpuprobe_event::driver::{DeviceKind, Ioctl, Version, command_name, status_name};
use gpuprobe_event::{Call, DeviceSyscall, Effect, Name, Value};

use crate::wire::{as_bytes, gp_call, number};

/// Annotates a system call with its device and command. Everything in the record comes from the calling program, so
/// it may be invalid.
pub(crate) fn annotate_device_call(call: &mut Call, which: u32, raw: &gp_call, version: Version) {
    let on = raw.detail.device();
    let kind = DeviceKind::from_number(on.kind);
    let device = device_name(kind, on.number);
    let mut command = None;
    let read = raw.flags & number::CALL_UNREAD_STACK == 0;
    match which {
        number::DEVICE_IOCTL => {
            let bytes = as_bytes(&raw.stack);
            let argument = if read { &bytes[..bytes.len().min(on.argument_bytes as usize)] } else { &[] };
            let ioctl = Ioctl { device: kind, request: on.request, argument };
            command = Some(command_name(version, ioctl.code()).text);
            annotate_ioctl(call, &ioctl, version);
        }
        number::DEVICE_OPEN => {
            let path =
                if read { text(raw.stack.path()).map_or(Value::Unread, Value::Text) } else { Value::Unread };
            call.args = Some(vec![(Name::Borrowed("path"), path)]);
        }
        _ => {}
    }
    if device.is_some() || command.is_some() {
        call.effect = Effect::DeviceSyscall(DeviceSyscall { device, command });
    }
}

fn annotate_ioctl(call: &mut Call, ioctl: &Ioctl<'_>, version: Version) {
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

/// The name of a device in `/dev`; a file that could not be opened has no number.
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
