//! `gpuprobe report`: prints the summary of a recorded trace, or writes it as JSON or as an HTML page.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use gpuprobe_analysis::{Replay, ReplayReport};
use gpuprobe_output::report::{Source, html};
use gpuprobe_output::units::count;
use gpuprobe_output::{SummaryOptions, filter_line, report_json, summary};

use crate::cli::ReportArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::input::{TraceInput, create};

/// Traces of this format and later ones have internal calls only if the user selected them.
const INTERNAL_ON_REQUEST: u32 = 3;

pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    let mut input = TraceInput::open_filtered(&args.trace, args.filter.filter(args.to)?)?;
    let meta = input.reader.meta().clone();
    let mut replay = if args.html.is_some() { Replay::with_calls() } else { Replay::default() };
    let ending = input.for_each_event(|event| {
        replay.feed(event);
        Ok(())
    })?;
    input.end_progress();
    let mut report = replay.finish(ending.end.as_ref());
    if ending.filtered.as_ref().is_some_and(|filtered| filtered.has_partial_streams) {
        report.summary.remove_gaps();
    }
    let filter = ending.filtered.as_ref().map(filter_line);
    if args.html.is_none() && !args.json {
        let hides_internal = meta.format < INTERNAL_ON_REQUEST;
        let options = SummaryOptions { hides_internal, ..args.summary.options(std::io::stdout()) };
        let filter = filter.map(|line| format!("{line}\n\n")).unwrap_or_default();
        print(&format!("{filter}{}", summary(&report.summary, &options)))?;
    } else {
        let name = args.trace.to_string_lossy();
        let mut missing = ending.missing(input.damaged());
        missing.extend(ending.broken.as_ref().map(|error| format!("{error:#}")));
        // in JSON the filter has its own key
        missing.extend(filter.filter(|_| !args.json));
        let source = Source { name: &name, meta: &meta, end: ending.end.as_ref(), missing: &missing };
        match &args.html {
            Some(path) => write(path, &args.trace, &html(&report, &source), &report)?,
            None => print(&report_json(&report.summary, &source, ending.filtered.as_ref()))?,
        }
    }
    ending.print_missing(input.damaged());
    ending.broken.map_or(Ok(0), Err)
}

fn write(path: &Path, trace: &Path, page: &str, report: &ReplayReport) -> Result<()> {
    if path.as_os_str() == "-" {
        return print(page);
    }
    let cannot = || format!("cannot write {}", path.display());
    let mut output = create(path, trace)?;
    output.file.write_all(page.as_bytes()).with_context(cannot)?;
    output.complete().with_context(cannot)?;
    note!("wrote {} ({})", path.display(), count(report.summary.calls, "call", "calls"));
    Ok(())
}
