//! `gpuprobe convert`: converts a trace to formats of other programs.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use gpuprobe_output::units::count;
use gpuprobe_output::{Conversion, Converted, Target, filter_line};

use crate::cli::ConvertArgs;
use crate::terminal::notes::note;
use crate::terminal::stdout::Closed;
use crate::trace_file::input::{TraceInput, create};
use crate::trace_file::output_file::Replacement;

const BUFFER: usize = 1 << 18;

pub(crate) fn run(args: &ConvertArgs) -> Result<u8> {
    let target = args.target()?;
    // first, so that an invalid trace leaves the output unchanged
    let mut input = TraceInput::open_filtered(&args.trace, args.filter.filter(args.until)?)?;
    let output = output(args, target);
    let replacement = output.as_ref().map(|path| create(path, &args.trace)).transpose()?;
    let out: Box<dyn Write> = match &replacement {
        Some(begun) => Box::new(&begun.file),
        None => Box::new(io::stdout().lock()),
    };
    let out = BufWriter::with_capacity(BUFFER, out);
    let cannot = |error: io::Error| match &output {
        Some(path) => Error::new(error).context(format!("cannot write {}", path.display())),
        None if error.kind() == io::ErrorKind::BrokenPipe => Closed.into(),
        None => Error::new(error).context("cannot write the output"),
    };
    let mut conversion = Conversion::new(target, input.reader.meta(), out).map_err(cannot)?;
    let ending = input.for_each_event(|event| conversion.feed(event).map_err(cannot))?;
    let converted = conversion.finish(ending.end.as_ref()).map_err(cannot)?;
    replacement.map_or(Ok(()), Replacement::complete).map_err(cannot)?;
    input.end_progress();
    ending.print_missing(input.damaged());
    if let Some(filtered) = &ending.filtered {
        note!("{}", filter_line(filtered));
    }
    report(&converted, output.as_deref());
    match ending.broken {
        None => Ok(0),
        Some(error) => Err(cut_short(error, &args.trace)),
    }
}

/// The output is complete, but the trace could not be read to its end.
fn cut_short(error: Error, trace: &Path) -> Error {
    error.context(format!("{} is converted only up to where it can be read", trace.display()))
}

/// Reports what was written.
fn report(converted: &Converted, output: Option<&Path>) {
    if converted.moved > 0 {
        let calls = count(converted.moved, "call", "calls");
        note!("the times of {calls} overlapped other calls on their thread, and were shortened");
    }
    let mut what = count(converted.calls, "call", "calls");
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
        None => Some(next_to(&args.trace, target.extension())),
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
