//! `gpuprobe timeline`: a recorded trace as rows of characters.

use std::io::stdout;
use std::time::Duration;

use anyhow::{Result, bail};
use gpuprobe_analysis::Timeline;
use gpuprobe_capture::terminal_size;

use crate::cli::TimelineArgs;
use crate::stdout::print;
use crate::trace_input::TraceInput;

/// Where nobody has a terminal.
const USUAL_WIDTH: u16 = 100;

pub(crate) fn run(args: &TimelineArgs) -> Result<u8> {
    let ns = |moment: Duration| u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
    let (from_ns, to_ns) = (ns(args.from), args.to.map_or(u64::MAX, ns));
    if from_ns >= to_ns {
        bail!("--to is not after --from: give a later one");
    }
    let mut input = TraceInput::open(&args.trace)?;
    let mut timeline = Timeline::new(from_ns, to_ns);
    let ending = input.each(|event| {
        timeline.feed(&event);
        Ok(())
    })?;
    input.end_progress();
    let width = args.width.or_else(|| terminal_size(stdout()).map(|(columns, _)| columns));
    print(&gpuprobe_output::timeline(&timeline.report(), width.unwrap_or(USUAL_WIDTH).into()))?;
    ending.tell(input.damaged());
    ending.broken.map_or(Ok(0), Err)
}
