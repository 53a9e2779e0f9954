//! The classic form: a line when a call begins and one when it returns, in columns.

use gpuprobe_event::{Call, Class, Outcome, Value, catalogue};

use super::arguments::{argument, by_name, dimensions, kernel, row, value};
use super::line_parts::push_weight;
use super::result::Results;
use crate::units::{push_decimal, push_printable};

const TIME: &str = "TIME     ";
const COLUMNS: &str = "PROCESS          PID     EVENT                 TYPE    DETAILS\n";

/// Functions whose arguments have other names here than in the headers: the names that the classic tracer printed.
const CLASSIC: [(&str, &[(&str, &str)]); 5] = [
    ("cudaMalloc", &[("size", "size")]),
    ("cudaFree", &[("ptr", "devPtr")]),
    ("cudaMemcpy", &[("size", "count"), ("kind", "kind")]),
    ("cudaLaunchKernel", &[("func", "func")]),
    ("cudaStreamCreate", &[("stream", "pStream")]),
];

pub(super) fn header(times: bool) -> String {
    [if times { TIME } else { "" }, COLUMNS].concat()
}

/// The line of the begin or the return of a call, starting with the name of the process.
pub(super) fn line(out: &mut String, call: &Call, results: &Results) {
    column(out, 17, |out| push_printable(out, &call.process));
    column(out, 8, |out| push_decimal(out, call.tgid.0.into()));
    let (width, phase) = match call.outcome {
        Outcome::Begun | Outcome::Unobserved => (20, "[ENTER]  "),
        Outcome::Instant => (20, "[EVENT]  "),
        Outcome::Returned { .. } => (21, "[EXIT]  "),
        Outcome::Unfinished => (21, "[OPEN]  "),
    };
    column(out, width, |out| push_printable(out, &call.name));
    out.push_str(phase);
    match call.outcome {
        Outcome::Begun | Outcome::Unobserved | Outcome::Instant => details(out, call),
        Outcome::Returned { value, .. } => match call.status {
            Some(0) => out.push_str("returned=Success"),
            _ => results.result(out, "returned=", call, value),
        },
        Outcome::Unfinished => out.push_str("did not return"),
    }
    out.truncate(out.trim_end_matches(' ').len());
    push_weight(out, call);
    out.push('\n');
}

/// Appends what `write` writes and pads it to a width, with one space at least.
fn column(out: &mut String, width: usize, write: impl FnOnce(&mut String)) {
    let begin = out.len();
    write(out);
    let used = out[begin..].chars().count();
    for _ in used..width.max(used + 1) {
        out.push(' ');
    }
}

fn details(out: &mut String, call: &Call) {
    arguments(out, call);
    if call.class == Class::Launch {
        out.push_str(", kernel=");
        kernel(out, call);
        let Some(launch) = call.effect.launch() else { return };
        for (name, dim3) in [(", grid=", launch.grid), (", block=", launch.block)] {
            if dim3.is_some() {
                dimensions(out, name, dim3);
            }
        }
    }
}

fn arguments(out: &mut String, call: &Call) {
    let base = row(call).map(|f| f.base);
    let classic = CLASSIC.iter().find(|(name, _)| base == Some(name));
    let Some((_, words)) = classic.filter(|_| call.args.is_some()) else { return by_name(out, call) };
    for (i, (word, name)) in words.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        out.push_str(word);
        out.push('=');
        match argument(call, name) {
            Some(Value::Name(kind)) => copy_kind(out, kind),
            Some(v) => value(out, call, v, false),
            None => out.push('?'),
        }
        if *word == "size" {
            out.push_str(" bytes");
        }
    }
}

/// The number of a copy kind, as the classic tracer printed it.
fn copy_kind(out: &mut String, name: &str) {
    let number = catalogue().enum_table("cudaMemcpyKind").and_then(|table| {
        table.values().iter().map(|v| v.0).find(|&number| table.name_of(number) == Some(name))
    });
    match number {
        Some(number) => push_decimal(out, number.unsigned_abs()),
        None => push_printable(out, name),
    }
}
