//! Memory reports of processes with call sites of every kind.

use std::collections::HashMap;

use gpuprobe_analysis::{LiveMemory, MemoryReport, ProcessCallSites, ProcessInfo, Rules};
use gpuprobe_event::counters::{self, Allocation, ProcessKey, SiteMemory};
use gpuprobe_event::{Container, Frame, LossCause, Losses, SiteId, Space};

use super::{MIB, key};

const SECOND: u64 = 1_000_000_000;

fn frame(function: &str, module: &str, line: Option<u32>) -> Frame {
    Frame {
        address: 0x55aa,
        function: (!function.is_empty()).then(|| function.to_owned()),
        offset: 0x1c,
        module: Some(module.to_owned()),
        file: line.map(|_| "train.cc".to_owned()),
        line,
        inlined: false,
        python: false,
    }
}

/// A stack through a function that several call sites share.
fn stack(function: &str, line: u32) -> Vec<Frame> {
    vec![
        frame("", "libcudart.so.12", None),
        frame("Arena::get(unsigned long)", "train", Some(12)),
        frame(function, "train", Some(line)),
        frame("main", "train", Some(90)),
    ]
}

/// The number of live allocations and of all allocations, by second.
type Counts = fn(u64) -> (u64, u64);

/// The call sites of the first process: bytes of an allocation, counts, and the stack.
fn sites() -> Vec<(u64, Counts, Vec<Frame>)> {
    vec![
        (MIB, |s| (3 * s, 3 * s), stack("load_batch(Batch const&)", 31)),
        (MIB / 4, |s| (s, 2 * s), stack("save_checkpoint()", 47)),
        (
            512 * MIB,
            |_| (2, 2),
            vec![frame("build_model()", "train", Some(70)), frame("main", "train", Some(88))],
        ),
        (
            MIB,
            |s| (1 + s % 7, 50 * s),
            vec![frame("step(int)", "train", Some(55)), frame("main", "train", Some(92))],
        ),
        (
            4 * MIB,
            |s| (s.min(5), s.min(5)),
            vec![frame("", "libcublas.so.12", None), frame("cublasCreate_v2", "libcublas.so.12", None)],
        ),
        (1, |_| (7, 7), vec![frame(&"x\x1b[31m\n".repeat(2000), "evil\n", None)]),
        (1024, |_| (1, 1), vec![]),
    ]
}

fn row(process: ProcessKey, site: usize, bytes: u64, (live, allocations): (u64, u64)) -> SiteMemory {
    SiteMemory {
        process,
        site: SiteId(site as u32 + 1),
        gpu: Some(0),
        live: counters::LiveTotals { live_bytes: live * bytes, live_allocations: live },
        allocations,
        allocated_bytes: allocations * bytes,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
    }
}

/// Forty seconds of a program that leaks at two call sites, a process with a hostile name that began later, and a
/// process that exited.
pub(crate) fn memory_report(losses: &[(LossCause, u64)]) -> MemoryReport {
    let (train, late, exited) = (key(4242, 1), key(77, 1), key(99, 1));
    let mut live_memory = LiveMemory::new(Rules { warm_up_ns: 5 * SECOND }, true);
    let info = |name: &str, container: Option<&str>, exited_at_ns| ProcessInfo {
        name: name.to_owned(),
        container: container.map(|id| Container { id: id.to_owned(), pod: None }),
        exited_at_ns,
        ..ProcessInfo::default()
    };
    for second in 1..=40 {
        let mut rows: Vec<_> = sites()
            .iter()
            .enumerate()
            .map(|(i, (bytes, counts, _))| row(train, i, *bytes, counts(second)))
            .collect();
        if second > 38 {
            rows.push(row(late, 100, 3000, (1, 4)));
        }
        if second < 20 {
            rows.push(row(exited, 200, MIB, (second, second)));
        }
        let processes = HashMap::from([
            (train, info("train", None, None)),
            (late, info("e\x1b[2Jvil\n", Some("docker-0123456789ab"), None)),
            (exited, info("short", None, (second >= 19).then_some(second * SECOND))),
        ]);
        live_memory.feed(&rows, &processes, second * SECOND);
    }
    for (i, (.., stack)) in sites().into_iter().enumerate() {
        live_memory.name(SiteId(i as u32 + 1), stack);
    }
    let oldest = |site, since_ns| Allocation {
        process: train,
        ptr: since_ns,
        bytes: MIB,
        space: Space::Device,
        gpu: Some(0),
        since_ns,
        site: SiteId(site),
    };
    live_memory.set_ages(&[oldest(1, SECOND), oldest(2, 2 * SECOND), oldest(4, 39 * SECOND)], |ns| ns);
    let mut lost = Losses::default();
    losses.iter().for_each(|(cause, count)| lost.add(*cause, *count));
    live_memory.report(&lost, 40 * SECOND)
}

/// A process with more call sites than can be followed, and a process whose contexts ended with their memory.
pub(crate) fn many_sites_report() -> MemoryReport {
    const SITES: usize = 1030;
    let (crowd, contexts) = (key(4242, 1), key(77, 1));
    let mut live_memory = LiveMemory::new(Rules { warm_up_ns: 5 * SECOND }, true);
    let info = |name: &str| ProcessInfo { name: name.to_owned(), ..ProcessInfo::default() };
    let processes = HashMap::from([(crowd, info("crowd")), (contexts, info("contexts"))]);
    for second in 1..=40 {
        let mut rows: Vec<_> = (0..SITES).map(|site| row(crowd, site, MIB, (1, 1))).collect();
        // the last call site has least live memory
        rows[SITES - 1] = row(crowd, SITES - 1, 1024, (second, 2000));
        let (ended, left) = (800 * (second / 20), 800 * (1 - (second / 20).min(1)));
        for (site, freed) in [(SITES, 0), (SITES + 1, 1)] {
            let made = row(contexts, site, MIB, (left, left + ended + freed));
            rows.push(SiteMemory {
                freed_with_context_allocations: ended,
                freed_with_context_bytes: ended * MIB,
                ..made
            });
        }
        live_memory.feed(&rows, &processes, second * SECOND);
    }
    for (site, function) in [(0, "keep"), (SITES - 1, "late"), (SITES, "once"), (SITES + 1, "mostly")] {
        live_memory.name(SiteId(site as u32 + 1), vec![frame(function, "train", Some(site as u32 + 1))]);
    }
    live_memory.report(&Losses::default(), 40 * SECOND)
}

/// The processes of [`memory_report`], for metrics.
pub(crate) fn call_sites() -> Vec<ProcessCallSites> {
    memory_report(&[]).processes
}
