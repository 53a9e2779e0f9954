//! The arguments of a call, in parentheses.

use gpuprobe_event::{Call, Class, DeviceSyscall, Effect, Function, Name, Space, Value, catalogue};

use crate::units::{push_decimal, push_exact_bytes, push_hex, push_printable, push_quoted, push_signed};

/// Names of CUDA kernels made from templates may have thousands of characters.
const KERNEL_COLUMNS: usize = 160;

/// The arguments of a call in parentheses: for a launch the CUDA kernel and its dimensions, otherwise all by name.
pub(crate) fn list(out: &mut String, call: &Call) {
    out.push('(');
    let function = if call.class == Class::Launch { row(call) } else { None };
    match (function.filter(|f| f.roles.func.is_some()), &call.effect) {
        (Some(function), _) => launch(out, call, function),
        (None, Effect::DeviceSyscall(ioctl)) if ioctl.device.is_some() => driver(out, call, ioctl),
        _ => by_name(out, call),
    }
    out.push(')');
}

/// The arguments by name, `a=1, b=0x7f00`; `?` if the prototype is unknown.
pub(crate) fn by_name(out: &mut String, call: &Call) {
    match &call.args {
        Some(args) => fields(out, call, args),
        None => out.push('?'),
    }
}

/// A call on a device file of the NVIDIA kernel module: the names of the device and the command replace the file
/// descriptor and the request number.
fn driver(out: &mut String, call: &Call, ioctl: &DeviceSyscall) {
    let names = [ioctl.device.as_deref(), ioctl.command.as_deref()];
    for (at, name) in names.into_iter().flatten().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        push_printable(out, name);
    }
    for (name, v) in call.args.iter().flatten().filter(|(name, _)| name != "fd" && name != "request") {
        out.push_str(", ");
        field(out, call, name, v);
    }
}

/// A launch: the CUDA kernel, its dimensions and its stream. The addresses of the function and of its arguments are
/// omitted, because they mean nothing to a reader.
fn launch(out: &mut String, call: &Call, function: &Function) {
    kernel(out, call);
    let launch = call.effect.launch();
    if function.roles.grid.is_none() && function.roles.config.is_none() {
        let plain = |v: &Value| !matches!(v, Value::Hex(_));
        for (name, v) in call.args.iter().flatten().filter(|(_, v)| plain(v)) {
            out.push(' ');
            field(out, call, name, v);
        }
    } else {
        dimensions(out, " grid=", launch.and_then(|launch| launch.grid));
        dimensions(out, " block=", launch.and_then(|launch| launch.block));
        let shared = function.arg(function.roles.shared).and_then(|a| argument(call, a.name));
        if let Some(shared) = shared {
            out.push_str(" shared=");
            value(out, call, shared, true);
        }
    }
    if function.roles.stream.is_some() || function.roles.config.is_some() {
        out.push_str(" stream=");
        match call.stream {
            Some(stream) => push_hex(out, stream),
            None => out.push('?'),
        }
    }
}

/// The name of the CUDA kernel, never its address.
pub(super) fn kernel(out: &mut String, call: &Call) {
    let Some(name) = call.effect.kernel() else { return out.push('?') };
    let begin = out.len();
    push_printable(out, name);
    if out.len() - begin > KERNEL_COLUMNS
        && let Some((cut, _)) = out[begin..].char_indices().nth(KERNEL_COLUMNS)
    {
        out.truncate(begin + cut);
        out.push_str("...");
    }
}

pub(super) fn dimensions(out: &mut String, name: &str, dim3: Option<[u32; 3]>) {
    out.push_str(name);
    match dim3 {
        Some(dim3) => push_dim3(out, dim3),
        None => out.push('?'),
    }
}

fn push_dim3(out: &mut String, [x, y, z]: [u32; 3]) {
    out.push('(');
    push_decimal(out, x.into());
    out.push(',');
    push_decimal(out, y.into());
    out.push(',');
    push_decimal(out, z.into());
    out.push(')');
}

/// An argument of a call by its name.
pub(super) fn argument<'a>(call: &'a Call, name: &str) -> Option<&'a Value> {
    call.args.iter().flatten().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// The catalogue row of a call. If signatures differ between releases this is the newest, so arguments are found by
/// name and not by position.
pub(super) fn row(call: &Call) -> Option<&'static Function> {
    catalogue().lookup(call.api, None, &call.name)
}

fn fields(out: &mut String, call: &Call, fields: &[(Name, Value)]) {
    for (i, (name, v)) in fields.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        field(out, call, name, v);
    }
}

fn field(out: &mut String, call: &Call, name: &str, v: &Value) {
    push_printable(out, name);
    out.push('=');
    // a small number looks the same with and without a unit, so it need not be looked up whether it counts bytes
    let large = matches!(v, Value::Uint(n) if *n >= 1 << 10);
    value(out, call, v, large && counts_bytes(call, name));
}

/// One value of a call, with a unit if it counts bytes.
pub(super) fn value(out: &mut String, call: &Call, v: &Value, bytes: bool) {
    match v {
        Value::Uint(n) if bytes => push_exact_bytes(out, *n),
        Value::Uint(n) => push_decimal(out, *n),
        Value::Int(n) => push_signed(out, *n),
        Value::Hex(n) => push_hex(out, *n),
        Value::Name(name) => push_printable(out, name),
        Value::Text(text) => push_quoted(out, text),
        Value::Dim3(dim3) => push_dim3(out, *dim3),
        Value::Struct(of) => {
            out.push('{');
            fields(out, call, of);
            out.push('}');
        }
        Value::Unread => out.push('?'),
    }
}

/// Whether an argument, or a field of one, counts bytes: decided by its name, or else by its role in the call. The type
/// does not help, because numbers of elements have the same types.
fn counts_bytes(call: &Call, name: &str) -> bool {
    const ENDS: [&str; 5] = ["bytes", "bytecount", "bytesize", "pitch", "smemsize"];
    const NAMES: [&str; 5] = ["size", "sharedMem", "bufferSize", "dataSize", "minBytesToKeep"];
    let ends_with = |end: &&str| {
        let tail = name.len().checked_sub(end.len()).and_then(|at| name.get(at..));
        tail.is_some_and(|tail| tail.eq_ignore_ascii_case(end))
    };
    if NAMES.contains(&name) || ENDS.iter().any(ends_with) {
        return true;
    }
    let Some(f) = row(call) else { return false };
    let is = |position| f.arg(position).is_some_and(|a| a.name == name);
    let elements = f.roles.elem != 1 || f.roles.space == Some(Space::Array);
    !elements && (is(f.roles.size) || is(f.roles.width))
}
