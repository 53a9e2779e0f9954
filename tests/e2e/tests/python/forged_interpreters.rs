//! Programs with the memory of a Python interpreter that is wrong in some way: gpuprobe ends in time, their calls are
//! counted exactly, and no line is shown that the memory does not have.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::process::{at_once, shown};
use gpuprobe_e2e::python::{self, Line, Traced};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Recording, Run, bpf_test, compile, fixtures, tiers};
use gpuprobe_event::LossCause;
use gpuprobe_standin::{Cuda, Library};

const ROUNDS: u64 = 200;
/// The most Python frames of a stack.
const MOST_FRAMES: usize = 64;
/// Longer than a run takes, even on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// What can be shown of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// So many frames with the line of the forged function.
    Lines(usize),
    /// No line.
    Nothing,
    /// What the memory had at that moment.
    Anything,
}

/// The forms of `forged_python.c`. The three frames of the valid one show that the others are wrong only where they
/// are meant to be.
const FORMS: [(&str, Shown); 21] = [
    ("valid", Shown::Lines(3)),
    ("garbage", Shown::Nothing),
    ("key_out_of_range", Shown::Nothing),
    ("key_of_no_block", Shown::Nothing),
    ("key_negative", Shown::Nothing),
    ("thread_unmapped", Shown::Nothing),
    ("thread_of_kernel", Shown::Nothing),
    ("frame_unmapped", Shown::Nothing),
    ("frame_at_end", Shown::Lines(1)),
    // as a recursion: the frames themselves are valid
    ("cycle", Shown::Lines(MOST_FRAMES)),
    ("cycle_without_code", Shown::Nothing),
    ("many_frames", Shown::Lines(MOST_FRAMES)),
    ("code_unmapped", Shown::Nothing),
    ("code_of_other_type", Shown::Nothing),
    ("type_unmapped", Shown::Nothing),
    ("name_unmapped", Shown::Nothing),
    ("name_too_long", Shown::Nothing),
    ("file_of_no_kind", Shown::Nothing),
    ("table_too_large", Shown::Nothing),
    ("instruction_outside", Shown::Nothing),
    ("changing", Shown::Anything),
];
/// The forms whose frames are not all read.
const CUT: [&str; 3] = ["frame_at_end", "cycle", "many_frames"];

/// The forms of which not even the first frame is found.
const UNREAD: [&str; 5] =
    ["key_out_of_range", "key_negative", "thread_unmapped", "thread_of_kernel", "frame_unmapped"];

/// The forms of `forged_states.c`, and what is counted for each of their calls. None has a line.
const STATES: [(&str, Option<LossCause>); 11] = [
    ("on_no_stack", Some(LossCause::UnassignedPython)),
    ("idle", None),
    // its frame cannot be read
    ("on_own_stack", Some(LossCause::UnreadPython)),
    ("cycle_of_states", Some(LossCause::UnassignedPython)),
    ("state_is_its_own_next", Some(LossCause::UnassignedPython)),
    ("many_states", Some(LossCause::UnassignedPython)),
    ("state_of_other_interpreter", Some(LossCause::UnassignedPython)),
    ("state_unmapped", Some(LossCause::UnassignedPython)),
    ("cycle_of_interpreters", Some(LossCause::UnassignedPython)),
    ("main_is_not_the_last", Some(LossCause::UnassignedPython)),
    ("interpreter_unmapped", Some(LossCause::UnreadPython)),
];

/// One of the programs, which exports its symbols.
fn program(folder: &tempfile::TempDir, source: &str) -> PathBuf {
    let (source, program) = (compile::source(source), folder.path().join("forged"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-o"]);
    compile::run(compiler.arg(&program).arg(source).arg("-ldl"));
    program
}

fn forged() -> Line {
    Line { function: "forged_function".to_owned(), file: "forged.py".to_owned(), line: 7 }
}

fn assert_shown(form: &str, wanted: Shown, call: &Traced) {
    let lines = python::lines(&call.stack);
    match wanted {
        Shown::Lines(count) => assert_eq!(lines, vec![forged(); count], "{form}: {:#?}", call.stack),
        Shown::Nothing => assert_eq!(lines, [], "{form}: {:#?}", call.stack),
        Shown::Anything => {
            assert!(lines.iter().all(|line| *line == forged()), "{form}: {:#?}", call.stack);
            assert!(lines.len() <= MOST_FRAMES);
        }
    }
    if wanted != Shown::Anything {
        let is_cut = call.stack.iter().any(|frame| frame == python::CUT);
        assert_eq!(is_cut, CUT.contains(&form), "{form}: {:#?}", call.stack);
    }
}

/// Records the program with a form. Returns its allocations, which are complete, and the trace.
fn recorded(tier: &str, program: &PathBuf, form: &str) -> (Vec<Traced>, Recording) {
    println!("{form}, {tier}");
    let driver = shown(fixtures::standins(Cuda::Cuda12).library(Library::Driver));
    let run = Run::new(program).options(&tiers::options(tier, &["cuMemAlloc_v2"]));
    let start = Instant::now();
    let (printed, trace) = python::recorded(&run.args(&[&driver, form, &ROUNDS.to_string()]), 1);
    assert!(start.elapsed() < BOUND, "{form}: {:?}", start.elapsed());
    let ledger = &printed[0];
    let traced = python::traced(&trace, pid_of(ledger));
    let sum: u64 = traced.iter().map(|call| call.bytes).sum();
    assert_eq!(
        (traced.len() as u64, sum),
        (number(&ledger["allocations"]), number(&ledger["bytes"])),
        "{form}"
    );
    assert_eq!(traced.len() as u64, ROUNDS);
    (traced, trace)
}

fn assert_harmless(tier: &str, program: &PathBuf, (form, wanted): (&str, Shown)) {
    let (traced, trace) = recorded(tier, program, form);
    let lost = trace.assert_ended().lost.get("unread_python").copied().unwrap_or_default();
    if UNREAD.contains(&form) {
        assert_eq!(lost, ROUNDS, "{form}: once for each call");
    } else if form == "valid" || form == "key_of_no_block" {
        assert_eq!(lost, 0, "{form}");
    }
    traced.iter().for_each(|call| assert_shown(form, wanted, call));
}

#[bpf_test(tiers(best), alone)]
fn a_forged_interpreter_harms_neither_the_counts_nor_the_lines(tier: &str) {
    let folder = fixtures::folder();
    let program = program(&folder, "forged_python.c");
    at_once(&FORMS, |form| assert_harmless(tier, &program, *form));
}

#[bpf_test(tiers(multi, perf), alone)]
fn other_tiers_do_the_same(tier: &str) {
    let folder = fixtures::folder();
    let program = program(&folder, "forged_python.c");
    let chosen = |form: &&(&str, Shown)| ["valid", "cycle", "changing"].contains(&form.0);
    FORMS.iter().filter(chosen).for_each(|form| assert_harmless(tier, &program, *form));
}

#[bpf_test(tiers(best), alone)]
fn forged_lists_of_interpreters_and_threads_end_and_show_no_lines(tier: &str) {
    let folder = fixtures::folder();
    let program = program(&folder, "forged_states.c");
    at_once(&STATES, |(form, counted)| {
        let (traced, trace) = recorded(tier, &program, form);
        let lost = &trace.assert_ended().lost;
        for cause in [LossCause::UnassignedPython, LossCause::UnreadPython] {
            let expected = (*counted == Some(cause)).then_some(ROUNDS);
            assert_eq!(lost.get(cause.as_str()).copied(), expected, "{form}: {lost:?}");
        }
        traced.iter().for_each(|call| assert_shown(form, Shown::Nothing, call));
    });
}
