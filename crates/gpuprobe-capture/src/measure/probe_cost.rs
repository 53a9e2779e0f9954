//! Measures what a probe costs on this machine: functions of our own are probed like others and called for some
//! milliseconds, also with other work in between, as programs call them.

use std::arch::global_asm;
use std::path::PathBuf;
use std::process::Command;

use gpuprobe_discover::{FileId, Library, PlannedFunction, ProbeCost, ProbePoint, Target, offset_in_file};
use gpuprobe_event::{Api, Class, Event, Function, Outcome, Tgid, catalogue};

use super::measure_config::measure_config;
use super::seen_calls::SeenCalls;
use super::workload::Workload;
use crate::capture::Capture;
use crate::error::CaptureError;
use crate::host::clock::thread_cpu_ns;
use crate::host::support::Tier;
use crate::load::collect::Collect;
use crate::load::config::CaptureConfig;

/// Distance between the measured functions, in bytes.
const STRIDE: usize = 16;
/// How often each function is measured. The result is the lower quartile of all but the first, in which table rows
/// are created.
const ROUNDS: usize = 10;
/// Calls per measurement.
const CALLS: u64 = 100;
/// Bytes written between two calls, to measure the cost in a program that does other work between them: the data of
/// the probe has left the caches of the CPU then. It is several times the size of these caches, so that what is left
/// there does not depend on chance. Real programs evict less, but probes also evict what the programs use.
const CACHE_FILL_BYTES: usize = 8 << 20;
/// Calls that are measured in this way.
const COLD_CALLS: usize = 60;
/// A larger ratio is not caused by the caches, but by other use of the machine.
const MAX_COLDER: f64 = 4.0;
/// The kinds of instruction under a probe, the cheaper one first.
const POINTS: [ProbeCost; 2] = [ProbeCost::Emulated, ProbeCost::SingleStepped];

/// What is measured. The first one stands for all where only one is measured.
const WORKLOADS: [Workload; 5] =
    [Workload::Count, Workload::Launches, Workload::Copies, Workload::Memory, Workload::EntryCount];
/// How many functions begin with the same kind of instruction.
const PER_INSTRUCTION: usize = 6;

// Twelve functions: six that begin with an instruction that the Linux kernel emulates, and six with one that it must
// single-step. All return 0 and touch nothing.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text",
    ".p2align 4",
    ".globl gp_measured",
    ".hidden gp_measured",
    "gp_measured:",
    ".rept 6",
    "push rbp",
    "pop rbp",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    ".endr",
    ".rept 6",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    ".endr",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text",
    ".p2align 4",
    ".globl gp_measured",
    ".hidden gp_measured",
    "gp_measured:",
    ".rept 6",
    "b 1f",
    "1: mov w0, #0",
    "ret",
    ".p2align 4",
    ".endr",
    ".rept 6",
    "mov w0, #0",
    "ret",
    ".p2align 4",
    ".endr",
    ".popsection",
);

unsafe extern "C" {
    safe static gp_measured: u8;
}

/// With as many words as the longest list of arguments has. Functions with fewer arguments ignore the rest.
type Measured = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;

/// Nanoseconds of the calling thread for each call, by workload and instruction under the probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeCosts {
    ns: [[f64; POINTS.len()]; WORKLOADS.len()],
}

impl ProbeCosts {
    /// The cost of a call of this function.
    pub fn of(&self, f: &Function, point: ProbeCost, collect: Collect) -> f64 {
        let workload = match f.class {
            _ if collect == Collect::EntryCount => Workload::EntryCount,
            _ if collect == Collect::Failures => Workload::Count,
            Class::Launch | Class::GraphLaunch => Workload::Launches,
            Class::Memcpy | Class::Memset => Workload::Copies,
            Class::Alloc | Class::Free | Class::HostRegister | Class::HostUnregister | Class::Vmm => {
                Workload::Memory
            }
            _ => Workload::Count,
        };
        let index = WORKLOADS.iter().position(|measured| *measured == workload).unwrap_or_default();
        self.ns[index][point as usize]
    }

    /// Measures the costs with probes as this configuration attaches them. Takes a second or more, mostly to load the
    /// programs and to detach the probes. On the perf tier, where the Linux kernel takes a tenth of a second to
    /// detach each probe, only counting is measured and stands for all workloads.
    pub fn measure(config: &CaptureConfig, collect: Collect, helper: Command) -> Result<Self, CaptureError> {
        let config = CaptureConfig {
            entry_counts: true,
            // one process with a few functions needs only small tables
            ring_bytes: 16 << 20,
            live_entries: 1 << 12,
            count_entries: 1 << 8,
            process_entries: 1 << 8,
            launch_entries: 1 << 8,
            site_entries: 1 << 8,
            ..measure_config(config)
        };
        let mut capture = Capture::open(&config, helper)?;
        let workloads = if capture.tier() == Tier::Perf { &WORKLOADS[..1] } else { &WORKLOADS[..] };
        let bench = ProbeBench::of(workloads)?;
        let collect = |id| if Workload::EntryCount.has(id) { Collect::EntryCount } else { collect };
        capture.attach(&bench.target(), &collect)?;
        capture.start_observing()?;
        capture.add_target(Tgid(std::process::id()))?;
        let mut turns = vec![[const { Vec::new() }; POINTS.len()]; workloads.len()];
        for _ in 0..ROUNDS {
            for (workload, turns) in workloads.iter().zip(&mut turns) {
                for (point, turns) in turns.iter_mut().enumerate() {
                    turns.push(bench.turn(*workload, point));
                }
            }
        }
        let (cold_ns, hot_ns) = (bench.cold_ns(), quartile(turns[0][0][1..].to_vec(), 1));
        let colder = if hot_ns > 0.0 { (cold_ns / hot_ns).clamp(1.0, MAX_COLDER) } else { 1.0 };
        bench.check(&mut capture, workloads)?;
        let of = |index: usize, point: usize| {
            quartile(turns.get(index).unwrap_or(&turns[0])[point][1..].to_vec(), 1) * colder
        };
        Ok(Self { ns: std::array::from_fn(|index| std::array::from_fn(|point| of(index, point))) })
    }
}

/// The first quartile, because other load on the machine only adds to the cost, or the second one, the median.
fn quartile(mut ns: Vec<f64>, number: usize) -> f64 {
    ns.sort_by(f64::total_cmp);
    ns.get(ns.len() * number / 4).copied().unwrap_or_default()
}

/// A measured function.
#[derive(Clone, Copy, Debug)]
struct MeasuredFunction {
    workload: Workload,
    point: usize,
    name: &'static str,
    /// Its index among all.
    slot: usize,
}

impl MeasuredFunction {
    fn function(&self) -> Measured {
        let address = (&raw const gp_measured).wrapping_add(self.slot * STRIDE);
        // SAFETY: at every slot there is a function that follows the C calling convention, reads no argument and
        // returns a number.
        unsafe { std::mem::transmute::<*const u8, Measured>(address) }
    }
}

/// The measured functions, each in the row of the function that it stands for.
struct ProbeBench {
    /// The offset of the first function in our executable.
    first: u64,
    functions: Vec<MeasuredFunction>,
}

impl ProbeBench {
    fn of(workloads: &[Workload]) -> Result<Self, CaptureError> {
        let maps = std::fs::read("/proc/self/maps").map_err(CaptureError::HelperStart)?;
        let first = offset_in_file(&maps, &raw const gp_measured as u64);
        let first = first.ok_or(CaptureError::Missing("function to measure with"))?;
        let mut functions = Vec::new();
        for point in 0..POINTS.len() {
            let names = workloads.iter().flat_map(|w| w.functions().iter().map(|name| (*w, name)));
            functions.extend(names.enumerate().map(|(i, (workload, name))| MeasuredFunction {
                workload,
                point,
                name,
                slot: point * PER_INSTRUCTION + i,
            }));
        }
        Ok(Self { first, functions })
    }

    fn target(&self) -> Target {
        let exe = PathBuf::from("/proc/self/exe");
        let library = Library {
            path: exe.clone(),
            open_path: exe,
            id: FileId { dev: 0, inode: 0 },
            opened: None,
            kind: Api::Driver,
            is_behind_loader: false,
            soname: String::new(),
            cuda_major: None,
            is_static: false,
            may_stall: false,
            functions: Vec::new(),
        };
        let planned = |measured: &MeasuredFunction| {
            let entry = self.first + (measured.slot * STRIDE) as u64;
            let point = ProbePoint { offset: entry, entry, cost: POINTS[measured.point] };
            let function = catalogue().lookup(Api::Driver, None, measured.name)?.id;
            Some(PlannedFunction { function, name: measured.name.to_owned(), point })
        };
        let functions = self.functions.iter().filter_map(planned).collect();
        Target { library, functions, failure_points: Vec::new() }
    }

    /// Detaches the probes. Fails if they did not see every call, because then something else was measured.
    fn check(&self, capture: &mut Capture, workloads: &[Workload]) -> Result<(), CaptureError> {
        let batch = capture.detach()?.batch;
        let is_whole = |event: &&Event| matches!(event, Event::Call(call) if call.outcome != Outcome::Begun);
        let received = batch.calls.iter().filter(is_whole).count() as u64;
        let seen = SeenCalls::read(capture, received)?.total(workloads);
        capture.dismiss();
        let made = ROUNDS as u64 * CALLS * self.functions.len() as u64;
        // if beginnings are streamed as well, some of them may be lost
        if seen >= made { Ok(()) } else { Err(CaptureError::Unmeasured { seen, made }) }
    }

    /// Nanoseconds of a plain call with cold caches.
    fn cold_ns(&self) -> f64 {
        let mut memory = vec![0u8; CACHE_FILL_BYTES];
        let mut median = |call: &dyn Fn()| {
            let mut turn = || {
                memory.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                std::hint::black_box(&memory);
                let begun = thread_cpu_ns();
                call();
                thread_cpu_ns().saturating_sub(begun) as f64
            };
            quartile((0..COLD_CALLS).map(|_| turn()).collect(), 2)
        };
        let is_plain =
            |measured: &&MeasuredFunction| (measured.workload, measured.point) == (Workload::Count, 0);
        let Some(function) = self.functions.iter().find(is_plain).map(MeasuredFunction::function) else {
            return 0.0;
        };
        let with = median(&|| {
            function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        });
        // minus the cost of reading the clock with cold caches
        with - median(&|| ())
    }

    /// Nanoseconds per call, over one measurement.
    fn turn(&self, workload: Workload, point: usize) -> f64 {
        const ADDRESS: u64 = 0x7000_0000;
        // the object of a kernel handle, and the memory that an allocation writes its result to
        let object = [ADDRESS; 8];
        let pointer = &raw const object as u64;
        let is_it = |measured: &&MeasuredFunction| (measured.workload, measured.point) == (workload, point);
        let first_argument = |name: &str| if name.starts_with("cuMemFree") { ADDRESS } else { pointer };
        let functions: Vec<_> =
            self.functions.iter().filter(is_it).map(|f| (f.function(), first_argument(f.name))).collect();
        let begun = thread_cpu_ns();
        for _ in 0..CALLS {
            for (function, first) in &functions {
                function(*first, 1 << 12, 1, 1, 1, 1, 1, 0, 1, 0, 0);
            }
        }
        let ns = thread_cpu_ns().saturating_sub(begun);
        ns as f64 / (CALLS * functions.len().max(1) as u64) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measured_function_can_be_called_and_has_its_own_slot() {
        let bench = ProbeBench::of(&WORKLOADS).unwrap();
        let mut slots: Vec<_> = bench.functions.iter().map(|f| f.slot).collect();
        slots.dedup();
        assert_eq!(slots, (0..POINTS.len() * PER_INSTRUCTION).collect::<Vec<_>>());
        assert!(bench.functions.iter().all(|f| f.function()(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) == 0));
        assert_eq!(bench.target().functions.len(), slots.len(), "all of them are in the catalogue");
        assert!(bench.turn(Workload::Memory, 1) > 0.0);
    }

    #[test]
    fn each_class_has_the_cost_of_its_workload_and_instruction() {
        use ProbeCost::{Emulated, SingleStepped};
        let costs = ProbeCosts { ns: [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [0.5, 5.0]] };
        let of = |name: &str, point, collect| {
            costs.of(catalogue().lookup(Api::Driver, None, name).unwrap(), point, collect)
        };
        assert_eq!(of("cuStreamSynchronize", Emulated, Collect::Count), 1.0);
        assert_eq!(of("cuLaunchKernel", SingleStepped, Collect::Stream), 20.0);
        assert_eq!(of("cuMemcpyDtoH_v2", Emulated, Collect::Count), 3.0);
        assert_eq!(of("cuMemFree_v2", SingleStepped, Collect::StateOnly), 40.0);
        assert_eq!(of("cuMemFree_v2", Emulated, Collect::Failures), 1.0);
        assert_eq!(of("cuLaunchKernel", SingleStepped, Collect::EntryCount), 5.0);
    }
}
