//! The tiers: the ways to attach probes. A test must pass on all of them.

use std::sync::LazyLock;

use crate::process::{finish, gpuprobe};

/// Best first.
const TIERS: [&str; 3] = ["session", "multi", "perf"];

/// The best tier of this host, named by `doctor`.
pub fn best() -> &'static str {
    here()[0]
}

/// The tiers of this host: the one that `doctor` names and all below it.
pub fn here() -> &'static [&'static str] {
    static HERE: LazyLock<&[&str]> = LazyLock::new(|| {
        let doctor = finish(&mut gpuprobe(&["doctor"])).stdout;
        let named = doctor.lines().find_map(|line| line.strip_prefix("attach by ")).map(str::trim);
        let best = TIERS.iter().position(|tier| named == Some(*tier));
        &TIERS[best.unwrap_or_else(|| panic!("doctor names no tier: {doctor}"))..]
    });
    *HERE
}

/// The options that select a tier and its functions: all functions, or on `perf` only these, because there the Linux
/// kernel takes a fifth of a second to remove the probes of each.
pub fn options<'a>(tier: &'a str, functions: &[&'a str]) -> Vec<&'a str> {
    let functions = if tier == "perf" { functions } else { &["*"] };
    let chosen = functions.iter().flat_map(|function| ["-e", function]);
    ["--attach", tier].into_iter().chain(chosen).collect()
}
