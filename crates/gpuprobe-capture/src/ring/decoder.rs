//! Decodes records of the BPF ring buffers to events. Pure: bytes go in, events come out, and invalid records are
//! counted.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;

use gpuprobe_discover::{ProcessMaps, StackEnd, container_named};
use gpuprobe_event::catalogue::{KernelHandles, Pointee, ResultKind};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::decode::{
    LIST_ENTRY, MAX_OUTS, MAX_POINTEE, SIZES, UNIQUE_ID, Words, arguments, effect, error_name, launch_list,
    launched, output_error, status, stream,
};
use gpuprobe_event::driver::Version;
use gpuprobe_event::{
    Api, Call, Effect, Event, Evidence, Frame, Function, FunctionId, Outcome, ProcessChange, ProcessEvent,
    SiteId, Tgid, Tid, XidEvent, XidProcess, catalogue,
};

use crate::host::clock::Clock;
use crate::host::kmod_version::loaded_version;
use crate::ring::batch::PausedProcess;
use crate::ring::call_effects::{annotate_op, apply_effect, apply_failed_effect};
use crate::ring::cuda_kernel_names::KernelNames;
use crate::ring::device_calls::annotate_device_call;
use crate::ring::graph_contents::Graphs;
use crate::ring::records::Records;
use crate::ring::xid_message::format_message;
use crate::stacks::call_sites::CallSites;
use crate::stacks::python_stacks::{PythonChanges, PythonStack, shown_frames};
use crate::stacks::raw_stack::{RawStack, WaitingStacks};
use crate::stacks::resolver::{Program, Resolve};
use crate::wire::device_rows::call_of;
use crate::wire::{
    LibraryNumber, UNOBSERVED_AND_BEGUN, from_bytes, gp_call, gp_graph_record, gp_process_record,
    gp_stack_record, gp_xid_record, is_end_assumed, number,
};

mod graph_launches;
mod kernels;
mod out_of_memory;

/// A record of the control ring.
#[derive(Debug)]
pub(crate) enum Control {
    Process(ProcessKey, ProcessEvent),
    /// The first call of a process whose fork or exec was seen before: no event, but its counters start.
    FirstCall(ProcessKey, ProcessEvent),
    /// A process is paused until its probes are attached.
    PausedProcess(PausedProcess),
    /// A GPU error.
    Xid(XidEvent),
    /// An invalid record.
    Undecodable,
}

/// Decodes records. It knows the names of processes and CUDA kernels, which every call has.
#[derive(Debug)]
pub(crate) struct Decoder {
    clock: Clock,
    names: HashMap<ProcessKey, Arc<str>>,
    unnamed: Arc<str>,
    kernels: KernelNames,
    pub(crate) graphs: Graphs,
    /// Whether each attached file is a CUDA driver.
    drivers: HashMap<LibraryNumber, bool>,
    /// Handles whose names were not found, and whether the word with the name was known then.
    without_name: HashSet<(ProcessKey, u64, bool)>,
    resolve: Box<dyn Resolve>,
    stacks: WaitingStacks,
    pub(crate) sites: CallSites,
    /// The version of the NVIDIA kernel module, which names its commands.
    pub(crate) version: Version,
    /// Whether processes are reported from their fork or exec on, and not only from their first call.
    follows_processes: bool,
    pub(crate) undecodable: u64,
    /// Whether the copies of the CUDA driver are probed.
    pub(crate) follows_copies: bool,
}

impl Decoder {
    pub(crate) fn new(
        clock: Clock,
        follows_processes: bool,
        sites: CallSites,
        resolve: Box<dyn Resolve>,
    ) -> Self {
        Self {
            clock,
            names: HashMap::new(),
            unnamed: Arc::from("?"),
            kernels: KernelNames::default(),
            graphs: Graphs::default(),
            drivers: HashMap::new(),
            without_name: HashSet::new(),
            resolve,
            stacks: WaitingStacks::default(),
            sites,
            version: loaded_version(),
            follows_processes,
            undecodable: 0,
            follows_copies: false,
        }
    }

    /// Reads the mappings of a process whose calls will come.
    pub(crate) fn observe(&mut self, tgid: Tgid) {
        self.resolve.observe(tgid, Program::Same);
    }

    /// The same, with mappings that were read already.
    pub(crate) fn observe_maps(&mut self, tgid: Tgid, maps: &ProcessMaps) {
        self.resolve.observe_maps(tgid, maps);
    }

    /// Which interpreters of Python were found, and which cannot be used.
    pub(crate) fn take_python_changes(&mut self) -> PythonChanges {
        self.resolve.take_python_changes()
    }

    /// Python frames that could not be read.
    pub(crate) fn unread_python(&self) -> u64 {
        self.resolve.unread_python()
    }

    /// Forgets an exited process.
    pub(crate) fn forget(&mut self, key: ProcessKey) {
        self.names.remove(&key);
        self.kernels.forget(key);
        self.graphs.forget(key);
        self.without_name.retain(|(process, ..)| *process != key);
        self.sites.end(key, self.resolve.as_mut());
        self.resolve.forget(key.tgid);
    }

    /// Adds a file that calls will come from, and the word in which its handles have their names, if it is known.
    pub(crate) fn add_library(&mut self, number: LibraryNumber, api: Api, name_word: Option<u16>) {
        let has_names = api.row().kernels == KernelHandles::Objects;
        self.drivers.insert(number, has_names);
        let drivers: Vec<_> = self.drivers.iter().filter(|(_, is)| **is).map(|(number, _)| *number).collect();
        self.kernels.set_drivers(&drivers);
        if let Some(word) = name_word.filter(|_| has_names) {
            self.kernels.trust(number, word);
        }
    }

    /// The word of handles where names are looked for.
    pub(crate) fn name_word(&self) -> u16 {
        self.kernels.word()
    }

    /// Decodes records of the ring of calls.
    pub(crate) fn calls(&mut self, records: &Records) -> Vec<Event> {
        let mut calls = Vec::with_capacity(records.len());
        for record in records.iter() {
            calls.extend(self.call(record));
        }
        calls
    }

    /// Decodes one record of the ring of calls. Some are not events, but data for later calls.
    pub(crate) fn call(&mut self, bytes: &[u8]) -> Option<Event> {
        let raw: gp_call = from_bytes(bytes);
        match raw.kind {
            number::RECORD_NAME => {
                self.name(bytes);
                return None;
            }
            number::RECORD_STACK => {
                self.stacks.add(RawStack::from_record(bytes));
                return None;
            }
            number::RECORD_SITE => {
                self.site(bytes);
                return None;
            }
            number::RECORD_OUT_OF_MEMORY => {
                return Some(Event::OutOfMemory(Box::new(self.out_of_memory(&from_bytes(bytes)))));
            }
            number::RECORD_GRAPH => {
                let is_known = self.graphs.apply(&from_bytes::<gp_graph_record>(bytes));
                self.undecodable += u64::from(!is_known);
                return None;
            }
            _ => {}
        }
        let function = catalogue().get(FunctionId(u32::from(raw.function)));
        let whole = raw.kind == number::RECORD_CALL && bytes.len() >= offset_of!(gp_call, out);
        let Some(function) = function.filter(|_| whole) else {
            self.undecodable += 1;
            return None;
        };
        let mut call = self.build(function, &raw);
        if let Some(stack) = self.stacks.take(raw.id) {
            let python = self.python(number::RECORD_STACK, &stack);
            let found = self.resolve.unwind(call.tgid, &stack);
            let native = self.resolve.frames(call.tgid, &found.addresses);
            let is_complete = found.end == StackEnd::Complete;
            let frames = shown_frames(native, is_complete, stack.is_autograd(), python.as_ref());
            call.stack = Some(frames.iter().map(ToString::to_string).collect());
        }
        Some(Event::Call(call))
    }

    /// Adds the stack of a call from an unknown call site.
    fn site(&mut self, bytes: &[u8]) {
        let raw: gp_stack_record = from_bytes(bytes);
        let Some(mut stack) = RawStack::from_record(bytes) else {
            self.undecodable += 1;
            return;
        };
        let process = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        let python = self.python(number::RECORD_SITE, &stack);
        if !self.sites.recognise(process, &stack) {
            let found = self.resolve.unwind(process.tgid, &stack);
            stack.restore(&found);
            self.sites.learn(process, &stack, &found, python);
        }
    }

    /// The Python frames that were sent with a stack.
    fn python(&mut self, kind: u16, stack: &RawStack) -> Option<PythonStack> {
        if stack.has_python { self.resolve.take_python(kind, stack.id) } else { None }
    }

    /// The stack of a call site, innermost frame first.
    pub(crate) fn frames_of(&mut self, site: SiteId) -> Arc<[Frame]> {
        self.sites.frames(site, self.resolve.as_mut())
    }

    /// Sets the call site of a call, with its stack. A free has the call site of the allocation.
    fn set_site(&mut self, call: &mut Call, raw: &gp_call) {
        // without --stack, most calls have no site
        if raw.site == SiteId::UNKNOWN.0 {
            return;
        }
        let (slot, is_own) = match &mut call.effect {
            Effect::Alloc(allocation) => (&mut allocation.site, true),
            Effect::Free(free) if free.freed.is_some() => (&mut free.site, false),
            Effect::Free(_) | Effect::ContextEnd(_) => return,
            _ => (&mut call.site, true),
        };
        let site = self.sites.site(raw.site);
        if site == SiteId::UNKNOWN {
            return;
        }
        *slot = Some(site);
        if is_own && call.stack.is_none() {
            call.stack = self.sites.texts(site, self.resolve.as_mut());
        }
    }

    /// Decodes an open call, or a deferred launch, as the state of its thread has it. Calls of state-only probes are not
    /// reported.
    pub(crate) fn open_call(&mut self, raw: &gp_call) -> Option<Call> {
        if raw.reported == 0 {
            return None;
        }
        let function = catalogue().get(FunctionId(u32::from(raw.function)))?;
        let unfinished = if is_end_assumed(raw) { 0 } else { number::CALL_UNFINISHED };
        let open = gp_call { flags: raw.flags | unfinished, ..*raw };
        Some(*self.build(function, &open))
    }

    fn build(&mut self, function: &'static Function, raw: &gp_call) -> Box<Call> {
        let key = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        let process = Arc::clone(self.names.get(&key).unwrap_or(&self.unnamed));
        let has = |flag: u16| raw.flags & flag != 0;
        let finished = !has(number::CALL_UNFINISHED | number::CALL_BEGUN);
        let words = words_of(function, raw, finished);
        let result = result_of(function, raw);
        let status = if finished { status(function, result) } else { None };
        let out_error = if finished { output_error(function, raw.result, &words) } else { None };
        let mut call = Box::new(Call {
            id: raw.id,
            parent: (raw.parent != 0).then_some(raw.parent),
            depth: raw.depth,
            nested: has(number::CALL_NESTED_ACTION | number::CALL_NESTED_OP),
            weight: raw.weight.max(1),
            start_ns: self.clock.since_start(raw.start_ns),
            outcome: outcome(function, raw, result),
            return_probed: !is_end_assumed(raw),
            tgid: Tgid(raw.tgid),
            tid: Tid(raw.tid),
            process,
            api: function.api,
            name: Cow::Borrowed(function.name),
            class: function.class,
            status,
            error: status.and_then(|s| error_name(function, s)).or(out_error),
            args: arguments(function, &words),
            stream: stream(function, &words),
            effect: effect(function, &words),
            driver: None,
            site: None,
            stack: None,
        });
        if let Some(which) = call_of(function.id) {
            annotate_device_call(&mut call, which, raw, self.version);
            return call;
        }
        if function.api == Api::Kernel {
            return call;
        }
        if let Effect::Launch(launch) = &mut call.effect
            && let Some(handle) = launched(function, &words)
        {
            launch.kernel = self.kernel(key, handle);
        }
        if finished {
            annotate_op(&mut call, raw, self.follows_copies);
            self.set_graph_contents(&mut call, key);
            apply_effect(&mut call, raw);
            self.set_site(&mut call, raw);
        } else {
            apply_failed_effect(&mut call, raw);
            self.set_site(&mut call, raw);
        }
        call
    }

    /// A GPU error. Any watched process may have caused it; later stages may find out which one did.
    fn xid(&self, raw: &gp_xid_record) -> XidEvent {
        let watched = |(key, process): (&ProcessKey, &Arc<str>)| XidProcess {
            tgid: key.tgid,
            process: Arc::clone(process),
            evidence: Evidence::Watched,
        };
        let mut processes: Vec<_> = self.names.iter().map(watched).collect();
        processes.sort_unstable_by_key(|process| process.tgid);
        XidEvent {
            id: raw.id,
            at_ns: self.clock.since_start(raw.at_ns),
            number: raw.number,
            gpu: text(&raw.gpu.map(i8_to_u8)),
            message: xid_text(raw),
            processes,
        }
    }

    /// Decodes one record of the control ring.
    pub(crate) fn control(&mut self, bytes: &[u8]) -> Control {
        let raw: gp_process_record = from_bytes(bytes);
        let change = match (raw.kind, raw.change) {
            (number::RECORD_XID, _) => return Control::Xid(self.xid(&from_bytes(bytes))),
            (number::RECORD_PAUSE, flags) => {
                let has = |flag: u16| flags & flag != 0;
                return Control::PausedProcess(PausedProcess {
                    tgid: Tgid(raw.tgid),
                    stopped: has(number::PAUSE_STOPPED),
                    may_attach: has(number::PAUSE_STOPPED | number::PAUSE_SLEEPING),
                    at_exec: has(number::PAUSE_AT_EXEC),
                    ticket: raw.id as u32,
                });
            }
            (number::RECORD_PROCESS, number::PROCESS_START) => ProcessChange::Start,
            (number::RECORD_PROCESS, number::PROCESS_EXEC) => ProcessChange::Exec,
            (number::RECORD_PROCESS, number::PROCESS_EXIT) => ProcessChange::Exit,
            _ => {
                self.undecodable += 1;
                return Control::Undecodable;
            }
        };
        let key = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        let known = self.names.contains_key(&key);
        let process = match self.names.get(&key) {
            Some(name) => Arc::clone(name),
            None => text(&raw.comm.map(i8_to_u8)),
        };
        // after an exec the program may make no call; if it does, its first call reports it
        if self.follows_processes || change != ProcessChange::Exec {
            self.names.insert(key, Arc::clone(&process));
        }
        match change {
            // also after an exec
            ProcessChange::Start => self.resolve.observe(key.tgid, Program::MaybeNew),
            ProcessChange::Exec => self.resolve.forget_python(key.tgid),
            ProcessChange::Exit => {}
        }
        let event = ProcessEvent {
            id: raw.id,
            at_ns: self.clock.since_start(raw.at_ns),
            change,
            tgid: Tgid(raw.tgid),
            tid: Tid(raw.tid),
            process,
            parent: (raw.parent != 0).then_some(Tgid(raw.parent)),
            ns_pid: (raw.ns_tgid != 0 && raw.ns_tgid != raw.tgid).then_some(Tgid(raw.ns_tgid)),
            container: container_of([raw.cgroup, raw.outer_cgroup]),
            exit_status: (change == ProcessChange::Exit).then(|| exit_status(raw.exit_code)),
            rank: None,
            live: Vec::new(),
        };
        // known from its fork or exec; its first call is reported again, for processes that existed before
        if change == ProcessChange::Start && known {
            return Control::FirstCall(key, event);
        }
        Control::Process(key, event)
    }
}

/// The saved words of a call; its outputs are valid once it has returned.
fn words_of<'a>(function: &Function, raw: &'a gp_call, finished: bool) -> Words<'a> {
    let has = |flag: u16| raw.flags & flag != 0;
    let pointee_bytes = match function.pointee {
        Some((_, Pointee::Struct(layout))) => usize::from(layout.bytes),
        Some((_, Pointee::Text)) => MAX_POINTEE,
        Some((_, Pointee::UniqueId)) => UNIQUE_ID,
        Some((_, Pointee::Sizes)) => SIZES,
        None if launch_list(function).is_some() => LIST_ENTRY,
        None => 0,
    };
    let mut outs = [None; MAX_OUTS];
    for (i, out) in outs.iter_mut().enumerate() {
        *out = (finished && !has(number::CALL_UNREAD_OUT << i)).then_some(raw.out[i]);
    }
    Words {
        registers: &raw.registers,
        stack: if has(number::CALL_UNREAD_STACK) { &[] } else { raw.stack.words() },
        outs,
        pointee: if has(number::CALL_UNREAD_POINTEE) { &[] } else { &raw.pointee.bytes()[..pointee_bytes] },
        is_text_cut: has(number::CALL_CUT_TEXT),
    }
}

/// The result of a function. A Linux function that returns nothing leaves any value in the register.
fn result_of(function: &Function, raw: &gp_call) -> u64 {
    let is_nothing = function.api == Api::Kernel && function.result == ResultKind::Void;
    if is_nothing { 0 } else { raw.result }
}

fn outcome(function: &Function, raw: &gp_call, value: u64) -> Outcome {
    if function.result == ResultKind::Moment {
        Outcome::Instant
    } else if raw.flags & UNOBSERVED_AND_BEGUN == UNOBSERVED_AND_BEGUN {
        Outcome::Unobserved
    } else if raw.flags & number::CALL_BEGUN != 0 {
        Outcome::Begun
    } else if raw.flags & number::CALL_UNFINISHED != 0 {
        Outcome::Unfinished
    } else {
        Outcome::Returned { value, duration_ns: raw.duration_ns }
    }
}

/// The container that the innermost cgroups name. A name that fills its buffer may have been cut, and is ignored.
fn container_of<const N: usize>(cgroups: [[i8; N]; 2]) -> Option<Arc<str>> {
    let mut names =
        cgroups.into_iter().map(|name| text(&name.map(i8_to_u8))).filter(|name| name.len() + 1 < N);
    names.find_map(|name| container_named(&name).map(Arc::from))
}

/// An exit status as a shell shows it: the exit code, or 128 plus the signal.
fn exit_status(code: i32) -> i32 {
    let signal = code & 0x7f;
    if signal == 0 { (code >> 8) & 0xff } else { 128 + signal }
}

fn i8_to_u8(byte: i8) -> u8 {
    byte as u8
}

/// The message of a GPU error.
fn xid_text(raw: &gp_xid_record) -> Arc<str> {
    let message = text(&raw.message.map(i8_to_u8));
    if raw.is_format == 0 {
        return message;
    }
    let (texts, length) = (raw.texts.map(i8_to_u8), raw.texts.len() / raw.words.len());
    let text_of = |index: usize| texts.chunks(length).nth(index).map(text).unwrap_or_default().to_string();
    format_message(&message, &raw.words, text_of).into()
}

fn text(bytes: &[u8]) -> Arc<str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    Arc::from(String::from_utf8_lossy(&bytes[..end]))
}

#[cfg(test)]
mod tests;
