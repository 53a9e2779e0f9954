//! A recording ends at one instant: it has the calls of each thread up to that instant, and none after it.
//!
//!     GPUPROBE_STOPS=50 cargo test --workspace --test recording stop_instant:: -- --nocapture

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use gpuprobe_e2e::process::{PATIENCE, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Recording, Talk, bpf_test, fixtures};
use gpuprobe_event::{Call, Outcome};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

const THREADS: &str = "4";

/// One call in the diary of the program.
#[derive(Clone, Copy, Debug)]
struct Note {
    begun_ns: u64,
    done_ns: u64,
    /// 0 for a free.
    bytes: u64,
}

/// The diary by thread, in order.
fn diary(path: &Path) -> BTreeMap<u32, Vec<Note>> {
    let mut threads: BTreeMap<u32, Vec<Note>> = BTreeMap::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [tid, begun_ns, done_ns, bytes] = numbers[..] else { panic!("{line}") };
        threads.entry(tid as u32).or_default().push(Note { begun_ns, done_ns, bytes });
    }
    threads
}

/// A recording of a busy program that is stopped after this time, with the program's diary.
fn stopped_after(run: Duration, options: &[&str], folder: &Path) -> (Recording, BTreeMap<u32, Vec<Note>>) {
    let (notes, trace) = (folder.join("diary"), folder.join("trace.jsonl"));
    let program = fixtures::standins(Cuda::Cuda12).workload("diary");
    let mut program = Talk::start(Command::new(program).args([shown(&notes).as_str(), THREADS]));
    let pid = pid_of(&program.json()).to_string();
    let output = shown(&trace);
    let words = [&["record", "-d", &pid, "--verify", "--buffer", "256", "-o", &output], options].concat();
    let mut record = Talk::start(&mut gpuprobe(&words));
    until(PATIENCE, "the probes are in", || {
        assert!(!record.has_exited(), "{}", record.stderr());
        record.stderr().contains("gpuprobe: tracing").then_some(())
    });
    program.go_on();
    sleep(run);
    record.signal(Signal::SIGINT);
    assert_eq!(record.end(), 0, "{}", record.stderr());
    program.go_on();
    let made = number(&program.json()["calls"]);
    assert_eq!(program.end(), 0);
    let diary = diary(&notes);
    assert_eq!(made, diary.values().map(Vec::len).sum::<usize>() as u64);
    (Recording::read(&trace), diary)
}

/// The outermost calls of each thread, in order.
fn by_thread(recording: &Recording) -> BTreeMap<u32, Vec<&Call>> {
    let mut threads: BTreeMap<u32, Vec<&Call>> = BTreeMap::new();
    for call in recording.calls.iter().filter(|call| call.parent.is_none()) {
        threads.entry(call.tid.0).or_default().push(call);
    }
    threads.values_mut().for_each(|calls| calls.sort_by_key(|call| call.id));
    threads
}

fn end_of(call: &Call) -> Option<u64> {
    Some(call.start_ns + call.duration_ns()?)
}

/// The earliest and latest possible start of the recording on the clock of the diary. A call begins after the program
/// noted its start, and ends before the program noted its end.
fn beginning(diary: &BTreeMap<u32, Vec<Note>>, calls: &BTreeMap<u32, Vec<&Call>>) -> (u64, u64) {
    let pairs = calls.iter().flat_map(|(tid, calls)| diary[tid].iter().zip(calls));
    let bounds = pairs.map(|(note, call)| {
        (note.begun_ns - call.start_ns, end_of(call).map_or(u64::MAX, |end_ns| note.done_ns - end_ns))
    });
    bounds.fold((0, u64::MAX), |(least, most), (low, high)| (least.max(low), most.min(high)))
}

/// Checks that a recording has exactly the calls of each thread up to its end. Returns the number of calls.
fn assert_cut_at_one_instant(recording: &Recording, diary: &BTreeMap<u32, Vec<Note>>) -> usize {
    let end = recording.assert_whole();
    let end_ns = (end.seconds * 1e9).round() as u64;
    for call in &recording.calls {
        let last_ns = end_of(call).unwrap_or(call.start_ns);
        assert!(last_ns <= end_ns, "{} ends at {last_ns}, and the recording at {end_ns}", call.name);
    }
    let calls = by_thread(recording);
    let (least_ns, most_ns) = beginning(diary, &calls);
    assert!(least_ns <= most_ns, "{least_ns} {most_ns}");
    let (mut returned, mut live) = (0, 0_i64);
    for (tid, notes) in diary {
        let calls = calls.get(tid).map_or(&[][..], Vec::as_slice);
        let done = calls.iter().filter(|call| call.outcome != Outcome::Unfinished).count();
        assert!(calls.len() <= done + 1, "thread {tid} was in {} calls at once", calls.len() - done);
        for (note, call) in notes.iter().zip(calls) {
            let expected = if note.bytes > 0 { "cudaMalloc" } else { "cudaFree" };
            assert_eq!(call.name, expected, "thread {tid}, {note:?}");
        }
        for (note, call) in notes.iter().zip(&calls[..done]) {
            assert_eq!(call.effect.size().unwrap_or(0), note.bytes, "thread {tid}, {note:?}");
            live += call.effect.size().unwrap_or(0).cast_signed()
                - call.effect.freed().map_or(0, |freed| freed.bytes.cast_signed());
        }
        // a call that had not returned, but whose address another thread had already got
        let open = calls[done..].iter().filter_map(|call| call.effect.freed());
        live -= open.map(|freed| freed.bytes.cast_signed()).sum::<i64>();
        if let Some(last) = done.checked_sub(1).map(|last| notes[last]) {
            assert!(
                last.begun_ns <= most_ns + end_ns,
                "thread {tid}: {last:?} is recorded and was made later"
            );
        }
        if let Some(next) = notes.get(done) {
            assert!(next.done_ns >= least_ns + end_ns, "thread {tid}: {next:?} was made and is not recorded");
        }
        returned += done;
    }
    assert_eq!(recording.summary().memory.live.iter().map(|kind| kind.bytes).sum::<u64>(), live as u64);
    returned
}

#[bpf_test(tiers, alone)]
fn a_recording_ends_at_one_instant_for_all_threads(tier: &str) {
    let stops: u64 = std::env::var("GPUPROBE_STOPS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let mut random = 7_u64;
    // there the Linux kernel takes long to remove probes
    let stops = if tier == "perf" { stops.div_ceil(10) } else { stops };
    let mut calls = 0;
    for _ in 0..stops {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let run = Duration::from_micros(20_000 + (random >> 33) % 200_000);
        let folder = fixtures::folder();
        let options = ["--attach", tier, "-e", "cudaMalloc", "-e", "cudaFree"];
        let (recording, diary) = stopped_after(run, &options, folder.path());
        calls += assert_cut_at_one_instant(&recording, &diary);
    }
    println!("{tier}: {stops} stops, {calls} calls");
}
