//! How many calls a second `run` can record on one core: `cargo bench -p gpuprobe-capture --bench ring_to_file`.
//!
//! The ring has frequent calls, as the BPF programs send them. They are taken out, decoded, sorted and written to a file in
//! memory, and then once more with the summary that `run` makes. CPU time of the thread is measured, because other
//! programs may use the machine.

use std::fs::File;
use std::io::{BufWriter, Result};
use std::path::Path;
use std::time::Instant;

use gpuprobe_analysis::Summary;
use gpuprobe_capture::bench::{BenchCall, CALLS_AT_ONCE, Ring};
use gpuprobe_capture::thread_cpu_ns;
use gpuprobe_event::decode::MAX_STACK_WORDS;
use gpuprobe_event::trace::{Meta, Phases, Writer};
use gpuprobe_event::{Api, Function, catalogue};

const ROUNDS: usize = 9;
const CALLS_A_ROUND: usize = 1 << 17;

const KERNEL: &str = "_Z9vectorAddPKfS0_Pfi";
const HOST_FUNCTION: u64 = 0x55d0_0000_1230;
const HANDLE: u64 = 0x55d0_0200_0040;
const HOST_MEMORY: u64 = 0x7ffe_1234_5678;
const DEVICE_MEMORY: u64 = 0x7f3a_0000_0000;
const STREAM: u64 = 0x55d0_0300_0000;
const BYTES: u64 = 4 << 20;

/// A program that repeats the same calls.
struct Program {
    ring: Ring,
    sent: u64,
}

impl Program {
    fn new() -> Self {
        let mut ring = Ring::of("python3");
        ring.name_kernel(HOST_FUNCTION, KERNEL);
        ring.name_kernel(HANDLE, KERNEL);
        Self { ring, sent: 0 }
    }

    fn call(&mut self, api: Api, name: &str, arguments: &[u64], memory: Option<u64>, parent: u64) -> u64 {
        let mut words = arguments.iter().copied();
        let registers = std::array::from_fn(|_| words.next().unwrap_or(0));
        let mut stack = [0; MAX_STACK_WORDS];
        stack.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        let (sent, duration_ns) = (self.sent, 1500 - 700 * parent.min(1));
        self.sent += 1;
        // records of threads on several CPUs are sometimes out of order
        let late_ns = if sent % 64 == 63 { 1500 } else { 0 };
        self.ring.send(&BenchCall {
            function: function(api, name),
            id: sent + 1,
            parent,
            start_ns: 1_000_000 + 1000 * sent - late_ns,
            duration_ns,
            registers,
            stack,
            memory: memory.map(|bytes| (DEVICE_MEMORY, bytes)),
        });
        sent + 1
    }

    fn runtime(&mut self, name: &str, arguments: &[u64], memory: Option<u64>) {
        self.call(Api::Runtime, name, arguments, memory, 0);
    }

    /// A call of the CUDA driver inside the next call of the runtime, which returns after it.
    fn driver(&mut self, name: &str, arguments: &[u64]) {
        self.call(Api::Driver, name, arguments, None, self.sent + 2);
    }

    fn small(&mut self) {
        self.runtime("cudaGetDevice", &[HOST_MEMORY], None);
        self.runtime("cudaGetLastError", &[], None);
        self.runtime("cudaEventQuery", &[STREAM], None);
        self.runtime("cudaSetDevice", &[0], None);
    }

    fn memory(&mut self) {
        self.driver("cuMemAlloc_v2", &[HOST_MEMORY, BYTES]);
        self.runtime("cudaMalloc", &[HOST_MEMORY, BYTES], Some(BYTES));
        self.driver("cuMemFree_v2", &[DEVICE_MEMORY]);
        self.runtime("cudaFree", &[DEVICE_MEMORY], Some(BYTES));
    }

    fn launch(&mut self) {
        let (grid, block) = (256 | 1 << 32, 128 | 1 << 32);
        self.driver("cuLaunchKernel", &[HANDLE, 256, 1, 1, 128, 1, 1, 0, STREAM, HOST_MEMORY, 0]);
        self.runtime("cudaLaunchKernel", &[HOST_FUNCTION, grid, 1, block, 1, HOST_MEMORY, 0, STREAM], None);
    }

    fn copy(&mut self) {
        const HOST_TO_DEVICE: u64 = 1;
        self.driver("cuMemcpyHtoDAsync_v2", &[DEVICE_MEMORY, HOST_MEMORY, BYTES, STREAM]);
        let arguments = [DEVICE_MEMORY, HOST_MEMORY, BYTES, HOST_TO_DEVICE, STREAM];
        self.runtime("cudaMemcpyAsync", &arguments, Some(BYTES));
    }

    fn mix(&mut self) {
        self.small();
        self.launch();
        self.launch();
        self.copy();
        self.memory();
    }
}

fn function(api: Api, name: &str) -> &'static Function {
    catalogue().lookup(api, Some(12), name).unwrap_or_else(|| panic!("no function {name}"))
}

/// CPU time of each step, in nanoseconds per call.
#[derive(Clone, Copy, Default)]
struct Round {
    decode: f64,
    order: f64,
    write: f64,
    /// Wall-clock time of all steps.
    wall: f64,
    /// Bytes per call.
    bytes: f64,
}

impl Round {
    fn total(&self) -> f64 {
        self.decode + self.order + self.write
    }
}

fn round(program: &mut Program, summary: &mut Option<Summary>) -> Result<Round> {
    let folder = Path::new("/dev/shm");
    let file = if folder.is_dir() { tempfile::tempfile_in(folder)? } else { tempfile::tempfile()? };
    let mut round = Round::default();
    let mut writer =
        Writer::new(BufWriter::with_capacity(1 << 18, file), Phases::Together, &Meta::default())?;
    let (began, mut calls) = (Instant::now(), 0);
    while calls < CALLS_A_ROUND {
        let start = thread_cpu_ns();
        let batch = program.ring.take();
        let decoded = thread_cpu_ns();
        calls += batch.calls.len();
        let events = batch.into_events();
        let ordered = thread_cpu_ns();
        for event in events {
            if let Some(summary) = summary {
                summary.feed(&event);
            }
            writer.event(&event)?;
        }
        writer.flush()?;
        round.decode += (decoded - start) as f64;
        round.order += (ordered - decoded) as f64;
        round.write += (thread_cpu_ns() - ordered) as f64;
    }
    round.wall = began.elapsed().as_nanos() as f64;
    let file: File = writer.finish(&gpuprobe_event::trace::End::default())?.into_inner()?;
    round.bytes = file.metadata()?.len() as f64;
    let each = |part: f64| part / calls as f64;
    Ok(Round {
        decode: each(round.decode),
        order: each(round.order),
        write: each(round.write),
        wall: each(round.wall),
        bytes: each(round.bytes),
    })
}

/// The median of each step.
fn median(rounds: &[Round]) -> Round {
    let of = |part: fn(&Round) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(part).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Round {
        decode: of(|r| r.decode),
        order: of(|r| r.order),
        write: of(|r| r.write),
        wall: of(|r| r.wall),
        bytes: of(|r| r.bytes),
    }
}

fn measure(name: &str, calls: fn(&mut Program)) -> Result<()> {
    let mut program = Program::new();
    while program.sent < CALLS_AT_ONCE as u64 {
        calls(&mut program);
    }
    let (mut plain, mut summed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(round(&mut program, &mut None)?);
        summed.push(round(&mut program, &mut Some(Summary::default()))?);
    }
    let (plain, summed) = (median(&plain), median(&summed));
    println!(
        "{name:<20}{:>5.0} ns {:>5.0} ns {:>5.0} ns {:>5.0} bytes {:>12.0} {:>12.0} {:>12.0}",
        plain.decode,
        plain.order,
        plain.write,
        plain.bytes,
        1e9 / plain.total(),
        1e9 / summed.total(),
        1e9 / plain.wall,
    );
    Ok(())
}

fn main() -> Result<()> {
    println!(
        "{:<20}{:>8} {:>8} {:>8} {:>11} {:>12} {:>12} {:>12}",
        "", "decode", "order", "write", "per line", "calls/s", "with summary", "wall clock"
    );
    measure("small calls", Program::small)?;
    measure("allocate and free", Program::memory)?;
    measure("launches", Program::launch)?;
    measure("copies", Program::copy)?;
    measure("all of them", Program::mix)
}
