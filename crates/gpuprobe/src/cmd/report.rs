//! `gpuprobe report`: prints the summary of a recorded trace, or writes it as an HTML page.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use gpuprobe_analysis::{Replay, ReplayReport};
use gpuprobe_output::report::{Source, html};
use gpuprobe_output::units::count;
use gpuprobe_output::{SummaryOptions, summary};

use crate::cli::ReportArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::input::{TraceInput, create};

/// Traces of this format and later ones have internal calls only if the user selected them.
const INTERNAL_ON_REQUEST: u32 = 3;

pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    let mut input = TraceInput::open(&args.trace)?;
    let meta = input.reader.meta().clone();
    let mut replay = Replay::default();
    let ending = input.for_each_event(|event| {
        replay.feed(event);
        Ok(())
    })?;
    input.end_progress();
    let report = replay.finish(ending.end.as_ref());
    match &args.html {
        None => {
            let hides_internal = meta.format < INTERNAL_ON_REQUEST;
            let options = SummaryOptions { hides_internal, ..args.summary.options(std::io::stdout()) };
            print(&summary(&report.summary, &options))?;
        }
        Some(path) => {
            let name = args.trace.to_string_lossy();
            let mut missing = ending.missing(input.damaged());
            missing.extend(ending.broken.as_ref().map(|error| format!("{error:#}")));
            let source = Source { name: &name, meta: &meta, end: ending.end.as_ref(), missing: &missing };
            write(path, &args.trace, &html(&report, &source), &report)?;
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
    create(path, trace)?.write_all(page.as_bytes()).with_context(cannot)?;
    note!("wrote {} ({})", path.display(), count(report.summary.calls, "call", "calls"));
    Ok(())
}
