//! For the benchmark only: records as the BPF programs send them, and a reader that decodes them.

use gpuprobe_discover::{Stack, StackEnd};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::decode::MAX_STACK_WORDS;
use gpuprobe_event::{Api, Function, Space, Tgid};

use crate::function_table::function_row::row;
use crate::host::clock::Clock;
use crate::load::collect::{Collect, CountedOps};
use crate::ring::batch::Batch;
use crate::ring::decoder::Decoder;
use crate::ring::records::Records;
use crate::ring::ring_reader::MAX_BATCH_CALLS;
use crate::stacks::call_sites::CallSites;
use crate::stacks::raw_stack::RawStack;
use crate::stacks::resolver::FileResolver;
use crate::wire::{as_bytes, gp_call, gp_name_record, gp_process_record, gp_stack_words, number};

/// The most calls that one batch takes out of the ring.
pub const CALLS_AT_ONCE: usize = MAX_BATCH_CALLS;

/// The call site of all allocations.
const SITE: u32 = 1;
/// The library number of the CUDA driver.
const DRIVER: u16 = 1;

/// A call that returned 0.
#[derive(Clone, Copy, Debug)]
pub struct BenchCall {
    pub function: &'static Function,
    pub id: u64,
    /// 0 for none.
    pub parent: u64,
    pub start_ns: u64,
    pub duration_ns: u64,
    pub registers: [u64; 6],
    pub stack: [u64; MAX_STACK_WORDS],
    /// Address and bytes that an outermost call allocated, freed or moved.
    pub memory: Option<(u64, u64)>,
}

/// The ring of calls of one process, and its reader.
#[derive(Debug)]
pub struct Ring {
    tid: u32,
    process: ProcessKey,
    epoch_ns: u64,
    ring: Records,
    pending: Records,
    decoder: Decoder,
}

impl Ring {
    /// The ring of this process, under the given name.
    pub fn of(comm: &str) -> Self {
        let clock = Clock::start();
        let tgid = std::process::id();
        let process = ProcessKey { tgid: Tgid(tgid), instance: 1 };
        let mut decoder =
            Decoder::new(clock, true, CallSites::new(1000), Box::new(FileResolver::new(false, false, None)));
        decoder.add_library(DRIVER, Api::Driver, None);
        let mut start = gp_process_record {
            kind: number::RECORD_PROCESS,
            change: number::PROCESS_START,
            tgid,
            instance: process.instance,
            ..gp_process_record::default()
        };
        start.comm.iter_mut().zip(comm.bytes()).for_each(|(to, from)| *to = from.cast_signed());
        decoder.control(as_bytes(&start));
        let raw = RawStack {
            id: SITE.into(),
            ip: 1,
            sp: 0,
            fp: 0,
            lr: 0,
            python: 0,
            has_python: false,
            bytes: Vec::new(),
            replaced: Vec::new(),
        };
        let stack = Stack { addresses: vec![raw.ip], slots: vec![None], end: StackEnd::Complete };
        decoder.sites.learn(process, &raw, &stack, None);
        let (ring, pending) = (Records::default(), Records::default());
        Self { tid: tgid, process, epoch_ns: clock.epoch_ns(), ring, pending, decoder }
    }

    /// Registers a CUDA kernel.
    pub fn name_kernel(&mut self, handle: u64, name: &str) {
        let raw = gp_name_record {
            kind: number::RECORD_NAME,
            how: number::NAME_KNOWN,
            tgid: self.process.tgid.0,
            instance: self.process.instance,
            library: DRIVER,
            handle,
            length: name.len() as u32 + 1,
            ..gp_name_record::default()
        };
        let mut record = as_bytes(&raw).to_vec();
        record.extend_from_slice(name.as_bytes());
        record.push(0);
        self.ring.push(&record);
    }

    /// Sends a call, cut to the length that the BPF programs send.
    pub fn send(&mut self, call: &BenchCall) {
        let (pointer, bytes) = call.memory.unwrap_or_default();
        let mut raw = gp_call {
            kind: number::RECORD_CALL,
            flags: if call.memory.is_some() { 0 } else { number::CALL_NESTED_ACTION },
            effect: if call.memory.is_some() { number::EFFECT_FREE } else { number::EFFECT_NONE },
            function: u16::try_from(call.function.id.0).unwrap_or(u16::MAX),
            weight: 1,
            id: call.id,
            parent: call.parent,
            depth: u8::from(call.parent != 0),
            start_ns: self.epoch_ns + call.start_ns,
            duration_ns: call.duration_ns,
            instance: self.process.instance,
            tgid: self.process.tgid.0,
            tid: self.tid,
            pointer,
            bytes,
            space: call.function.roles.space.unwrap_or(Space::Device) as u8,
            site: SITE,
            library: DRIVER,
            stack: gp_stack_words { words: call.stack },
            ..gp_call::default()
        };
        raw.registers.iter_mut().zip(call.registers).for_each(|(to, from)| *to = from);
        let bytes = usize::from(row(call.function, Collect::Stream, CountedOps::default()).record_bytes);
        self.ring.push(&as_bytes(&raw)[..bytes]);
    }

    /// Takes and decodes everything that was sent. The records stay for the next time.
    pub fn take(&mut self) -> Batch {
        self.pending.clear();
        self.ring.iter().for_each(|record| self.pending.push(record));
        Batch { calls: self.decoder.calls(&self.pending), ..Batch::default() }
    }
}
