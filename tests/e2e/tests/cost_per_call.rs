//! What a call costs, as `gpuprobe bench` measures it. Bounds that hold on a busy machine too: the figures are in
//! docs/performance.md.

use std::process::Command;

use gpuprobe_e2e::process::{finish, gpuprobe};
use gpuprobe_e2e::{alone, needs, tiers};
use serde_json::Value;

const ROUNDS: u64 = 40;
const CALLS_PER_ROUND: u64 = 1000;
/// Rounds before those that are measured.
const WARM_UP: u64 = 5;
/// How many times the cost of empty probes a mode may have.
const MOST: f64 = 2.5;

fn bench(options: &[&str]) -> Command {
    gpuprobe(&[&["bench"], options].concat())
}

fn mode<'a>(report: &'a Value, name: &str) -> &'a Value {
    let modes = report["modes"].as_array().unwrap_or_else(|| panic!("{report}"));
    modes.iter().find(|mode| mode["name"] == name).unwrap_or_else(|| panic!("{name} in {report}"))
}

#[test]
fn every_mode_is_measured_on_every_tier_and_sees_every_call() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    for tier in tiers::here() {
        let finished = finish(&mut bench(&["--json", "--attach", tier, "--rounds", &ROUNDS.to_string()]));
        assert_eq!(finished.status, 0, "{}", finished.stderr);
        let report: Value =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {}", finished.stdout));
        assert_eq!((&report["tier"], &report["rounds"]), (&(*tier).into(), &ROUNDS.into()));
        for (name, floor, counts) in [
            ("none", Value::Null, false),
            ("floor", Value::Null, false),
            ("count", "floor".into(), true),
            ("stream", "floor".into(), true),
            ("none_pair", Value::Null, false),
            ("floor_pair", Value::Null, false),
            ("memory", "floor_pair".into(), true),
        ] {
            let mode = mode(&report, name);
            let made = Value::from((WARM_UP + ROUNDS) * CALLS_PER_ROUND);
            assert_eq!((&mode["floor"], &mode["made"]), (&floor, &made), "{mode}");
            assert_eq!(mode["seen"], if counts { made } else { Value::Null }, "{mode}");
            assert!(mode["ns"]["median"].as_f64().is_some_and(|ns| ns > 0.0), "{mode}");
            let ratio = mode["ratio"]["median"].as_f64();
            assert_eq!(ratio.is_some(), !floor.is_null(), "{mode}");
            assert!(ratio.is_none_or(|ratio| ratio < MOST), "{tier}: {mode}");
        }
    }
}

#[test]
fn people_get_a_table_and_wrong_numbers_a_reason() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let finished = finish(&mut bench(&["--rounds", "1"]));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(
        finished.stdout.contains("to the floor") && finished.stdout.contains(" ns"),
        "{}",
        finished.stdout
    );
    for wrong in [["--rounds", "0"], ["--rounds", "x"], ["--attach", "magic"]] {
        let finished = finish(&mut bench(&wrong));
        assert_eq!(finished.status, 2, "{}", finished.stderr);
        assert!(finished.stderr.contains(wrong[1]), "{}", finished.stderr);
    }
}
