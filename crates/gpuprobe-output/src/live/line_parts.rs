//! Parts that several kinds of lines share: colors, the thread of a call, and indentation.

use gpuprobe_event::Call;

use crate::units::{push_decimal, push_printable};

pub(super) const RED: &str = "\x1b[31m";
pub(super) const PLAIN: &str = "\x1b[0m";
/// Deeper calls are not indented further than this.
const DEEPEST: u8 = 32;

/// For how many calls a sampled one stands.
pub(super) fn push_weight(out: &mut String, call: &Call) {
    if call.weight > 1 {
        out.push_str(" [1 of ~");
        push_decimal(out, call.weight.into());
        out.push(']');
    }
}

/// `python 12345/12350`
pub(super) fn push_thread(out: &mut String, call: &Call) {
    push_printable(out, &call.process);
    out.push(' ');
    push_decimal(out, call.tgid.0.into());
    out.push('/');
    push_decimal(out, call.tid.0.into());
}

pub(super) fn indent(out: &mut String, depth: u8) {
    for _ in 0..depth.min(DEEPEST) {
        out.push_str("  ");
    }
}
