//! Stacks that cannot be right: sampling takes bounded time, says what is missing, and shows no other memory.

use std::time::Duration;

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::sampled::{FOR_EVER, Started, compiled, functions, list, stacks, text};
use gpuprobe_e2e::{bpf_test, fixtures};
use gpuprobe_standin::Library;
use serde_json::Value;

/// Sampling takes a second. A busy machine makes the rest longer, but nothing here may take minutes.
const MOST_TIME: Duration = Duration::from_secs(20);
const TIMES: usize = 5;
/// Stack pointers: unmapped, at the end of the addresses of programs, not canonical, in the Linux kernel, the largest.
const POINTERS: [&str; 6] =
    ["0", "10", "7ffffffffff0", "dead000000000000", "ffff888000001000", "fffffffffffffff8"];

struct Hostile {
    program: Started,
    _folder: tempfile::TempDir,
}

impl Hostile {
    fn new(args: &[&str]) -> Self {
        let folder = fixtures::folder();
        let program = shown(compiled(folder.path(), "hostile_stack.c", &["-O1"], Library::Driver));
        let wait = format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}");
        let command: Vec<&str> = [&*program].into_iter().chain(args.iter().copied()).collect();
        Self { program: Started::new(&command, &[&wait]), _folder: folder }
    }

    /// The group of its other thread.
    fn group(&mut self) -> Value {
        let (report, finished) = stacks(&["-d", &self.program.pid.to_string(), "--all-threads"]);
        assert!(finished.took < MOST_TIME, "{:?}", finished.took);
        assert!(!self.program.talk.has_exited(), "it was killed");
        let groups = list(&list(&report["processes"])[0]["groups"]);
        let mut others = groups.iter().filter(|group| group["main"] == false);
        let found = others.next().cloned().unwrap_or_else(|| panic!("{report}"));
        assert!(others.next().is_none(), "{report}");
        found
    }
}

#[bpf_test]
fn an_invalid_stack_pointer_is_reported() {
    for pointer in POINTERS {
        for (mode, state, function) in [("spin", "R", "spin"), ("asleep", "S", "sleep_for_ever")] {
            let group = Hostile::new(&[mode, pointer]).group();
            assert_eq!((&group["state"], functions(&group)), (&state.into(), vec![function]), "{group}");
            let expected = if mode == "asleep" { Value::from("pause") } else { Value::Null };
            assert_eq!(group["system_call"], expected, "{group}");
            assert!(!text(&group["incomplete"]).is_empty(), "{pointer}: {group}");
        }
    }
}

#[bpf_test]
fn callers_that_are_overwritten_meanwhile_are_missing() {
    let mut hostile = Hostile::new(&["overwritten", "0"]);
    for _ in 0..TIMES {
        let group = hostile.group();
        let functions = functions(&group);
        let found = functions.iter().position(|function| *function == "cuStreamSynchronize").unwrap();
        assert_eq!(functions[found + 1], "wait_overwritten", "{functions:?}");
        assert_eq!(group["function"], "cuStreamSynchronize", "{group}");
        assert!(!text(&group["incomplete"]).is_empty(), "{group}");
    }
}

#[bpf_test]
fn a_stack_that_is_overwritten_up_to_the_innermost_frames_does_no_harm() {
    let mut hostile = Hostile::new(&["overwritten", "100"]);
    for _ in 0..TIMES {
        let group = hostile.group();
        assert_eq!((&group["state"], &group["system_call"]), (&"S".into(), &"futex".into()), "{group}");
        assert!(!text(&group["incomplete"]).is_empty(), "{group}");
    }
}

#[bpf_test]
fn a_stack_that_grows_and_shrinks_moves() {
    let mut hostile = Hostile::new(&["changing"]);
    for _ in 0..TIMES {
        assert_eq!(hostile.group()["verdict"], "moving");
    }
}

#[bpf_test]
fn a_hundred_megabytes_of_frames_are_bounded_and_the_call_is_found() {
    let mut hostile = Hostile::new(&["deep"]);
    let group = hostile.group();
    assert_eq!((&group["function"], &group["verdict"]), (&"cuStreamSynchronize".into(), &"stuck".into()));
    let functions = functions(&group);
    assert!(functions.len() < 1000, "{}", functions.len());
    assert_eq!(functions.last(), Some(&"recurse"), "{functions:?}");
    assert_eq!(group["incomplete"], "there are more native frames than are unwound");
}
