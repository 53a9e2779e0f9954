//! The result of a call, after its parentheses: status, duration and effect.

use gpuprobe_event::catalogue::{EnumTable, ResultKind};
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Api, Call, Class, DeviceTime, Effect, Free, Outcome, Value, meaning};

use super::arguments;
use super::line_parts::{PLAIN, RED};
use crate::units::{push_decimal, push_duration, push_exact_bytes, push_hex, push_printable, push_signed};

/// Writes the results of calls.
#[derive(Debug)]
pub(super) struct Results {
    color: bool,
    /// The status names of each API, in the order of [`Api::ALL`]. Looked up once, because every line needs one.
    statuses: [Option<&'static EnumTable>; Api::ALL.len()],
}

impl Results {
    pub(super) fn new(color: bool) -> Self {
        Self { color, statuses: Api::ALL.map(Api::statuses) }
    }

    /// ` = cudaSuccess <101.2us> [driver 3 calls 12.1us]`
    pub(super) fn outcome(&self, out: &mut String, call: &Call) {
        match call.outcome {
            Outcome::Begun => out.push_str(" ..."),
            Outcome::Unobserved => out.push_str(" return not observed"),
            Outcome::Instant => {}
            Outcome::Unfinished => out.push_str(" did not return"),
            Outcome::Returned { value, duration_ns } => {
                if call.failed() {
                    self.failure(out, call);
                } else {
                    self.result(out, " = ", call, value);
                    effect(out, call);
                }
                out.push_str(" <");
                push_duration(out, duration_ns);
                out.push('>');
                below(out, call);
            }
        }
    }

    /// The name of a failure, its number and its meaning.
    fn failure(&self, out: &mut String, call: &Call) {
        let status = call.status.unwrap_or(0);
        let (begin, end) = if self.color { (RED, PLAIN) } else { ("", "") };
        out.push_str(" = ");
        out.push_str(begin);
        // a status of the NVIDIA kernel module has a name, but is not the number that the call returned
        let number = call.status.or_else(|| self.separate_status(call));
        if self.status(out, call, status) && number.is_some() {
            let status = number.unwrap_or(status);
            out.push_str(" (");
            push_signed(out, status);
            if let Some(words) = meaning(call.api, status) {
                out.push_str(": ");
                out.push_str(words);
            }
            out.push(')');
        }
        out.push_str(end);
    }

    /// The number of an error that a call did not return but wrote.
    fn separate_status(&self, call: &Call) -> Option<i64> {
        self.statuses[call.api as usize]?.number_of(call.error.as_deref()?)
    }

    /// Appends `before` and the returned value; nothing for a function that returns nothing.
    pub(super) fn result(&self, out: &mut String, before: &str, call: &Call, value: u64) {
        if let Some(status) = call.status {
            out.push_str(before);
            self.status(out, call, status);
            return;
        }
        let function = arguments::row(call);
        match function.map_or(ResultKind::Unknown, |f| f.result) {
            ResultKind::Void | ResultKind::Moment => {}
            ResultKind::Errno if value < 1 << 32 => {
                out.push_str(before);
                push_decimal(out, value);
            }
            ResultKind::Uint => {
                out.push_str(before);
                push_decimal(out, value);
            }
            ResultKind::Int => {
                out.push_str(before);
                // a small type is returned in the low part of the register; the rest is undefined
                let narrow = function.is_some_and(|f| f.result_type == "char");
                push_signed(out, if narrow { i64::from(value as i8) } else { i64::from(value as i32) });
            }
            _ => {
                out.push_str(before);
                push_hex(out, value);
            }
        }
    }

    /// Appends the name of a status. Without a name it appends the number and returns false.
    pub(super) fn status(&self, out: &mut String, call: &Call, status: i64) -> bool {
        let table = self.statuses[call.api as usize].filter(|_| call.status.is_some());
        if let Some(name) = table.and_then(|t| t.name_of(status)) {
            out.push_str(name);
            return true;
        }
        match &call.error {
            // the name of a hook's error is its number
            Some(name) if call.api == Api::Hook => {
                push_printable(out, name);
                return false;
            }
            None if call.api == Api::Hook => {
                push_signed(out, status);
                return false;
            }
            Some(name) => {
                push_printable(out, name);
                return !name.starts_with("unknown ");
            }
            None => {
                out.push_str("unknown ");
                push_signed(out, status);
            }
        }
        false
    }
}

/// ` [driver 3 calls 12.1us]`: system calls into the NVIDIA kernel module during the call, and their time.
fn below(out: &mut String, call: &Call) {
    if let Some(DeviceTime { calls, ns }) = call.driver {
        out.push_str(" [driver ");
        push_decimal(out, calls);
        out.push_str(if calls == 1 { " call " } else { " calls " });
        push_duration(out, ns);
        out.push(']');
    }
}

/// The effect of a successful call: bytes allocated, freed or moved, unless an argument already shows them.
fn effect(out: &mut String, call: &Call) {
    match &call.effect {
        Effect::Alloc(allocation) if call.class == Class::Alloc => {
            // a hook may return the address itself
            let is_result =
                matches!(call.outcome, Outcome::Returned { value, .. } if Some(value) == allocation.address);
            if let Some(address) = allocation.address.filter(|_| !is_result) {
                out.push(' ');
                push_hex(out, address);
            }
            size_unless_shown(out, " of ", call);
        }
        Effect::Free(Free { freed: Some(freed), .. }) if call.class == Class::Free => {
            out.push_str(" freed ");
            amount(out, freed.bytes);
        }
        Effect::Transfer(transfer) if transfer.direction == CopyDirection::Fill => {
            size_unless_shown(out, " set ", call);
        }
        Effect::Transfer(transfer) => {
            if size_unless_shown(out, " moved ", call)
                && let Some(direction) = transfer.known_direction().map(CopyDirection::as_str)
                && !call
                    .args
                    .iter()
                    .flatten()
                    .any(|(_, v)| matches!(v, Value::Name(name) if name == direction))
            {
                out.push(' ');
                out.push_str(direction);
            }
        }
        _ => {}
    }
}

/// Appends the bytes of a call if no single argument has that value, as for copies of rows and planes. Returns whether
/// it did.
fn size_unless_shown(out: &mut String, before: &str, call: &Call) -> bool {
    let Some(size) = call.effect.size() else { return false };
    let shows_size = |v: &Value| matches!(v, Value::Uint(n) if *n == size);
    if call.args.iter().flatten().any(|(_, v)| shows_size(v)) {
        return false;
    }
    out.push_str(before);
    amount(out, size);
    true
}

/// Bytes, always with a unit: `4.0 MiB`, `4000 bytes`.
fn amount(out: &mut String, bytes: u64) {
    let begin = out.len();
    push_exact_bytes(out, bytes);
    if !out[begin..].contains(' ') {
        out.push_str(" bytes");
    }
}
