//! The fields of an event, other than its time and process, under their names in a trace. The trace file and the
//! formats that it is converted to differ only in how a field is written.

use std::collections::HashSet;

use crate::catalogue::{Api, Space};
use crate::copy_kind::{CopyDirection, HostMemory};
use crate::driver;
use crate::effect::{
    Allocation, CopyPart, DeviceSyscall, Effect, Free, GraphContents, GraphLaunch, Launch, MemoryAmount,
    Replaced, Transfer,
};
use crate::event::{Call, DeviceTime, Name, Outcome, ProcessEvent, Value, XidEvent, XidProcess};
use crate::ids::SiteId;
use crate::out_of_memory::OutOfMemoryEvent;

/// The name of a field.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// A static name, in which nothing has to be escaped.
    Ours(&'static str),
    /// A name from a file.
    Theirs(&'a str),
}

impl<'a> Key<'a> {
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

/// Receives fields one after the other.
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
    /// Arbitrary text.
    fn text<'k>(&mut self, key: impl Into<Key<'k>>, text: &str);
    fn name<'k>(&mut self, key: impl Into<Key<'k>>, name: &Name) {
        self.text(key, name);
    }
    /// Several numbers.
    fn uints<'k>(&mut self, key: impl Into<Key<'k>>, numbers: &[u64]);
    /// Several texts.
    fn texts<'k>(&mut self, key: impl Into<Key<'k>>, texts: &[String]);
    /// Something that could not be read.
    fn unread<'k>(&mut self, key: impl Into<Key<'k>>);
    /// Begins an object: the following fields belong to it, until [`Fields::close`].
    fn open<'k>(&mut self, key: impl Into<Key<'k>>);
    /// See [`Fields::open`].
    fn close(&mut self);
    /// Begins a list: the following items belong to it, until [`Fields::close_list`].
    fn open_list<'k>(&mut self, key: impl Into<Key<'k>>);
    /// Begins an object in a list: the following fields belong to it, until [`Fields::close`].
    fn open_item(&mut self);
    /// See [`Fields::open_list`].
    fn close_list(&mut self);
}

/// The stack of a call, if it has one.
pub fn stack_field(call: &Call, to: &mut impl Fields) {
    if let Some(stack) = &call.stack {
        to.texts("stack", stack);
    }
}

/// The call sites whose stacks a file has: it has each stack once, with the first call from there.
#[derive(Debug, Default)]
pub struct WrittenStacks(HashSet<SiteId>);

impl WrittenStacks {
    /// Beyond so many call sites, their stacks are written again.
    const MOST: usize = 1 << 20;

    /// Whether the file does not have the stack of this call yet. The caller writes it now.
    pub fn is_new(&mut self, call: &Call) -> bool {
        let (Some(_), Some(site)) = (&call.stack, call.call_site()) else { return true };
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(site)
    }
}

/// The fields of a call, without its stack.
pub fn call_fields(call: &Call, to: &mut impl Fields) {
    to.name("api", &Name::Borrowed(call.api.as_str()));
    if call.api == Api::Hook {
        // for other functions a reader finds it in the catalogue
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
    if call.weight > 1 {
        to.uint("weight", u64::from(call.weight));
    }
    if call.nested {
        to.flag("nested", true);
    }
    if !call.return_probed {
        to.flag("return_probed", false);
    }
    effect_fields(call, to);
    if let Some(DeviceTime { calls, ns }) = call.driver {
        to.uint("driver_calls", calls);
        to.microseconds("driver_us", ns);
    }
    if let Some(site) = call.site {
        to.uint("site", site.0.into());
    }
}

/// The effect of the call, and its stream.
fn effect_fields(call: &Call, to: &mut impl Fields) {
    match &call.effect {
        Effect::Alloc(allocation) => allocation_fields(allocation, to),
        Effect::Free(free) => free_fields(free, to),
        Effect::ContextEnd(ended) if !ended.is_empty() => {
            to.uint("freed", ended.iter().fold(0, |sum, memory| sum.saturating_add(memory.bytes)));
            memory_fields("freed_with_context", ended, to);
        }
        Effect::Transfer(transfer) => transfer_fields(transfer, to),
        Effect::Launch(launch) => {
            gpu_op_fields(launch.captured, Some(launch.kernels).filter(|kernels| *kernels != 1), to);
        }
        Effect::GraphLaunch(launch) => graph_launch_fields(launch, to),
        Effect::ContextEnd(_) | Effect::DeviceSyscall(_) | Effect::None => {}
    }
    if let Some(stream) = call.stream {
        to.hex("stream", stream);
    }
    match &call.effect {
        Effect::Launch(launch) => launch_fields(launch, to),
        Effect::DeviceSyscall(DeviceSyscall { device, command }) => {
            for (key, name) in [("dev", device), ("cmd", command)] {
                if let Some(name) = name {
                    to.name(key, name);
                }
            }
        }
        _ => {}
    }
}

fn allocation_fields(allocation: &Allocation, to: &mut impl Fields) {
    to.uint("size", allocation.bytes);
    if let Some(Replaced { bytes, kind }) = allocation.replaced {
        to.uint("replaced", bytes);
        if kind != allocation.kind {
            to.name("replaced_kind", &Name::Borrowed(kind.as_str()));
        }
    }
    if let Some(bytes) = allocation.live_bytes {
        to.uint("live", bytes);
    }
    location_fields(allocation.gpu, allocation.address, allocation.site, to);
    kind_field(allocation.kind, to);
}

fn free_fields(free: &Free, to: &mut impl Fields) {
    if let Some(freed) = &free.freed {
        to.uint("freed", freed.bytes);
        if freed.allocations != 1 {
            to.uint("freed_allocations", freed.allocations);
        }
    }
    location_fields(free.gpu, free.address, free.site, to);
    if let Some(freed) = &free.freed {
        kind_field(freed.kind, to);
    }
}

/// GPU, address and call site of memory.
fn location_fields(gpu: Option<u8>, address: Option<u64>, site: Option<SiteId>, to: &mut impl Fields) {
    if let Some(gpu) = gpu {
        to.uint("gpu", gpu.into());
    }
    if let Some(address) = address {
        to.hex("ptr", address);
    }
    if let Some(site) = site {
        to.uint("site", site.0.into());
    }
}

fn kind_field(kind: Space, to: &mut impl Fields) {
    if kind != Space::Unknown {
        to.name("kind", &Name::Borrowed(kind.as_str()));
    }
}

/// Fields of a GPU operation: whether it was captured, and its number of CUDA kernels.
fn gpu_op_fields(captured: bool, kernels: Option<u64>, to: &mut impl Fields) {
    if captured {
        to.flag("captured", true);
    }
    if let Some(kernels) = kernels {
        to.uint("kernels", kernels);
    }
}

fn graph_launch_fields(launch: &GraphLaunch, to: &mut impl Fields) {
    gpu_op_fields(launch.captured, launch.kernels, to);
    if let Some(graph) = launch.graph {
        to.uint("graph", graph);
    }
    for (key, n) in [("disabled", launch.disabled), ("conditional", launch.conditional)] {
        if n > 0 {
            to.uint(key, n);
        }
    }
    if launch.incomplete {
        to.flag("incomplete", true);
    }
}

/// The CUDA kernels of a graph. A trace has them once for each graph, with its first launch.
pub(super) fn graph_fields(contents: &GraphContents, to: &mut impl Fields) {
    to.open_list("graph_kernels");
    for (name, count) in &contents.kernels {
        to.open_item();
        if let Some(name) = name {
            to.text("kernel", name);
        }
        to.uint("count", *count);
        to.close();
    }
    to.close_list();
}

fn launch_fields(launch: &Launch, to: &mut impl Fields) {
    if let Some(kernel) = &launch.kernel {
        to.text("kernel", kernel);
    }
    for (name, dim3) in [("grid", launch.grid), ("block", launch.block)] {
        if let Some(dim3) = dim3 {
            to.uints(name, &dim3.map(u64::from));
        }
    }
    if launch.shared != 0 {
        to.uint("shared", launch.shared);
    }
}

/// The number of allocations and the bytes by kind.
fn memory_fields(key: &'static str, memory: &[MemoryAmount], to: &mut impl Fields) {
    if memory.is_empty() {
        return;
    }
    to.open(key);
    for MemoryAmount { kind, allocations, bytes } in memory {
        to.uints(kind.as_str(), &[*allocations, *bytes]);
    }
    to.close();
}

fn transfer_fields(transfer: &Transfer, to: &mut impl Fields) {
    if let Some(size) = transfer.bytes {
        to.uint("size", size);
    }
    copy_fields(transfer.direction, transfer.host, to);
    to.flag("async", transfer.is_async);
    if !transfer.parts.is_empty() {
        to.open_list("parts");
        for CopyPart { direction, host, copies, bytes } in &transfer.parts {
            to.open_item();
            to.uint("copies", *copies);
            to.uint("size", *bytes);
            copy_fields(*direction, *host, to);
            to.close();
        }
        to.close_list();
    }
    gpu_op_fields(transfer.captured, None, to);
    if transfer.without_driver {
        to.flag("without_driver", true);
    }
    if let Some(bytes) = transfer.copied {
        to.uint("copied", bytes);
    }
}

/// The direction of copies, and the host memory. A memset is recognized by its function name.
fn copy_fields(direction: CopyDirection, host: HostMemory, to: &mut impl Fields) {
    if direction.is_known() {
        to.name("kind", &Name::Borrowed(direction.as_str()));
    }
    if host.is_known() {
        to.name("host", &Name::Borrowed(host.as_str()));
    }
}

/// The fields of a process event.
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
    if let Some(rank) = &process.rank {
        to.uint("rank", rank.number.into());
        to.text("rank_variable", &rank.variable);
    }
    memory_fields("live", &process.live, to);
}

/// The fields of an XID. Its meaning is only for people; readers look it up by the number.
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

/// The fields of an out-of-memory error.
pub fn out_of_memory_fields(event: &OutOfMemoryEvent, to: &mut impl Fields) {
    if let Some(gpu) = event.gpu {
        to.uint("gpu", gpu.into());
    }
    to.uint("requested", event.requested_bytes);
    to.uint("allocated", event.in_use_bytes);
    to.uint("reserved", event.reserved_bytes);
    if let Some(free) = event.free_bytes {
        to.uint("free", free);
    }
    if !event.call_site.is_empty() {
        to.text("call_site", &event.call_site);
    }
    if !event.largest.is_empty() {
        to.open_list("largest");
        for site in &event.largest {
            to.open_item();
            to.text("call_site", &site.call_site);
            to.uint("tensors", site.tensors);
            to.uint("bytes", site.bytes);
            to.close();
        }
        to.close_list();
    }
    if !event.others.is_empty() {
        to.open_list("others");
        for other in &event.others {
            to.open_item();
            to.uint("pid", other.tgid.0.into());
            to.text("process", &other.process);
            to.uint("bytes", other.bytes);
            to.close();
        }
        to.close_list();
    }
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
