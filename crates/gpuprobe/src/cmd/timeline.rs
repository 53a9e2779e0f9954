//! `gpuprobe timeline`: shows a recorded trace as rows of characters.

use std::io::stdout;
use std::time::Duration;

use anyhow::{Result, bail};
use gpuprobe_analysis::{Extent, TimelineBuilder};
use gpuprobe_capture::terminal_size;
use gpuprobe_output::units::seconds;

use crate::cli::TimelineArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::input::TraceInput;

/// Without a terminal.
const DEFAULT_WIDTH: u16 = 100;

pub(crate) fn run(args: &TimelineArgs) -> Result<u8> {
    let ns = |moment: Duration| u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
    let (from_ns, to_ns) = (args.from.map(ns), args.to.map(ns));
    if to_ns.is_some_and(|to_ns| from_ns.unwrap_or(0) >= to_ns) {
        bail!("--to is not after --from: give a later time");
    }
    let mut input = TraceInput::open(&args.trace)?;
    let mut picture = TimelineBuilder::new(from_ns, to_ns);
    let ending = input.for_each_event(|event| {
        picture.feed(event);
        Ok(())
    })?;
    input.end_progress();
    let (report, Extent { first_ns, last_ns }) = picture.finish();
    let spans = || format!("the trace spans {} to {}", seconds(first_ns), seconds(last_ns));
    if from_ns.is_some_and(|from_ns| from_ns > last_ns) || to_ns.is_some_and(|to_ns| to_ns <= first_ns) {
        bail!("{}: there are no events in the given range", spans());
    }
    let width = args.width.or_else(|| terminal_size(stdout()).map(|(columns, _)| columns));
    print(&gpuprobe_output::timeline(&report, width.unwrap_or(DEFAULT_WIDTH).into()))?;
    if to_ns.is_some_and(|to_ns| to_ns > last_ns) {
        note!("{}, and is shown to its end", spans());
    }
    ending.print_missing(input.damaged());
    ending.broken.map_or(Ok(0), Err)
}
