//! `gpuprobe diff`: compares two recorded traces.

use std::io::stdout;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::{Filtered, RecordingFigures, Replay, differences};
use gpuprobe_capture::terminal_size;
use gpuprobe_output::diff::{Comparison, diff, diff_json};

use crate::cli::DiffArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;
use crate::trace_file::input::TraceInput;

/// Without a terminal.
const DEFAULT_WIDTH: usize = 160;
/// The status if a figure changed by more than allowed.
const CHANGED: u8 = 1;
/// The status if a trace could not be read to its end: in a test this must not look like a change.
const UNREADABLE: u8 = 2;

pub(crate) fn run(args: &DiffArgs) -> Result<u8> {
    let paths = [args.before.as_path(), args.after.as_path()];
    let (before, after) = match both(paths, args) {
        Ok(both) => both,
        Err(error) => {
            note!("gpuprobe: {error:#}");
            return Ok(UNREADABLE);
        }
    };
    let differences = differences(&before.figures, &after.figures, args.times);
    let names = paths.map(Path::to_string_lossy);
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

fn both([before, after]: [&Path; 2], args: &DiffArgs) -> Result<(Recorded, Recorded)> {
    if [before, after].iter().all(|path| path.as_os_str() == "-") {
        bail!("both traces are `-`: only one can be read from stdin");
    }
    let both = [figures(before, args)?, figures(after, args)?];
    let has_nothing = |of: &Recorded| of.filtered.as_ref().is_some_and(|of| of.kept_calls == 0);
    if both.iter().all(has_nothing) {
        // in a test, a misspelt filter must not look like two equal recordings
        bail!("the filter matches no call of either trace: there is nothing to compare");
    }
    let [before, after] = both;
    Ok((before, after))
}

struct Recorded {
    figures: RecordingFigures,
    filtered: Option<Filtered>,
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
    if let Some(error) = ending.broken {
        return Err(error).with_context(|| format!("cannot compare {shown}"));
    }
    let figures = RecordingFigures::of(&replay.finish(ending.end.as_ref()));
    Ok(Recorded { figures, filtered: ending.filtered })
}
