//! `gpuprobe convert`: converts a trace to formats of other programs.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use gpuprobe_output::units::count;
use gpuprobe_output::{Conversion, Converted, Target, filter_line};

use crate::cli::ConvertArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::Closed;
use crate::trace_file::input::create;
use crate::trace_file::output_file::Replacement;
use crate::trace_file::traces::Traces;

const BUFFER: usize = 1 << 18;

pub(crate) fn run(args: &ConvertArgs) -> Result<u8> {
    let target = args.target()?;
    let filter = args.filter.filter(args.until)?;
    // first, so that an invalid trace leaves the output unchanged
    let traces = Traces::open(&args.traces, filter)?;
    let output = output(args, target);
    let replacement = output.as_ref().map(|path| create(path, &args.traces)).transpose()?;
    let out: Box<dyn Write + Send> = match &replacement {
        Some(begun) => Box::new(&begun.file),
        None => Box::new(io::stdout()),
    };
    let out = BufWriter::with_capacity(BUFFER, out);
    let cannot = |error: io::Error| match &output {
        Some(path) => Error::new(error).context(format!("cannot write {}", path.display())),
        None if error.kind() == io::ErrorKind::BrokenPipe => Closed.into(),
        None => Error::new(error).context("cannot write the output"),
    };
    let mut conversion = Conversion::new(target, &traces.meta(), out).map_err(cannot)?;
    let read = traces.read(true, |event| conversion.feed(event).map_err(cannot))?;
    let converted = conversion.finish(read.end.as_ref()).map_err(cannot)?;
    replacement.map_or(Ok(()), Replacement::complete).map_err(cannot)?;
    read.missing.iter().for_each(|missing| note!("{missing}"));
    if let Some(filtered) = &read.filtered {
        note!("{}", filter_line(filtered));
    }
    report(&converted, output.as_deref());
    let shown = args.traces.first().map(|trace| trace.display()).filter(|_| args.traces.len() == 1);
    read.broken.map_or(Ok(0), |error| {
        Err(match shown {
            Some(trace) => error.context(format!("{trace} is converted only up to where it can be read")),
            None => error,
        })
    })
}

/// Reports what was written.
fn report(converted: &Converted, output: Option<&Path>) {
    if converted.moved > 0 {
        let calls = count(converted.moved, "call", "calls");
        note!("the times of {calls} overlapped other calls on their thread, and were shortened");
    }
    if converted.too_large > 0 {
        let numbers = count(converted.too_large, "number is", "numbers are");
        note!("{numbers} larger than a signed 64-bit number, and left out");
    }
    let mut what = match converted.rows {
        Some(rows) => count(rows, "event", "events"),
        None => count(converted.calls, "call", "calls"),
    };
    if converted.unfinished > 0 {
        what += &format!(", {} of them without a recorded return", converted.unfinished);
    }
    match output {
        Some(path) => note!("wrote {} ({what})", path.display()),
        None => note!("wrote {what}"),
    }
}

/// The output file; `None` is stdout.
fn output(args: &ConvertArgs, target: Target) -> Option<PathBuf> {
    match &args.output {
        Some(path) if path.as_os_str() == "-" => None,
        Some(path) => Some(path.clone()),
        None if !io::stdout().is_terminal() => None,
        None => args.traces.first().map(|trace| next_to(trace, target.extension())),
    }
}

/// `trace.jsonl.zst` becomes `trace.json`.
fn next_to(trace: &Path, extension: &str) -> PathBuf {
    let mut name = if trace.as_os_str() == "-" { Path::new("trace") } else { trace }.to_owned();
    for end in ["zst", "jsonl"] {
        if name.extension().is_some_and(|e| e == end) {
            name.set_extension("");
        }
    }
    let mut name = name.into_os_string();
    name.push(".");
    name.push(extension);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_lies_next_to_the_trace() {
        let of = |trace: &str| next_to(Path::new(trace), "json");
        assert_eq!(of("a/trace_1.jsonl"), Path::new("a/trace_1.json"));
        assert_eq!(of("trace.jsonl.zst"), Path::new("trace.json"));
        assert_eq!(of("v1.2.jsonl"), Path::new("v1.2.json"));
        assert_eq!(of("v1.2"), Path::new("v1.2.json"));
        assert_eq!(of("-"), Path::new("trace.json"));
    }
}
