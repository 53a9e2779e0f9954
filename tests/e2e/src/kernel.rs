//! What the kernel holds for a process, and what it holds at all.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

/// The links that a process holds, by their ids.
pub fn links_of(pid: u32) -> BTreeSet<u64> {
    ids_of(pid, "link_id:")
}

/// The BPF programs that a process holds, by their ids.
pub fn programs_of(pid: u32) -> BTreeSet<u64> {
    ids_of(pid, "prog_id:")
}

fn ids_of(pid: u32, field: &str) -> BTreeSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten();
    let id = |text: String| text.lines().find_map(|l| l.strip_prefix(field)?.trim().parse().ok());
    entries.filter_map(|entry| id(fs::read_to_string(entry.ok()?.path()).ok()?)).collect()
}

/// Every link that the kernel has, by its own tool; nothing where that is not there.
pub fn links() -> Option<BTreeSet<u64>> {
    listed("link")
}

/// Every program that it has.
pub fn programs() -> Option<BTreeSet<u64>> {
    listed("prog")
}

fn listed(what: &str) -> Option<BTreeSet<u64>> {
    let output = Command::new("bpftool").args(["-j", what]).output().ok()?;
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).ok()?;
    Some(all.iter().filter_map(|l| l["id"].as_u64()).collect())
}
