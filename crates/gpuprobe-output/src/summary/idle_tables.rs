//! The idle time of streams, from a wait to the next submission, and what the host did meanwhile.

use gpuprobe_analysis::SummaryReport;
use gpuprobe_event::Class;

use super::layout::{NameTable, SummaryOptions, line};
use super::quality::{Quality, marked};
use crate::gpu_op_text::stream;
use crate::kmod_text::per_cent;
use crate::sampled::recorded_mark_of_classes;
use crate::units::{count, duration};

/// Functions that end the idle time of a stream, or begin it.
const SUBMITTING: [Class; 5] = [Class::Launch, Class::GraphLaunch, Class::Memcpy, Class::Memset, Class::Sync];

pub(super) fn idle(out: &mut String, report: &SummaryReport, options: &SummaryOptions, quality: Quality) {
    if report.idle.streams.is_empty() {
        return;
    }
    if !recorded_mark_of_classes(&report.sampled, &SUBMITTING).is_empty() {
        out.push('\n');
        line(
            out,
            format_args!("idle times of streams are not known: functions that submit work were sampled"),
        );
        return;
    }
    let streams = &report.idle.streams;
    let (shown, more) = streams.split_at(streams.len().min(options.few()));
    let titles = [
        &marked("idle streams (after a wait for them)", quality),
        "times",
        "idle",
        "of recording",
        "of its use",
    ];
    let mut table = NameTable::new(&titles, &[], &["of its use"]);
    let has_several = streams.iter().any(|row| row.tgid != streams[0].tgid);
    for row in shown {
        let process = if has_several { format!("{}: ", row.tgid) } else { String::new() };
        table.push(vec![
            format!("{process}{}", stream(row.stream)),
            row.times.to_string(),
            duration(row.idle_ns),
            per_cent(row.idle_ns, report.span_ns()),
            per_cent(row.idle_ns, row.last_ns.saturating_sub(row.first_ns)),
        ]);
    }
    out.push('\n');
    table.write(out, options);
    if !more.is_empty() {
        line(out, format_args!("and {}", count(more.len() as u64, "more stream", "more streams")));
    }
    by_host(out, report, options);
}

/// By what the host did.
fn by_host(out: &mut String, report: &SummaryReport, options: &SummaryOptions) {
    let groups = &report.idle.by_host;
    let (shown, more) = groups.split_at(groups.len().min(options.few()));
    let mut table = NameTable::new(&["  meanwhile the host was", "times", "idle", "longest"], &[], &[]);
    for row in shown {
        let host = row.host.map_or_else(|| "outside CUDA".to_owned(), |name| format!("in {name}"));
        table.push(vec![
            format!("  {host}"),
            row.times.to_string(),
            duration(row.idle_ns),
            duration(row.longest_ns),
        ]);
    }
    table.write(out, options);
    if !more.is_empty() {
        let ns = more.iter().fold(0, |sum: u64, row| sum.saturating_add(row.idle_ns));
        let functions = count(more.len() as u64, "other function", "other functions");
        line(out, format_args!("and in {functions}: {}", duration(ns)));
    }
}
