//! Live memory by process and call site, the largest first, with its growth.

use std::collections::HashMap;

use gpuprobe_analysis::{CallSiteMemory, ProcessCallSites, Snapshot};

use super::process_lines::{line, process_line};
use crate::memory_view::{growth, other_sites};
use crate::table::{Align, rows};
use crate::units::{bytes, count, fitted, printable};

/// Call sites shown per process. The rest is summed up in one line.
const MOST_SITES: usize = 10;
/// Longer names of call sites are shortened.
const LONGEST_NAME: usize = 100;

pub(super) fn by_call_site(out: &mut String, snapshot: &Snapshot) {
    out.push_str("live memory by call site:\n");
    let running = snapshot.processes.iter().filter(|process| process.exited_at_ns.is_none());
    let running: HashMap<_, _> = running.map(|process| (process.pid, process)).collect();
    let is_shown = |process: &&ProcessCallSites| !process.has_exited && process.live.count > 0;
    for process in snapshot.call_sites.iter().filter(is_shown) {
        let unknown = || format!("process {} ({})", process.pid, printable(&process.name));
        let name = running.get(&process.pid).map_or_else(unknown, |process| process_line(process));
        line(out, format_args!("{name}: {}", totals(process)));
        sites(out, process);
    }
    out.push('\n');
}

fn totals(process: &ProcessCallSites) -> String {
    let allocations = count(process.live.count, "allocation", "allocations");
    let mut text = format!("{} live in {allocations}", bytes(process.live.bytes));
    let suspects = process.call_sites.iter().filter(|site| site.is_suspect()).count() as u64;
    if suspects > 0 {
        text += &format!(", {}", count(suspects, "leak suspect", "leak suspects"));
    }
    text
}

fn sites(out: &mut String, process: &ProcessCallSites) {
    // suspects come first, the others by live memory
    let live = process.call_sites.iter().filter(|site| site.live.count > 0);
    let shown: Vec<&CallSiteMemory> = live.take(MOST_SITES).collect();
    if !shown.is_empty() {
        let titles = ["live", "allocations", "growth", "verdict", "call site"].map(str::to_owned).to_vec();
        let row = |site: &&CallSiteMemory| {
            vec![
                bytes(site.live.bytes),
                site.live.count.to_string(),
                growth(&site.judgement),
                site.judgement.verdict.as_str().to_owned(),
                fitted(&printable(&site.name), LONGEST_NAME).into_owned(),
            ]
        };
        let table: Vec<_> = std::iter::once(titles).chain(shown.iter().map(row)).collect();
        rows(out, "\t", &[Align::Right, Align::Right, Align::Right, Align::Left, Align::Left], &table);
    }
    if let Some(text) = other_sites(process, MOST_SITES) {
        line(out, format_args!("\t{text}"));
    }
}
