//! The ways to attach. What is true on one must be true on all.

use std::sync::LazyLock;

use crate::process::{finish, gpuprobe};

/// All of them, best first.
const TIERS: [&str; 3] = ["session", "multi", "perf"];

/// The best of those that work here, which `doctor` names.
pub fn best() -> &'static str {
    here()[0]
}

/// Those that work here: the one that `doctor` names and all below it.
pub fn here() -> &'static [&'static str] {
    static HERE: LazyLock<&[&str]> = LazyLock::new(|| {
        let doctor = finish(&mut gpuprobe(&["doctor"])).stdout;
        let named = doctor.lines().find_map(|line| line.strip_prefix("attach by ")).map(str::trim);
        let best = TIERS.iter().position(|tier| named == Some(*tier));
        &TIERS[best.unwrap_or_else(|| panic!("doctor names no way to attach: {doctor}"))..]
    });
    *HERE
}

/// The options that attach in one of these ways: to everything, or on `perf` to these functions alone, because there
/// each takes the kernel a fifth of a second to let go of.
pub fn options<'a>(tier: &'a str, functions: &[&'a str]) -> Vec<&'a str> {
    let functions = if tier == "perf" { functions } else { &["*"] };
    let chosen = functions.iter().flat_map(|function| ["-e", function]);
    ["--attach", tier].into_iter().chain(chosen).collect()
}
