//! `gpuprobe timeline`: shows a recorded trace as rows of characters.

use std::io::stdout;

use anyhow::{Result, bail};
use gpuprobe_analysis::{Extent, TimelineBuilder};
use gpuprobe_capture::terminal_size;
use gpuprobe_output::units::seconds;
use gpuprobe_output::{filter_line, sampled_lines};

use crate::cli::{FilterArgs, TimelineArgs};
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::traces::Traces;

/// Without a terminal.
const DEFAULT_WIDTH: u16 = 100;

pub(crate) fn run(args: &TimelineArgs) -> Result<u8> {
    let filter = args.filter.filter(args.to)?;
    let (from_ns, to_ns) = (filter.from_ns, filter.to_ns);
    // the picture is cut at these times, and the span of the whole trace is known then
    let untimed = FilterArgs { from: None, ..args.filter.clone() };
    let traces = Traces::open(&args.traces, untimed.filter(None)?)?;
    let mut picture = TimelineBuilder::new(from_ns, to_ns);
    let read = traces.read(false, |event| {
        picture.feed(event);
        Ok(())
    })?;
    let (report, Extent { first_ns, last_ns }) = picture.finish();
    let filtered = if read.filtered.is_some() { "filtered " } else { "" };
    let spanning = if args.traces.len() == 1 { "trace spans" } else { "traces span" };
    let spans = || format!("the {filtered}{spanning} {} to {}", seconds(first_ns), seconds(last_ns));
    let has_all_removed = read.filtered.as_ref().is_some_and(|of| of.removed == of.events);
    let is_outside =
        from_ns.is_some_and(|from_ns| from_ns > last_ns) || to_ns.is_some_and(|to_ns| to_ns <= first_ns);
    if is_outside && !has_all_removed {
        bail!("{}: there are no events in the given range", spans());
    }
    let width = args.width.or_else(|| terminal_size(stdout()).map(|(columns, _)| columns));
    print(&gpuprobe_output::timeline(&report, width.unwrap_or(DEFAULT_WIDTH).into()))?;
    if let Some(filtered) = &read.filtered {
        note!("{}", filter_line(filtered));
    }
    if to_ns.is_some_and(|to_ns| to_ns > last_ns) && !has_all_removed {
        note!("{}, and is shown to its end", spans());
    }
    let sampled = read.end.as_ref().map(|end| end.sampled.as_slice()).unwrap_or_default();
    sampled_lines(sampled).lines().for_each(|line| note!("{line}"));
    if !sampled.is_empty() {
        note!("calls of these functions are missing from the rows while they had no probes");
    }
    read.missing.iter().for_each(|missing| note!("{missing}"));
    read.broken.map_or(Ok(0), Err)
}
