//! `gpuprobe diff`: compares two recorded traces.

use std::io::stdout;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::{Filtered, RecordingFigures, Replay, differences};
use gpuprobe_capture::terminal_size;
use gpuprobe_output::diff::{Comparison, diff, diff_json};
use gpuprobe_output::sampled_lines;

use crate::cli::DiffArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::input::TraceInput;
use crate::trace_file::several::check_paths;

/// Without a terminal.
const DEFAULT_WIDTH: usize = 160;
/// The status if a figure changed by more than allowed.
const CHANGED: u8 = 1;
/// The status if a trace could not be read to its end: in a test this must not look like a change.
const UNREADABLE: u8 = 2;

pub(crate) fn run(args: &DiffArgs) -> Result<u8> {
    let (names, before, after) = match both(args) {
        Ok(both) => both,
        Err(error) => {
            note!("gpuprobe: {error:#}");
            return Ok(UNREADABLE);
        }
    };
    let differences = differences(&before.figures, &after.figures, args.times);
    let comparison = Comparison {
        names: [&names[0], &names[1]],
        figures: [&before.figures, &after.figures],
        filtered: [before.filtered.as_ref(), after.filtered.as_ref()],
        differences: &differences,
        fail_above: args.fail_above,
    };
    let width = terminal_size(stdout()).map_or(DEFAULT_WIDTH, |(columns, _)| columns.into());
    print(&if args.json { diff_json(&comparison) } else { diff(&comparison, width, args.full_names) })?;
    Ok(if comparison.above() > 0 { CHANGED } else { 0 })
}

fn both(args: &DiffArgs) -> Result<([String; 2], Recorded, Recorded)> {
    let sides = args.sides()?;
    if sides.iter().all(|side| side.iter().any(|path| path.as_os_str() == "-")) {
        bail!("both traces are `-`: only one can be read from stdin");
    }
    let names =
        sides.map(|side| side.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(", "));
    let both = [of_side(sides[0], args)?, of_side(sides[1], args)?];
    let has_nothing = |of: &Recorded| of.filtered.as_ref().is_some_and(|of| of.kept_calls == 0);
    if both.iter().all(has_nothing) {
        // in a test, a misspelt filter must not look like two equal recordings
        bail!("the filter matches no call of either trace: there is nothing to compare");
    }
    let [before, after] = both;
    Ok((names, before, after))
}

struct Recorded {
    figures: RecordingFigures,
    filtered: Option<Filtered>,
}

/// The sums of the figures of all traces of a side.
fn of_side(traces: &[PathBuf], args: &DiffArgs) -> Result<Recorded> {
    if traces.len() > 1 {
        check_paths(traces)?;
    }
    let mut sum: Option<Recorded> = None;
    for trace in traces {
        let more = figures(trace, args)?;
        let Some(sum) = &mut sum else {
            sum = Some(more);
            continue;
        };
        sum.figures.add_all(&more.figures);
        if let (Some(sum), Some(more)) = (&mut sum.filtered, &more.filtered) {
            sum.add(more);
        }
    }
    sum.context("give a trace")
}

/// The figures of a trace, which must be readable to its end.
fn figures(path: &Path, args: &DiffArgs) -> Result<Recorded> {
    let mut input = TraceInput::open_filtered(path, args.filter.filter(args.to)?)?;
    let mut replay = Replay::default();
    let ending = input.for_each_event(|event| {
        replay.feed(event);
        Ok(())
    })?;
    input.end_progress();
    let shown = path.display();
    for missing in ending.missing(input.damaged()) {
        note!("{shown}: {missing}");
    }
    let sampled = ending.end.iter().flat_map(|end| &end.sampled);
    for line in sampled_lines(&sampled.cloned().collect::<Vec<_>>()).lines() {
        note!("{shown}: {line}");
    }
    if let Some(error) = ending.broken {
        return Err(error).with_context(|| format!("cannot compare {shown}"));
    }
    let figures = RecordingFigures::of(&replay.finish(ending.end.as_ref()));
    Ok(Recorded { figures, filtered: ending.filtered })
}
