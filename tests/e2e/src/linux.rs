//! Processes, BPF links and programs, the code of mapped libraries, and the log of the Linux kernel.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use nix::libc::O_NONBLOCK;
use serde_json::Value;

use crate::process::{PATIENCE, until};

/// The running children of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The descendant of a process with this name, by its pid on the host.
pub fn descendant(root: u32, name: &str) -> u32 {
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let entries = || fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    until(PATIENCE, name, || {
        entries().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
            let is_it = fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
            is_it && std::iter::successors(Some(*pid), |pid| parent(*pid)).take(16).any(|pid| pid == root)
        })
    })
}

/// The ids of the BPF links of a process and its children.
pub fn links_of(pid: u32) -> BTreeSet<u64> {
    ids_of(pid, "link_id:")
}

/// The ids of the BPF programs of a process and its children.
pub fn programs_of(pid: u32) -> BTreeSet<u64> {
    ids_of(pid, "prog_id:")
}

fn ids_of(pid: u32, field: &str) -> BTreeSet<u64> {
    let id = |text: String| text.lines().find_map(|l| l.strip_prefix(field)?.trim().parse().ok());
    let processes = children_of(pid).into_iter().chain([pid]);
    processes.flat_map(descriptors_of).filter_map(id).collect()
}

/// The fdinfo of each descriptor of a process.
fn descriptors_of(pid: u32) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten();
    entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
}

/// Whether any process of the host has user-space probes.
pub fn any_user_probes() -> bool {
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.flat_map(descriptors_of)
        .any(|text| text.contains("uprobe_multi") || text.contains("link_type:\tperf"))
}

/// Every BPF link of the host, listed by bpftool; `None` without bpftool.
pub fn links() -> Option<BTreeSet<u64>> {
    listed("link")
}

/// Every BPF program of the host.
pub fn programs() -> Option<BTreeSet<u64>> {
    listed("prog")
}

fn listed(what: &str) -> Option<BTreeSet<u64>> {
    Some(list(what)?.iter().filter_map(|l| l["id"].as_u64()).collect())
}

fn list(what: &str) -> Option<Vec<Value>> {
    let output = Command::new("bpftool").args(["-j", what]).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// Whether the Linux kernel counts how often BPF programs run.
const RUNS_ARE_COUNTED: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Counts how often BPF programs of a name run, from now on until this is dropped.
#[derive(Debug)]
pub struct ProgramRuns {
    name: String,
    before: u64,
    setting: String,
}

impl ProgramRuns {
    /// `None` if the Linux kernel cannot count, or without bpftool.
    pub fn of(name: &str) -> Option<Self> {
        let setting = fs::read_to_string(RUNS_ARE_COUNTED).ok()?;
        fs::write(RUNS_ARE_COUNTED, "1").ok()?;
        let mut runs = Self { name: name.to_owned(), before: 0, setting };
        runs.before = runs.all()?;
        Some(runs)
    }

    pub fn count(&self) -> u64 {
        let all = self.all().unwrap_or_else(|| panic!("bpftool does not list programs any more"));
        all - self.before
    }

    fn all(&self) -> Option<u64> {
        let programs = list("prog")?;
        let ours = programs.iter().filter(|program| program["name"] == self.name.as_str());
        Some(ours.filter_map(|program| program["run_cnt"].as_u64()).sum())
    }
}

impl Drop for ProgramRuns {
    fn drop(&mut self) {
        if let Err(error) = fs::write(RUNS_ARE_COUNTED, &self.setting) {
            eprintln!("{RUNS_ARE_COUNTED}: {error}");
        }
    }
}

/// The code of a library in a process, and the same code in the file.
#[derive(Debug)]
pub struct Code {
    memory: File,
    /// Address in memory, and the bytes in the file.
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Code {
    pub fn of(pid: u32, library: &Path) -> Self {
        let name = library.display().to_string();
        let maps =
            fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_else(|e| panic!("maps of {pid}: {e}"));
        let memory =
            File::open(format!("/proc/{pid}/mem")).unwrap_or_else(|e| panic!("memory of {pid}: {e}"));
        let file = fs::read(library).unwrap_or_else(|e| panic!("{name}: {e}"));
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let piece = |line: &str| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let (start, end, offset) = (hex(start)?, hex(end)?, hex(words.nth(1)?)?);
            // the last page extends beyond the end of the file
            Some((start as u64, file[offset..file.len().min(offset + end - start)].to_vec()))
        };
        let code = maps.lines().filter(|l| l.ends_with(&name) && l.contains(" r-xp "));
        let pieces: Vec<_> = code.filter_map(piece).collect();
        assert!(!pieces.is_empty(), "{name} is not mapped by {pid}:\n{maps}");
        Self { memory, pieces }
    }

    /// The number of bytes that differ from the file. A probe changes one.
    pub fn changed_bytes(&self) -> usize {
        let changed = |(start, original): &(u64, Vec<u8>)| {
            let mut bytes = vec![0; original.len()];
            self.memory
                .read_exact_at(&mut bytes, *start)
                .unwrap_or_else(|e| panic!("{:?}: {e}", self.memory));
            // nearly always nothing differs, and then this is quick
            if bytes == *original { 0 } else { bytes.iter().zip(original).filter(|(a, b)| a != b).count() }
        };
        self.pieces.iter().map(changed).sum()
    }
}

/// The log of the Linux kernel from now on.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    pub fn from_now() -> Self {
        let log = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg");
        let mut log = log.unwrap_or_else(|e| panic!("the kernel's log: {e}"));
        log.seek(SeekFrom::End(0)).unwrap_or_else(|e| panic!("the kernel's log: {e}"));
        Self(log)
    }

    /// The messages about probes that could not be removed, with the thread that tried.
    pub fn leaked_by(&mut self) -> Vec<(u32, String)> {
        let mut leaked = Vec::new();
        let mut record = [0; 8192];
        // each read returns one record, and fails after the last one
        while let Ok(length) = self.0.read(&mut record) {
            let text = String::from_utf8_lossy(&record[..length]).into_owned();
            let Some(who) = text.split_once(" failed to unregister").map(|(who, _)| who) else { continue };
            let thread = who.rsplit(':').next().and_then(|n| n.parse().ok());
            leaked.push((thread.unwrap_or_else(|| panic!("{text}")), text));
        }
        leaked
    }
}
