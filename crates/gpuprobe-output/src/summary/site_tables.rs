//! The sections about launches and waits by call site, for recordings with stacks of calls.

use gpuprobe_analysis::{CallsBySite, SiteCalls};

use super::layout::{NameTable, SummaryOptions, line, name};
use super::quality::{Quality, marked};
use crate::units::{count, duration, printable};

/// The call sites with most launches and with most waiting time.
pub(super) fn tables(out: &mut String, calls: &CallsBySite, options: &SummaryOptions, quality: Quality) {
    let of_process = |site: &SiteCalls| match calls.has_several_processes() {
        true => format!("{} {}: {}", site.pid, printable(&site.process), name(&site.call_site)),
        false => name(&site.call_site),
    };
    let title = marked("launches, by call site", quality);
    table(out, &[&title, "launches"], &calls.launches, options, |site| {
        vec![of_process(site), site.launches.to_string()]
    });
    let title = marked("waiting, by call site", quality);
    table(out, &[&title, "calls", "time"], &calls.waits, options, |site| {
        vec![of_process(site), site.waits.to_string(), duration(site.waiting_ns)]
    });
}

fn table(
    out: &mut String,
    titles: &[&str],
    sites: &[SiteCalls],
    options: &SummaryOptions,
    cells: impl Fn(&SiteCalls) -> Vec<String>,
) {
    if sites.is_empty() {
        return;
    }
    let (shown, more) = sites.split_at(sites.len().min(options.few()));
    let mut table = NameTable::new(titles, &[], &[]);
    shown.iter().for_each(|site| table.push(cells(site)));
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        line(out, format_args!("and {}", count(more.len() as u64, "other call site", "other call sites")));
    }
}
