//! The classic display of the daemon: a block of plain text every few seconds.
//!
//! The output is fixed byte for byte, except for memory by call site. Crates for sizes, durations and dates choose other units, separators or rounding,
//! so [`crate::units`] and [`crate::timestamp`] write them.

mod by_call_site;
mod gpu_ops;
mod gpus;
mod process_lines;
mod rates;

use std::collections::{BTreeMap, BTreeSet};

use by_call_site::by_call_site;
use gpuprobe_analysis::snapshot::{Failure, FunctionCounts, LiveAllocation};
use gpuprobe_analysis::{ProcessSnapshot, Snapshot};
pub use gpus::gpus_compared;
use process_lines::{line, process_line, processes_line, whereabouts};
use rates::Rates;

use crate::gpu_op_text::failed;
use crate::sampled::{mark_of, sampled_line};
use crate::timestamp::timestamp;
use crate::units::{count, duration};

const RULE: &str = "========================";
/// Addresses shown per process. The rest is summed up in one line and not remembered.
const MOST_ADDRESSES: usize = 1000;

/// Which sections are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Allocations and frees (`--memleak`).
    pub memory: bool,
    /// Launches (`--cudatrace`).
    pub launches: bool,
    /// Copies (`--bandwidth-util`).
    pub copies: bool,
}

impl Sections {
    /// All sections, and the parts that belong to no section.
    pub const ALL: Self = Self { memory: true, launches: true, copies: true };
}

/// The display. It remembers the addresses it has shown, so that a freed address is shown with 0 bytes for as long as
/// its process is shown. It also remembers the bytes copied up to the previous block, for rates.
#[derive(Debug)]
pub struct Classic {
    sections: Sections,
    /// Show each live address, as the original display does.
    addresses: bool,
    utc_offset_seconds: i32,
    shown: BTreeMap<(u32, u64), BTreeSet<u64>>,
    rates: Rates,
}

impl Classic {
    /// A display of these sections, with times at this offset from UTC. Memory is shown by call site.
    pub fn new(sections: Sections, utc_offset_seconds: i32) -> Self {
        Self {
            sections,
            addresses: false,
            utc_offset_seconds,
            shown: BTreeMap::new(),
            rates: Rates::default(),
        }
    }

    /// Shows memory by address instead, exactly as the original display does.
    #[must_use]
    pub fn with_addresses(self, addresses: bool) -> Self {
        Self { addresses, ..self }
    }

    /// Sets the state from which the rates of the first block are computed.
    pub fn begin(&mut self, snapshot: &Snapshot) {
        self.rates.take(snapshot);
    }

    /// Renders the next block.
    pub fn render(&mut self, snapshot: &Snapshot) -> String {
        let time = timestamp(snapshot.unix_seconds, self.utc_offset_seconds);
        let mut out = format!("{RULE}\n{time}\n\n");
        self.rates.take(snapshot);
        gpus::gpus(&mut out, snapshot);
        if self.sections.memory {
            self.memory(&mut out, snapshot);
        }
        if self.sections.launches {
            gpu_ops::launches(&mut out, snapshot);
        }
        if self.sections.copies {
            gpu_ops::copies(&mut out, snapshot, &self.rates);
        }
        if self.sections == Sections::ALL {
            gpu_ops::gaps(&mut out, snapshot);
            gpu_ops::advised(&mut out, snapshot, &self.rates);
            calls(&mut out, snapshot);
        }
        gpu_ops::ioctls(&mut out, snapshot);
        if self.sections.memory {
            unexplained(&mut out, snapshot);
        }
        failures(&mut out, snapshot);
        sampled(&mut out, snapshot);
        losses(&mut out, snapshot);
        skipped(&mut out, snapshot);
        out.push_str(RULE);
        out.push('\n');
        out
    }

    fn memory(&mut self, out: &mut String, snapshot: &Snapshot) {
        let totals = snapshot.totals;
        let lines = [
            ("num_successful_mallocs:", totals.allocations),
            ("num_failed_mallocs:", totals.failed_allocations),
            ("num_successful_frees:", totals.frees),
            ("num_failed_frees:", totals.failed_frees),
        ];
        for (name, n) in lines {
            line(out, format_args!("{name:<25}{n}"));
        }
        let live = (totals.live_bytes, totals.live_allocations);
        let kind = if self.addresses { "leaked from" } else { "live in" };
        line(out, format_args!("{} bytes {kind} {} cuda memory allocation(s)", live.0, live.1));
        if totals.freed_with_context_allocations > 0 {
            let ended = (totals.freed_with_context_bytes, totals.freed_with_context_allocations);
            line(
                out,
                format_args!(
                    "{} bytes ended with the context or process of {} cuda memory allocation(s)",
                    ended.0, ended.1
                ),
            );
        }
        match self.addresses {
            true => self.memory_maps(out, snapshot),
            false => by_call_site(out, snapshot),
        }
    }

    fn memory_maps(&mut self, out: &mut String, snapshot: &Snapshot) {
        out.push_str("per-process memory maps:\n");
        let mut shown = BTreeMap::new();
        for process in &snapshot.processes {
            let key = (process.pid.0, process.instance);
            let known = self.shown.remove(&key).unwrap_or_default();
            let known = memory_map(out, process, known);
            if !known.is_empty() {
                shown.insert(key, known);
            }
        }
        // this forgets processes that are no longer in the snapshot
        self.shown = shown;
        out.push('\n');
    }
}

fn calls(out: &mut String, snapshot: &Snapshot) {
    out.push_str("calls per function:\n");
    for process in &snapshot.processes {
        functions(out, snapshot, &process_line(process), &process.functions);
    }
    for past in &snapshot.past {
        functions(out, snapshot, &processes_line(past), &past.functions);
    }
    out.push('\n');
}

/// Failed calls by function and error. Writes nothing if no call failed.
fn failures(out: &mut String, snapshot: &Snapshot) {
    let running = snapshot.processes.iter().map(|process| (process_line(process), &process.failures));
    let past = snapshot.past.iter().map(|past| (processes_line(past), &past.failures));
    let mut failed = running.chain(past).filter(|(_, failures)| !failures.is_empty()).peekable();
    if failed.peek().is_none() {
        return;
    }
    out.push_str("failures per function:\n");
    for (process, failures) in failed {
        line(out, format_args!("{process}"));
        for Failure { function, error, count, .. } in failures {
            line(out, format_args!("\t{function}: {count} {error}"));
        }
    }
    out.push('\n');
}

fn functions(out: &mut String, snapshot: &Snapshot, process: &str, functions: &[FunctionCounts]) {
    let mut called = functions.iter().filter(|f| f.calls > 0 && !f.is_system_call()).peekable();
    if called.peek().is_some() {
        line(out, format_args!("{process}"));
    }
    called.for_each(|f| function(out, f, mark_of(snapshot, f.api, f.function)));
}

/// The addresses of one process. Returns the addresses to remember.
fn memory_map(out: &mut String, process: &ProcessSnapshot, known: BTreeSet<u64>) -> BTreeSet<u64> {
    let live: &[LiveAllocation] = if process.exited_at_ns.is_some() { &[] } else { &process.allocations };
    // `live` is sorted by address, so `rest` lies above all listed addresses
    let (listed, rest) = live.split_at(live.len().min(MOST_ADDRESSES));
    let mut sizes: BTreeMap<u64, u64> = listed.iter().map(|a| (a.ptr, a.bytes)).collect();
    let is_live = |ptr: &u64| live.binary_search_by_key(ptr, |a| a.ptr).is_ok();
    // live addresses come first, then as many freed ones as there is room for
    let room = MOST_ADDRESSES - listed.len();
    let freed: Vec<u64> = known.into_iter().filter(|ptr| !is_live(ptr)).take(room).collect();
    sizes.extend(freed.into_iter().map(|ptr| (ptr, 0)));
    if sizes.is_empty() {
        return BTreeSet::new();
    }
    line(out, format_args!("process {}{}", process.pid, whereabouts(process)));
    for (ptr, bytes) in &sizes {
        line(out, format_args!("\t{ptr:#018x}: {bytes} Bytes"));
    }
    if !rest.is_empty() {
        let bytes = rest.iter().map(|a| a.bytes).fold(0, u64::saturating_add);
        line(out, format_args!("\tand {} more: {bytes} Bytes", rest.len()));
    }
    sizes.into_keys().collect()
}

fn function(out: &mut String, f: &FunctionCounts, mark: &str) {
    let mut text = format!("\t{}: {mark}{}", f.function, count(f.calls, "call", "calls"));
    text += &failed(f.errors);
    if f.bytes > 0 {
        text += &format!(", {mark}{} Bytes", f.bytes);
    }
    if let Some(mean) = f.total_ns.checked_div(f.calls).filter(|_| !f.is_instant) {
        text += &format!(", mean {}", duration(mean));
    }
    line(out, format_args!("{text}"));
}

/// Frees of unknown memory, and allocations at an address that was still live. Writes nothing if there are none.
fn unexplained(out: &mut String, snapshot: &Snapshot) {
    let (frees, replaced) = (snapshot.totals.unknown_frees, snapshot.totals.replaced);
    if frees > 0 || replaced > 0 {
        line(
            out,
            format_args!(
                "frees of memory not seen allocated: {frees}, allocations where a free was missed: {replaced}"
            ),
        );
    }
}

fn sampled(out: &mut String, snapshot: &Snapshot) {
    for function in snapshot.budget.iter().flat_map(|budget| &budget.sampled) {
        line(out, format_args!("{}", sampled_line(function)));
    }
}

fn losses(out: &mut String, snapshot: &Snapshot) {
    for loss in snapshot.losses.iter().filter(|l| l.count > 0) {
        line(out, format_args!("lost {} {}: {}", loss.count, loss.cause.as_str(), loss.cause.meaning()));
    }
}

fn skipped(out: &mut String, snapshot: &Snapshot) {
    for skipped in snapshot.skipped.iter().filter(|s| s.files > 0) {
        line(out, format_args!("not probed {} {}: -v names the files", skipped.files, skipped.reason));
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{SiteId, Space};

    use super::*;
    use crate::test_processes;

    fn snapshot(ptrs: impl Iterator<Item = u64>) -> Snapshot {
        let live = |ptr| LiveAllocation {
            ptr,
            bytes: 2,
            kind: Space::Device,
            gpu: None,
            since_ns: 0,
            site: SiteId::UNKNOWN,
        };
        let process =
            ProcessSnapshot { allocations: ptrs.map(live).collect(), ..test_processes::process(7, "app") };
        Snapshot { processes: vec![process.into()], ..Snapshot::default() }
    }

    fn addresses(block: &str) -> Vec<&str> {
        block.lines().filter_map(|l| l.strip_prefix('\t')).collect()
    }

    #[test]
    fn allocations_beyond_the_limit_are_summed_up() {
        let most = MOST_ADDRESSES as u64;
        let mut classic = Classic::new(Sections::ALL, 0).with_addresses(true);
        let block = classic.render(&snapshot(1..=most + 3));
        let lines = addresses(&block);
        assert_eq!(lines.len(), MOST_ADDRESSES + 1);
        assert_eq!(lines[0], "0x0000000000000001: 2 Bytes");
        assert_eq!(lines[MOST_ADDRESSES], "and 3 more: 6 Bytes");

        // new live addresses replace freed ones, and no more than the limit is remembered
        let block = classic.render(&snapshot(most + 1..=2 * most - 1));
        let lines = addresses(&block);
        assert_eq!(lines.len(), MOST_ADDRESSES);
        assert_eq!(lines[..2], ["0x0000000000000001: 0 Bytes", "0x00000000000003e9: 2 Bytes"]);
        assert_eq!(classic.shown[&(7, 1)].len(), MOST_ADDRESSES);
    }

    #[test]
    fn an_address_used_again_shows_its_new_size() {
        let mut classic = Classic::new(Sections::ALL, 0).with_addresses(true);
        classic.render(&snapshot([16].into_iter()));
        assert_eq!(addresses(&classic.render(&snapshot([].into_iter()))), ["0x0000000000000010: 0 Bytes"]);
        assert_eq!(addresses(&classic.render(&snapshot([16].into_iter()))), ["0x0000000000000010: 2 Bytes"]);
    }

    #[test]
    fn unexplained_frees_and_allocations_are_reported_in_one_line() {
        let mut snapshot = snapshot([16].into_iter());
        let says = |snapshot: &Snapshot| {
            let block = Classic::new(Sections::ALL, 0).render(snapshot);
            block.lines().find(|l| l.starts_with("frees of")).map(str::to_owned)
        };
        assert_eq!(says(&snapshot), None);
        (snapshot.totals.unknown_frees, snapshot.totals.replaced) = (3, 1);
        let line = "frees of memory not seen allocated: 3, allocations where a free was missed: 1";
        assert_eq!(says(&snapshot).as_deref(), Some(line));
    }

    #[test]
    fn a_process_that_is_no_longer_in_the_snapshot_is_forgotten() {
        let mut classic = Classic::new(Sections::ALL, 0).with_addresses(true);
        classic.render(&snapshot([16].into_iter()));
        classic.render(&Snapshot::default());
        assert!(classic.shown.is_empty());
    }
}
