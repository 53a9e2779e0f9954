//! The observed program is not stopped, traced or signalled, and its clock has no pauses.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::number;
use gpuprobe_e2e::sampled::{Started, compiled, process};
use gpuprobe_e2e::{bpf_test, fixtures};
use gpuprobe_standin::Library;
use nix::sys::signal::Signal;
use serde_json::Value;

/// The machine that this runs on may itself stop for some milliseconds. If gpuprobe stopped the program, it would do so
/// in every sample of every attempt.
const ATTEMPTS: usize = 5;
const NOT_TRACED: [&str; 3] = ["TracerPid:\t0", "SigPnd:\t0000000000000000", "ShdPnd:\t0000000000000000"];

/// What the program saw since the last line.
fn seen(program: &mut Started) -> Value {
    program.talk.go_on();
    program.talk.json()
}

/// Looks whether a process is traced, or has a signal, until something is over. Returns how often it looked.
fn watch(pid: u32, is_over: &AtomicBool) -> usize {
    let mut looks = 0;
    while !is_over.load(Ordering::Relaxed) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for line in NOT_TRACED {
            assert!(status.contains(line), "{status}");
        }
        assert!(!status.contains("State:\tT") && !status.contains("State:\tt"), "{status}");
        looks += 1;
        thread::sleep(Duration::from_millis(1));
    }
    looks
}

/// Samples one of two programs that do the same at the same time. Returns what each of them saw.
fn sampled(observed: &mut Started, other: &mut Started) -> (Value, Value) {
    seen(observed);
    seen(other);
    let (pid, is_over) = (observed.pid, AtomicBool::new(false));
    let shown = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(pid, &is_over));
        let shown = scope.spawn(|| process(pid, &["--samples", "20"])).join();
        is_over.store(true, Ordering::Relaxed);
        assert!(watching.join().unwrap() > 20);
        shown.unwrap()
    });
    let saw = (seen(observed), seen(other));
    assert_eq!(shown["threads"], 1, "{shown}");
    saw
}

#[bpf_test(alone)]
fn a_sampled_program_is_not_disturbed() {
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "clock_gaps.c", &["-O2"], Library::Driver));
    let [mut observed, mut other] = [(); 2].map(|()| Started::new(&[&program], &[]));

    let mut is_undisturbed = false;
    for attempt in 1..=ATTEMPTS {
        let (ours, others) = sampled(&mut observed, &mut other);
        println!("attempt {attempt}: observed {ours}, not observed {others}");
        assert!(number(&ours["turns"]) > 1000, "{ours}");
        assert_eq!(number(&ours["signals"]), 0, "{ours}");
        if number(&ours["pauses"]) == 0 || number(&ours["pauses"]) <= number(&others["pauses"]) {
            is_undisturbed = true;
            break;
        }
    }
    assert!(is_undisturbed, "it paused whenever it was sampled");

    // A program that is stopped would have said so. Not each time: the scheduler of newer Linux kernels may keep a task that
    // was just stopped in its queue, and counts that as waiting for a CPU.
    let is_seen = (0..ATTEMPTS).any(|_| {
        seen(&mut other);
        // it has printed, and measures again
        thread::sleep(Duration::from_millis(50));
        other.talk.stop();
        thread::sleep(Duration::from_millis(20));
        other.talk.signal(Signal::SIGCONT);
        let stopped = seen(&mut other);
        println!("stopped: {stopped}");
        assert_eq!(number(&stopped["signals"]), 1, "{stopped}");
        number(&stopped["longest_us"]) >= 15_000 && number(&stopped["pauses"]) > 0
    });
    assert!(is_seen, "a program that is stopped does not notice it");
}
