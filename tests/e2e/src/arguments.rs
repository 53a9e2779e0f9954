//! Compares what the workload `args` prints with the decoded calls: the same calls in the same order, with the same
//! values.

use gpuprobe_event::catalogue::{ArgKind, Field, StructLayout};
use gpuprobe_event::{Api, Call, Function, Value as Argument, catalogue};
use serde_json::Value;

use crate::recording::Recording;

/// `cudaMemcpyKind`, as the trace names it.
const COPY_KINDS: [&str; 5] = ["H2H", "H2D", "D2H", "D2D", "Default"];

/// Compares every printed line with the outermost calls of the trace. Returns the number of calls compared.
pub fn assert_equal(trace: &Recording, printed: &[Value], cuda_major: u32) -> usize {
    let mut calls: Vec<&Call> = trace.calls.iter().filter(|c| c.parent.is_none()).collect();
    calls.sort_by_key(|c| c.start_ns);
    let names: Vec<_> = calls.iter().map(|c| &*c.name).collect();
    let printed_names: Vec<_> = printed.iter().filter_map(|p| p["function"].as_str()).collect();
    assert_eq!(names, printed_names, "the functions called, in order");
    for (call, printed) in calls.iter().zip(printed) {
        assert_eq!(call.api.as_str(), printed["api"], "{printed}");
        assert_eq!(call.status, printed["ret"].as_i64(), "{printed}");
        assert_eq!(call.error.is_some(), call.failed(), "{printed}");
        let function = catalogue().lookup(call.api, Some(cuda_major), &call.name);
        assert_arguments(
            call,
            function.unwrap_or_else(|| panic!("not in the catalogue: {printed}")),
            printed,
        );
    }
    calls.len()
}

fn assert_arguments(call: &Call, function: &Function, printed: &Value) {
    let wanted = printed["args"].as_object().unwrap_or_else(|| panic!("no arguments: {printed}"));
    let args = call.args.as_ref().unwrap_or_else(|| panic!("no arguments: {call:?}"));
    let names: Vec<_> = args.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, wanted.keys().collect::<Vec<_>>(), "names of the arguments of {}", call.name);
    let kinds = function.args.as_ref().unwrap_or_else(|| panic!("no prototype: {printed}"));
    for (((name, got), wanted), arg) in args.iter().zip(wanted.values()).zip(kinds) {
        let same = equal(got, wanted, arg.kind);
        assert!(same, "{} {name}: decoded {got:?}, was given {wanted}", call.name);
    }
}

fn equal(got: &Argument, wanted: &Value, kind: ArgKind) -> bool {
    match (got, wanted) {
        (Argument::Uint(n) | Argument::Hex(n), Value::Number(wanted)) => wanted.as_u64() == Some(*n),
        (Argument::Int(n), Value::Number(wanted)) => wanted.as_i64() == Some(*n),
        (Argument::Hex(n), Value::String(wanted)) => *wanted == format!("{n:#x}"),
        // a name or a text: a trace does not distinguish them
        (Argument::Name(text), Value::String(wanted)) => text == wanted,
        (Argument::Unread, Value::Null) => true,
        (Argument::Name(name), Value::Number(wanted)) => enum_name(kind, wanted.as_i64()) == Some(name),
        (Argument::Dim3(n), Value::Array(wanted)) => {
            n.iter().map(|n| Value::from(*n)).eq(wanted.iter().cloned())
        }
        (Argument::Struct(fields), Value::Array(wanted)) => {
            let ArgKind::Struct { layout: Some(layout), .. } = kind else { return false };
            fields.len() == wanted.len() && layout.fields.len() == wanted.len() && all(fields, wanted, layout)
        }
        _ => false,
    }
}

fn all(got: &[(gpuprobe_event::Name, Argument)], wanted: &[Value], layout: &StructLayout) -> bool {
    got.iter().zip(wanted).zip(&layout.fields).all(|(((_, got), wanted), f)| equal(got, wanted, kind_of(f)))
}

fn kind_of(field: &Field) -> ArgKind {
    catalogue().enum_table(field.ty).map_or(ArgKind::Size, ArgKind::Enum)
}

fn enum_name(kind: ArgKind, value: Option<i64>) -> Option<&'static str> {
    let (ArgKind::Enum(table), Some(value)) = (kind, value) else { return None };
    if table.name == "cudaMemcpyKind" {
        return usize::try_from(value).ok().and_then(|v| COPY_KINDS.get(v)).copied();
    }
    table.name_of(value)
}

pub fn runtime_calls(printed: &[Value]) -> usize {
    printed.iter().filter(|p| p["api"] == Api::Runtime.as_str()).count()
}
