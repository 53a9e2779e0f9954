//! The cost of a call, measured by `gpuprobe bench`. The bounds are wide enough for a busy machine: the figures are
//! in docs/results/performance.md.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::process::{PATIENCE, finish, finish_within, gpuprobe, shown, until};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Enough for a median, and quick.
const ROUNDS: u64 = 7;
/// On perf the Linux kernel takes a tenth of a second to remove each probe, and many times that on a busy machine.
const LIMIT: Duration = PATIENCE.saturating_mul(5);
const CALLS_PER_ROUND: u64 = 1000;
/// Rounds before the measured ones.
const WARM_UP: u64 = 5;
/// The maximum cost of a mode, as a multiple of the cost of empty probes.
const MOST: f64 = 2.5;

fn bench(options: &[&str]) -> Command {
    gpuprobe(&[&["bench"], options].concat())
}

fn mode<'a>(report: &'a Value, name: &str) -> &'a Value {
    let modes = report["tiers"][0]["modes"].as_array().unwrap_or_else(|| panic!("{report}"));
    modes.iter().find(|mode| mode["name"] == name).unwrap_or_else(|| panic!("{name} in {report}"))
}

// on perf most of the time is spent on removing probes
#[bpf_test(tiers(session, multi), alone)]
fn every_mode_is_measured_and_sees_every_call(tier: &str) {
    let mut bench = bench(&["--json", "--attach", tier, "--rounds", &ROUNDS.to_string()]);
    let finished = finish_within(LIMIT, &mut bench);
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    let report: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {}", finished.stdout));
    assert_eq!((&report["tiers"][0]["tier"], &report["rounds"]), (&(*tier).into(), &ROUNDS.into()));
    const THREADS: u64 = 16;
    for (name, floor, counts) in [
        ("none", Value::Null, false),
        ("floor", Value::Null, false),
        ("count", "floor".into(), true),
        ("stream", "floor".into(), true),
        ("stream_file", "floor".into(), true),
        ("floor_entry", "floor".into(), false),
        ("entry", "floor_entry".into(), true),
        ("none_pair", Value::Null, false),
        ("floor_pair", Value::Null, false),
        ("memory", "floor_pair".into(), true),
        ("floor_launch", Value::Null, false),
        ("launches", "floor_launch".into(), true),
        ("floor_copy", Value::Null, false),
        ("bytes", "floor_copy".into(), true),
        ("floor_cmp_je", "floor".into(), false),
        ("count_cmp_je", "floor_cmp_je".into(), true),
        ("count_mov", "floor_mov".into(), true),
        ("copies", "floor_copy".into(), true),
        ("floor_copy_threads", "floor_copy".into(), false),
        ("copies_threads", "copies".into(), true),
        ("floor_pair_threads", "floor_pair".into(), false),
        ("memory_threads", "memory".into(), true),
    ] {
        let mode = mode(&report, name);
        let threads = if name.ends_with("_threads") { THREADS } else { 1 };
        let made = Value::from((WARM_UP + ROUNDS) * CALLS_PER_ROUND * threads);
        assert_eq!((&mode["floor"], &mode["made"]), (&floor, &made), "{mode}");
        assert_eq!(mode["seen"], if counts { made } else { Value::Null }, "{mode}");
        assert!(mode["ns"]["median"].as_f64().is_some_and(|ns| ns > 0.0), "{mode}");
        let ratio = mode["ratio"]["median"].as_f64();
        assert_eq!(ratio.is_some(), !floor.is_null(), "{mode}");
        assert!(ratio.is_none_or(|ratio| ratio < MOST), "{tier}: {mode}");
    }
}

#[bpf_test(alone)]
fn a_table_is_printed_and_wrong_numbers_get_a_reason() {
    let finished = finish(&mut bench(&["--rounds", "1", "--attach", "multi"]));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(
        finished.stdout.contains("count to floor") && finished.stdout.contains(" ns"),
        "{}",
        finished.stdout
    );
    for wrong in [["--rounds", "0"], ["--rounds", "x"], ["--attach", "magic"]] {
        let finished = finish(&mut bench(&wrong));
        assert_eq!(finished.status, 2, "{}", finished.stderr);
        assert!(finished.stderr.contains(wrong[1]), "{}", finished.stderr);
    }
}

/// The number of processes whose program is in a folder.
fn programs_in(folder: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap_or_else(|e| panic!("{e}")).filter_map(Result::ok);
    let programs = processes.filter_map(|process| fs::read_link(process.path().join("exe")).ok());
    programs.filter(|program| program.starts_with(folder)).count()
}

#[bpf_test(alone)]
fn a_signal_ends_it_and_leaves_nothing_behind() {
    for (signal, status, while_measuring) in [(Signal::SIGTERM, 143, false), (Signal::SIGINT, 130, true)] {
        let folder = fixtures::folder();
        let files = || fs::read_dir(folder.path()).unwrap_or_else(|e| panic!("{e}")).count();
        let mut talk =
            Talk::start(bench(&["--rounds", "9000", "--attach", "multi"]).env("TMPDIR", folder.path()));
        until(PATIENCE, "it has begun", || {
            let has_begun = if while_measuring { programs_in(folder.path()) > 0 } else { files() > 0 };
            has_begun.then_some(())
        });
        talk.signal(signal);
        assert_eq!(talk.end(), status, "{signal}: {}", talk.stderr());
        assert_eq!((files(), programs_in(folder.path())), (0, 0), "{signal}");
        // on a busy machine it may have got this far by then
        let said = talk.stderr().replace("gpuprobe: measuring for about 362 s\n", "");
        assert_eq!((said.as_str(), talk.printed()), ("", Vec::new()), "{signal}");
    }
}

#[bpf_test(alone)]
fn a_closed_pipe_is_no_failure() {
    let program = shown(fixtures::gpuprobe());
    for form in ["", "--json"] {
        let script =
            format!("{{ {program} bench --rounds 1 --attach multi {form}; echo status $? >&2; }} | true");
        let finished = finish(Command::new("sh").args(["-c", &script]));
        assert_eq!(finished.stderr, "gpuprobe: measuring for about 2 s\nstatus 0\n");
    }
}

#[bpf_test(alone)]
fn another_tracer_is_measured_and_stopped() {
    let folder = fixtures::folder();
    let interrupted = shown(folder.path().join("interrupted"));
    // our own tracer, for which the library is an ordinary file with a function to hook
    let (program, hooks) = (shown(fixtures::gpuprobe()), shown(folder.path().join("hooks.toml")));
    let hook = "[[hook]]\nlibrary = \"measured*\"\nfunction = \"cuCtxSynchronize\"\n";
    fs::write(&hooks, hook).unwrap_or_else(|e| panic!("{e}"));
    let trace = format!("{program} trace --json --hooks {hooks} -p $GPUPROBE_LIBRARY -e cuCtxSynchronize");
    // the tests may run in the background of a script, where SIGINT is ignored and a shell cannot trap it
    let script = shown(folder.path().join("other.sh"));
    fs::write(&script, format!("trap 'echo >{interrupted}' INT; {trace} >/dev/null\n"))
        .unwrap_or_else(|e| panic!("{e}"));
    let other = format!("exec env --default-signal=INT sh {script}");
    let words = ["--json", "--attach", "multi", "--rounds", "3", "--beside", &other];
    let finished = finish_within(LIMIT, &mut bench(&words));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    let report: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {}", finished.stdout));
    let ratio = mode(&report, "other")["ratio"]["median"].as_f64();
    assert!(ratio.is_some_and(|ratio| ratio > 0.9), "{report}");
    let targets = report["tiers"][0]["targets"].as_array().map(Vec::len);
    assert_eq!(targets, Some(11), "{report}");
    assert!(fs::exists(&interrupted).unwrap_or(false), "it got no SIGINT: {}", finished.stderr);
    let finished = finish(&mut bench(&["--attach", "multi", "--rounds", "1", "--beside", "exit 3"]));
    assert_eq!(finished.status, 1);
    assert!(
        finished.stderr.contains("the command of --beside has exited (exit status: 3)"),
        "{}",
        finished.stderr
    );
}
