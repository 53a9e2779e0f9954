//! `gpuprobe report`: prints the summary of a recorded trace, or writes it as JSON or as an HTML page.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gpuprobe_analysis::ranks::Stragglers;
use gpuprobe_analysis::{Filtered, Replay, ReplayReport};
use gpuprobe_event::trace::Meta;
use gpuprobe_output::report::{Source, html};
use gpuprobe_output::units::count;
use gpuprobe_output::{SummaryOptions, filter_line, report_json, summary};

use crate::cli::ReportArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::input::{TraceInput, create};
use crate::trace_file::several::SeveralTraces;

/// Traces of this format and later ones have internal calls only if the user selected them.
const INTERNAL_ON_REQUEST: u32 = 3;

pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    match args.traces.as_slice() {
        [trace] => of_one(trace, args),
        several => of_several(several, args),
    }
}

fn of_one(trace: &Path, args: &ReportArgs) -> Result<u8> {
    let mut input = TraceInput::open_filtered(trace, args.filter.filter(args.to)?)?;
    let meta = input.reader.meta().clone();
    let mut replay = new_replay(args);
    let ending = input.for_each_event(|event| {
        replay.feed(event);
        Ok(())
    })?;
    input.end_progress();
    let mut report = replay.finish(ending.end.as_ref());
    let mut missing = ending.missing(input.damaged());
    missing.extend(ending.broken.as_ref().map(|error| format!("{error:#}")));
    let name = trace.to_string_lossy();
    let source = Source { name: &name, meta: &meta, end: ending.end.as_ref(), missing: &missing };
    show(args, &mut report, &source, ending.filtered.as_ref())?;
    ending.print_missing(input.damaged());
    ending.broken.map_or(Ok(0), Err)
}

fn of_several(traces: &[PathBuf], args: &ReportArgs) -> Result<u8> {
    let traces = SeveralTraces::align(traces, args.filter.filter(args.to)?)?;
    let mut stragglers = Stragglers::new(&traces.alignment);
    let mut replay = new_replay(args);
    let endings = traces.for_each_event(|mut event| {
        stragglers.feed(&event);
        traces.alignment.rename(&mut event, false);
        replay.feed(event);
        Ok(())
    })?;
    let mut report = replay.finish(Some(&endings.end));
    let (ranks, collectives) = stragglers.finish();
    (report.summary.ranks, report.summary.collectives) = (Some(Box::new(ranks)), collectives);
    let meta = Meta { format: traces.format(), ..traces.meta() };
    let name = traces.names();
    let source = Source { name: &name, meta: &meta, end: Some(&endings.end), missing: &endings.missing };
    show(args, &mut report, &source, endings.filtered.as_ref())?;
    endings.print_missing();
    endings.broken.map_or(Ok(0), Err)
}

fn new_replay(args: &ReportArgs) -> Replay {
    if args.html.is_some() { Replay::with_calls() } else { Replay::default() }
}

fn show(
    args: &ReportArgs,
    report: &mut ReplayReport,
    source: &Source<'_>,
    filtered: Option<&Filtered>,
) -> Result<()> {
    if filtered.is_some_and(|filtered| filtered.has_partial_streams) {
        report.summary.remove_gaps();
    }
    let filter = filtered.map(filter_line);
    if args.html.is_none() && !args.json {
        let hides_internal = source.meta.format < INTERNAL_ON_REQUEST;
        let options = SummaryOptions { hides_internal, ..args.summary.options(std::io::stdout()) };
        let filter = filter.map(|line| format!("{line}\n\n")).unwrap_or_default();
        return print(&format!("{filter}{}", summary(&report.summary, &options)));
    }
    let mut missing = source.missing.to_vec();
    // in JSON the filter has its own key
    missing.extend(filter.filter(|_| !args.json));
    let source = Source { missing: &missing, ..*source };
    match &args.html {
        Some(path) => write(path, &args.traces, &html(report, &source), report),
        None => print(&report_json(&report.summary, &source, filtered)),
    }
}

fn write(path: &Path, traces: &[PathBuf], page: &str, report: &ReplayReport) -> Result<()> {
    if path.as_os_str() == "-" {
        return print(page);
    }
    let cannot = || format!("cannot write {}", path.display());
    let mut output = create(path, traces)?;
    output.file.write_all(page.as_bytes()).with_context(cannot)?;
    output.complete().with_context(cannot)?;
    note!("wrote {} ({})", path.display(), count(report.summary.calls, "call", "calls"));
    Ok(())
}
