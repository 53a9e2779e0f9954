//! What is known of an event beside when and where it happened, field by field, under the names that a trace has for
//! them. The trace file and the formats it is converted to differ in how a field is written, not in which there are.

use crate::catalogue::Api;
use crate::driver;
use crate::event::{
    Call, CopyPart, DriverTime, Effect, HeldMemory, Name, Outcome, ProcessEvent, Value, XidEvent, XidProcess,
};

/// What a field is called.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// A name of this program's own, in which nothing has to be escaped.
    Ours(&'static str),
    /// One that came out of a file.
    Theirs(&'a str),
}

impl<'a> Key<'a> {
    /// The name.
    pub fn as_str(self) -> &'a str {
        match self {
            Self::Ours(text) => text,
            Self::Theirs(text) => text,
        }
    }
}

impl From<&'static str> for Key<'_> {
    fn from(text: &'static str) -> Self {
        Self::Ours(text)
    }
}

impl<'a> From<&'a Name> for Key<'a> {
    fn from(name: &'a Name) -> Self {
        match name {
            Name::Borrowed(text) => Self::Ours(text),
            Name::Owned(text) => Self::Theirs(text),
        }
    }
}

/// Takes one field after the other.
pub trait Fields {
    /// A count.
    fn uint<'k>(&mut self, key: impl Into<Key<'k>>, n: u64);
    /// A time, in microseconds.
    fn microseconds<'k>(&mut self, key: impl Into<Key<'k>>, ns: u64);
    /// A signed number.
    fn int<'k>(&mut self, key: impl Into<Key<'k>>, n: i64);
    /// Yes or no.
    fn flag<'k>(&mut self, key: impl Into<Key<'k>>, is: bool);
    /// An address, a handle or flags.
    fn hex<'k>(&mut self, key: impl Into<Key<'k>>, n: u64);
    /// Text, of which anything may be part.
    fn text<'k>(&mut self, key: impl Into<Key<'k>>, text: &str);
    /// A name.
    fn name<'k>(&mut self, key: impl Into<Key<'k>>, name: &Name) {
        self.text(key, name);
    }
    /// Several numbers.
    fn uints<'k>(&mut self, key: impl Into<Key<'k>>, numbers: &[u64]);
    /// Several texts.
    fn texts<'k>(&mut self, key: impl Into<Key<'k>>, texts: &[String]);
    /// Something that could not be read.
    fn unread<'k>(&mut self, key: impl Into<Key<'k>>);
    /// The fields that follow belong to this one, until [`Fields::close`].
    fn open<'k>(&mut self, key: impl Into<Key<'k>>);
    /// See [`Fields::open`].
    fn close(&mut self);
    /// The items that follow belong to this list, until [`Fields::close_list`].
    fn open_list<'k>(&mut self, key: impl Into<Key<'k>>);
    /// The fields that follow belong to an item of a list, until [`Fields::close`].
    fn open_item(&mut self);
    /// See [`Fields::open_list`].
    fn close_list(&mut self);
}

/// What is known of a call.
pub fn call_fields(call: &Call, to: &mut impl Fields) {
    to.name("api", &Name::Borrowed(call.api.as_str()));
    if call.api == Api::Hook {
        // of others the catalogue knows it, whoever reads this
        to.name("class", &Name::Borrowed(call.class.as_str()));
    }
    if let Outcome::Returned { value, .. } = call.outcome {
        match call.status {
            Some(status) => to.int("ret", status),
            None => to.uint("ret", value),
        }
    }
    if let Some(error) = &call.error {
        to.name("error", error);
    }
    if let Some(args) = &call.args {
        object("args", args, to);
    }
    if let Some(parent) = call.parent {
        to.uint("parent", parent);
    }
    effect_fields(&call.effect, to);
    if let Some(stack) = &call.stack {
        to.texts("stack", stack);
    }
}

fn effect_fields(effect: &Effect, to: &mut impl Fields) {
    if let Some(size) = effect.size {
        to.uint("size", size);
    }
    if let Some(freed) = effect.freed {
        to.uint("freed", freed);
    }
    if let Some(allocations) = effect.freed_allocations {
        to.uint("freed_allocations", allocations);
    }
    memory_fields("ended", &effect.ended, to);
    if let Some(gpu) = effect.gpu {
        to.uint("gpu", gpu.into());
    }
    if let Some(ptr) = effect.ptr {
        to.hex("ptr", ptr);
    }
    if let Some(site) = effect.site {
        to.uint("site", site.0.into());
    }
    if let Some(kind) = &effect.kind {
        to.name("kind", kind);
    }
    copy_fields(effect, to);
    if effect.captured {
        to.flag("captured", true);
    }
    if let Some(kernels) = effect.kernels {
        to.uint("kernels", kernels);
    }
    if let Some(stream) = effect.stream {
        to.hex("stream", stream);
    }
    if let Some(kernel) = &effect.kernel {
        to.text("kernel", kernel);
    }
    for (name, dim3) in [("grid", effect.grid), ("block", effect.block)] {
        if let Some(dim3) = dim3 {
            to.uints(name, &dim3.map(u64::from));
        }
    }
    if let Some(shared) = effect.shared {
        to.uint("shared", shared);
    }
    for (key, name) in [("dev", &effect.dev), ("cmd", &effect.cmd)] {
        if let Some(name) = name {
            to.name(key, name);
        }
    }
    if let Some(DriverTime { calls, ns }) = effect.driver {
        to.uint("driver_calls", calls);
        to.microseconds("driver_us", ns);
    }
}

/// By kind, how many allocations and bytes.
fn memory_fields(key: &'static str, memory: &[HeldMemory], to: &mut impl Fields) {
    if memory.is_empty() {
        return;
    }
    to.open(key);
    for HeldMemory { kind, allocations, bytes } in memory {
        to.uints(kind, &[*allocations, *bytes]);
    }
    to.close();
}

fn copy_fields(effect: &Effect, to: &mut impl Fields) {
    if let Some(host) = &effect.host {
        to.name("host", host);
    }
    if let Some(is_async) = effect.is_async {
        to.flag("async", is_async);
    }
    if effect.parts.is_empty() {
        return;
    }
    to.open_list("parts");
    for CopyPart { kind, host, copies, bytes } in &effect.parts {
        to.open_item();
        to.uint("copies", *copies);
        to.uint("size", *bytes);
        if let Some(kind) = kind {
            to.name("kind", kind);
        }
        if let Some(host) = host {
            to.name("host", host);
        }
        to.close();
    }
    to.close_list();
}

/// What is known of a change in the life of a process.
pub fn process_fields(process: &ProcessEvent, to: &mut impl Fields) {
    if let Some(parent) = process.parent {
        to.uint("ppid", parent.0.into());
    }
    if let Some(pid) = process.ns_pid {
        to.uint("ns_pid", pid.0.into());
    }
    if let Some(container) = &process.container {
        to.text("container", container);
    }
    if let Some(status) = process.exit_status {
        to.int("exit_status", status.into());
    }
    memory_fields("held", &process.held, to);
}

/// What is known of an error of a GPU. What its number means is told for people, and found again by it.
pub fn xid_fields(xid: &XidEvent, to: &mut impl Fields) {
    to.uint("xid", xid.number.into());
    to.text("pci", &xid.gpu);
    to.text("message", &xid.message);
    if let Some(known) = driver::xid(xid.number) {
        to.text("meaning", &known.meaning);
    }
    if xid.processes.is_empty() {
        return;
    }
    to.open_list("processes");
    for XidProcess { tgid, process, evidence } in &xid.processes {
        to.open_item();
        to.uint("pid", tgid.0.into());
        to.text("process", process);
        to.text("evidence", evidence.as_str());
        to.close();
    }
    to.close_list();
}

fn object<'k>(key: impl Into<Key<'k>>, fields: &[(Name, Value)], to: &mut impl Fields) {
    to.open(key);
    for (name, value) in fields {
        match value {
            Value::Uint(n) => to.uint(name, *n),
            Value::Int(n) => to.int(name, *n),
            Value::Hex(n) => to.hex(name, *n),
            Value::Name(text) => to.name(name, text),
            Value::Text(text) => to.text(name, text),
            Value::Dim3(dim3) => to.uints(name, &dim3.map(u64::from)),
            Value::Struct(fields) => object(name, fields, to),
            Value::Unread => to.unread(name),
        }
    }
    to.close();
}
