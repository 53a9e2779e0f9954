//! Bytes of the ring buffers to events. Pure: the bytes go in, events come out, and nonsense is counted.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;

use gpuprobe_discover::container_named;
use gpuprobe_event::catalogue::{Pointee, ResultKind};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::decode::{
    LIST_ENTRY, MAX_OUTS, MAX_POINTEE, Words, arguments, effect, error_name, launch_list, launched, status,
    stream, told_error,
};
use gpuprobe_event::driver::Version;
use gpuprobe_event::{
    Api, Call, Effect, Event, Evidence, Frame, Function, FunctionId, Outcome, ProcessChange, ProcessEvent,
    SiteId, Tgid, Tid, XidEvent, XidProcess, catalogue,
};

use crate::host::clock::Clock;
use crate::host::kmod_version::loaded_version;
use crate::ring::batch::Hold;
use crate::ring::call_effects::{annotate_op, apply_effect, apply_failed_effect};
use crate::ring::cuda_kernel_names::{HandleInfo, KernelNames};
use crate::ring::device_calls::annotate_device_call;
use crate::ring::records::Records;
use crate::ring::xid_message::format_message;
use crate::stacks::call_sites::CallSites;
use crate::stacks::raw_stack::{RawStack, WaitingStacks};
use crate::stacks::resolver::Resolve;
use crate::wire::device_rows::call_of;
use crate::wire::{
    LibraryNumber, from_bytes, gp_call, gp_name_record, gp_process_record, gp_stack_record, gp_xid_record,
    number,
};

/// What one record of the control ring says.
#[derive(Debug)]
pub(crate) enum Control {
    Process(ProcessKey, ProcessEvent),
    /// The first call of a process whose fork or exec was told before: no event, but its counters begin.
    FirstCall(ProcessKey, ProcessEvent),
    /// A process waits for its probes.
    Hold(Hold),
    /// An error of a GPU.
    Xid(XidEvent),
    /// A record that makes no sense.
    Undecodable,
}

/// Knows the names of processes and kernels, so that every call can bear them.
#[derive(Debug)]
pub(crate) struct Decoder {
    clock: Clock,
    names: HashMap<ProcessKey, Arc<str>>,
    unnamed: Arc<str>,
    kernels: KernelNames,
    /// Which attached files are drivers.
    drivers: HashMap<LibraryNumber, bool>,
    /// Handles whose names were looked for in vain, and whether it was known then where they are.
    nameless: HashSet<(ProcessKey, u64, bool)>,
    resolve: Box<dyn Resolve>,
    stacks: WaitingStacks,
    pub(crate) sites: CallSites,
    /// Of the NVIDIA driver, whose commands it names.
    pub(crate) version: Version,
    /// Whether processes are told of from their fork or exec on, and not only when they make a call.
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
            drivers: HashMap::new(),
            nameless: HashSet::new(),
            resolve,
            stacks: WaitingStacks::default(),
            sites,
            version: loaded_version(),
            follows_processes,
            undecodable: 0,
            follows_copies: false,
        }
    }

    /// A process whose calls will come.
    pub(crate) fn observe(&mut self, tgid: Tgid) {
        self.resolve.observe(tgid);
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&mut self, key: ProcessKey) {
        self.names.remove(&key);
        self.kernels.forget(key);
        self.nameless.retain(|(process, ..)| *process != key);
        self.sites.end(key, self.resolve.as_mut());
        self.resolve.forget(key.tgid);
    }

    /// A file that calls will come from, and where its handles are known to have their names.
    pub(crate) fn add_library(&mut self, number: LibraryNumber, api: Api, name_word: Option<u16>) {
        self.drivers.insert(number, api == Api::Driver);
        let drivers: Vec<_> = self.drivers.iter().filter(|(_, is)| **is).map(|(number, _)| *number).collect();
        self.kernels.set_drivers(&drivers);
        if let Some(word) = name_word.filter(|_| api == Api::Driver) {
            self.kernels.trust(number, word);
        }
    }

    /// The word of handles where names are looked for.
    pub(crate) fn name_word(&self) -> u16 {
        self.kernels.word()
    }

    /// The records of the ring of calls.
    pub(crate) fn calls(&mut self, records: &Records) -> Vec<Event> {
        let mut calls = Vec::with_capacity(records.len());
        for record in records.iter() {
            calls.extend(self.call(record));
        }
        calls
    }

    /// One record of the ring of calls. Some of them only tell of something that calls will need.
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
            _ => {}
        }
        let function = catalogue().get(FunctionId(raw.function));
        let whole = raw.kind == number::RECORD_CALL && bytes.len() >= offset_of!(gp_call, out);
        let Some(function) = function.filter(|_| whole) else {
            self.undecodable += 1;
            return None;
        };
        let mut call = self.build(function, &raw);
        if let Some(stack) = self.stacks.take(raw.id) {
            let found = self.resolve.unwind(call.tgid, &stack);
            let frames = self.resolve.frames(call.tgid, &found.addresses);
            call.stack = Some(frames.iter().map(ToString::to_string).collect());
        }
        Some(Event::Call(call))
    }

    /// The stack of an allocation that came by a way that is not known.
    fn site(&mut self, bytes: &[u8]) {
        let raw: gp_stack_record = from_bytes(bytes);
        let Some(stack) = RawStack::from_record(bytes) else {
            self.undecodable += 1;
            return;
        };
        let process = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        if !self.sites.recognise(process, &stack) {
            let found = self.resolve.unwind(process.tgid, &stack);
            self.sites.learn(process, &stack, &found);
        }
    }

    /// The way to a site, innermost first.
    pub(crate) fn frames_of(&mut self, site: SiteId) -> Arc<[Frame]> {
        self.sites.frames(site, self.resolve.as_mut())
    }

    /// Says where memory was allocated. The first allocation of a site has its stack.
    fn set_site(&mut self, call: &mut Call, raw: &gp_call) {
        // most calls have none, and are spared the look
        if raw.site == SiteId::UNKNOWN.0 {
            return;
        }
        let (slot, allocates) = match &mut call.effect {
            Effect::Alloc(allocation) => (&mut allocation.site, true),
            Effect::Free(free) if free.freed.is_some() => (&mut free.site, false),
            _ => return,
        };
        let site = self.sites.site(raw.site);
        if site == SiteId::UNKNOWN {
            return;
        }
        *slot = Some(site);
        if allocates && call.stack.is_none() && self.sites.is_first(site) {
            call.stack = Some(self.frames_of(site).iter().map(ToString::to_string).collect());
        }
    }

    /// A call that is open, as its thread has it. Those that are probed only for what they say of others are nobody's concern.
    pub(crate) fn open_call(&mut self, bytes: &[u8]) -> Option<Call> {
        let raw: gp_call = from_bytes(bytes);
        if raw.is_told == 0 {
            return None;
        }
        let function = catalogue().get(FunctionId(raw.function))?;
        let open = gp_call { flags: raw.flags | number::CALL_UNFINISHED, ..raw };
        Some(*self.build(function, &open))
    }

    /// A record that tells what a kernel is called.
    fn name(&mut self, bytes: &[u8]) {
        let raw: gp_name_record = from_bytes(bytes);
        let key = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        let text = bytes.get(size_of::<gp_name_record>()..).unwrap_or_default();
        // its length counts the zero at its end
        let text = text.get(..(raw.length as usize).saturating_sub(1)).unwrap_or_default();
        let mut text = String::from_utf8_lossy(text);
        if text.is_empty() && raw.how != number::NAME_ALIAS {
            let word = raw.handle.wrapping_add(8 * u64::from(raw.word));
            let candidate = raw.how == number::NAME_CANDIDATE;
            let address = if raw.address == 0 && candidate {
                self.resolve.word(key.tgid, word)
            } else {
                Some(raw.address)
            };
            text = address.and_then(|at| self.resolve.text(key.tgid, at)).unwrap_or_default().into();
        }
        let info = match raw.how {
            number::NAME_TOLD => HandleInfo::Name { text: &text, matches: raw.matches },
            number::NAME_ALIAS => HandleInfo::AliasOf(raw.other),
            number::NAME_CANDIDATE => HandleInfo::Candidate { text: &text, word: raw.word, outer: raw.other },
            _ => {
                self.undecodable += 1;
                return;
            }
        };
        let driver = Some(raw.library).filter(|number| self.drivers.get(number) == Some(&true));
        self.kernels.learn(key, driver, raw.handle, info);
    }

    /// What a launch launches. Where nobody told, the program's own symbols may: the function is then its host's.
    pub(crate) fn kernel(&mut self, key: ProcessKey, api: Api, handle: u64) -> Option<Arc<str>> {
        if let Some(name) = self.kernels.name(key, handle) {
            return Some(Arc::clone(name));
        }
        let unread = self.kernels.unread_word(key, handle);
        if !self.nameless.insert((key, handle, unread.is_some())) {
            return None;
        }
        if let Some((driver, word)) = unread
            && let Some(at) = self.resolve.word(key.tgid, handle.wrapping_add(8 * u64::from(word)))
            && let Some(text) = self.resolve.text(key.tgid, at)
        {
            let info = HandleInfo::Candidate { text: &text, word, outer: 0 };
            self.kernels.learn(key, Some(driver), handle, info);
        }
        if api == Api::Runtime
            && self.kernels.name(key, handle).is_none()
            && let Some(name) = self.resolve.symbol(key.tgid, handle)
        {
            self.kernels.found(key, handle, &name);
        }
        self.kernels.name(key, handle).map(Arc::clone)
    }

    fn build(&mut self, function: &'static Function, raw: &gp_call) -> Box<Call> {
        let key = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        let process = Arc::clone(self.names.get(&key).unwrap_or(&self.unnamed));
        let has = |flag: u16| raw.flags & flag != 0;
        let finished = !has(number::CALL_UNFINISHED | number::CALL_BEGUN);
        let words = words_of(function, raw, finished);
        let result = result_of(function, raw);
        let status = if finished { status(function, result) } else { None };
        let out_error = if finished { told_error(function, raw.result, &words) } else { None };
        let mut call = Box::new(Call {
            id: raw.id,
            parent: (raw.parent != 0).then_some(raw.parent),
            depth: raw.depth,
            nested: has(number::CALL_NESTED_ACTION | number::CALL_NESTED_WORK),
            start_ns: self.clock.since_start(raw.start_ns),
            outcome: outcome(function, raw, result),
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
            launch.kernel = self.kernel(key, function.api, handle);
        }
        if finished {
            annotate_op(&mut call, raw, self.follows_copies);
            apply_effect(&mut call, raw);
            self.set_site(&mut call, raw);
        } else {
            apply_failed_effect(&mut call, raw);
            self.set_site(&mut call, raw);
        }
        call
    }

    /// An error of a GPU. Whoever is watched may have to do with it; others may find out who does.
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
            message: info(raw),
            processes,
        }
    }

    /// One record of the control ring.
    pub(crate) fn control(&mut self, bytes: &[u8]) -> Control {
        let raw: gp_process_record = from_bytes(bytes);
        let change = match (raw.kind, raw.change) {
            (number::RECORD_XID, _) => return Control::Xid(self.xid(&from_bytes(bytes))),
            (number::RECORD_HOLD, flags) => {
                let has = |flag: u16| flags & flag != 0;
                return Control::Hold(Hold {
                    tgid: Tgid(raw.tgid),
                    stopped: has(number::HELD_STOPPED),
                    may_attach: has(number::HELD_STOPPED | number::HELD_POLITELY),
                    at_exec: has(number::HELD_AT_EXEC),
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
        // the program that an exec began may make no call; where it does, its first one tells of it
        if self.follows_processes || change != ProcessChange::Exec {
            self.names.insert(key, Arc::clone(&process));
        }
        // also the first call of a program that an exec began
        if change == ProcessChange::Start {
            self.resolve.observe(key.tgid);
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
            held: Vec::new(),
        };
        // seen at its fork or exec; its first call tells again, for those that were there before
        if change == ProcessChange::Start && known {
            return Control::FirstCall(key, event);
        }
        Control::Process(key, event)
    }
}

/// What was saved of a call; what it left behind is there once it has returned.
fn words_of<'a>(function: &Function, raw: &'a gp_call, finished: bool) -> Words<'a> {
    let has = |flag: u16| raw.flags & flag != 0;
    let pointee_bytes = match function.pointee {
        Some((_, Pointee::Struct(layout))) => usize::from(layout.bytes),
        Some((_, Pointee::Text)) => MAX_POINTEE,
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

/// What a function returned. One of the kernel that returns nothing leaves what it likes in the register.
fn result_of(function: &Function, raw: &gp_call) -> u64 {
    let is_nothing = function.api == Api::Kernel && function.result == ResultKind::Void;
    if is_nothing { 0 } else { raw.result }
}

fn outcome(function: &Function, raw: &gp_call, value: u64) -> Outcome {
    if function.result == ResultKind::Moment {
        Outcome::Instant
    } else if raw.flags & number::CALL_UNOBSERVED != 0 {
        Outcome::Unobserved
    } else if raw.flags & number::CALL_BEGUN != 0 {
        Outcome::Begun
    } else if raw.flags & number::CALL_UNFINISHED != 0 {
        Outcome::Unfinished
    } else {
        Outcome::Returned { value, duration_ns: raw.duration_ns }
    }
}

/// The container that the innermost cgroups name. A name that fills its room may have been cut.
fn container_of<const N: usize>(cgroups: [[i8; N]; 2]) -> Option<Arc<str>> {
    let mut names =
        cgroups.into_iter().map(|name| text(&name.map(i8_to_u8))).filter(|name| name.len() + 1 < N);
    names.find_map(|name| container_named(&name).map(Arc::from))
}

/// What `wait` reports, as a shell shows it: the exit code, or 128 plus the signal.
fn exit_status(code: i32) -> i32 {
    let signal = code & 0x7f;
    if signal == 0 { (code >> 8) & 0xff } else { 128 + signal }
}

fn i8_to_u8(byte: i8) -> u8 {
    byte as u8
}

/// What the driver says of an error.
fn info(raw: &gp_xid_record) -> Arc<str> {
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
