//! A group of threads: what they do, how they wait, and their stack.

use gpuprobe_analysis::{CpuShares, ThreadGroup, ThreadVerdict};
use gpuprobe_event::{Frame, Tgid};

use super::StacksOptions;
use super::system_calls::{self, Architecture};
use crate::live::arguments;
use crate::memory_view::line;
use crate::units::{age, count, duration, fitted, printable, push_printable, push_quoted};

/// Frames shown at each end of a stack; those between them are counted.
const INNERMOST: usize = 80;
const OUTERMOST: usize = 20;
/// Threads listed below the first one; the others are counted.
const MOST_LISTED: usize = 8;
/// The smallest width of a frame.
const LEAST_FRAME: usize = 24;

/// Appends a group. Its stack is left out if `same_as` is a process that has it, too.
pub(super) fn group(out: &mut String, group: &ThreadGroup, same_as: Option<Tgid>, options: &StacksOptions) {
    let mut name = String::new();
    push_quoted(&mut name, &group.name);
    let first = group.tids.first().map(ToString::to_string).unwrap_or_default();
    let more = match group.count.saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    line(out, format_args!("  Thread {first} {name}{more}: {}", activity(group)));
    let cpu = group.cpu.map(|cpu| format!("; {}", cpu_time(cpu))).unwrap_or_default();
    line(out, format_args!("    {}{cpu}", state(group, options.architecture)));
    if let Some(others) = others(group) {
        line(out, format_args!("    {others}"));
    }
    match same_as {
        Some(process) => line(out, format_args!("      at the same place as in process {process}")),
        None => {
            frames(out, &group.stack.frames, options.width);
            notes(out, group);
        }
    }
}

/// What may be wrong with the stack.
fn notes(out: &mut String, group: &ThreadGroup) {
    if let Some(why) = &group.stack.incomplete {
        line(out, format_args!("    the stack is incomplete: {}", printable(why)));
    }
    let ran = "the thread ran while they were read";
    match &group.function {
        _ if !group.stack.is_torn => {}
        // all samples agree on the others
        Some(function) if group.verdict == ThreadVerdict::Stuck => {
            line(out, format_args!("    the frames inside of {} may be wrong: {ran}", printable(function)));
        }
        _ => line(out, format_args!("    the frames may be wrong: {ran}")),
    }
}

/// What the verdict says about the GPU call.
fn activity(group: &ThreadGroup) -> String {
    let Some(function) = &group.function else {
        return match group.verdict {
            ThreadVerdict::Unknown => "outside of GPU calls".to_owned(),
            verdict => verdict.as_str().to_owned(),
        };
    };
    let verdict = match group.verdict {
        ThreadVerdict::Moving => "moving, in ",
        ThreadVerdict::Stuck => "stuck in ",
        ThreadVerdict::Idle | ThreadVerdict::Unknown => "in ",
    };
    let mut text = verdict.to_owned();
    let up_to = if group.count > 1 { "up to " } else { "" };
    let since = group.age_ns.map(|ns| format!("for {up_to}{}", how_long(ns)));
    match open_call(group) {
        Some(call) if group.open_call.as_ref().is_some_and(|open| open.name != *function) => {
            push_printable(&mut text, function);
            text += &format!(", and inside of it in {call}");
        }
        Some(call) => text += &call,
        None => push_printable(&mut text, function),
    }
    match since {
        Some(since) => text += &format!(", {since}"),
        // a thread that moves has just begun its call
        None if group.verdict == ThreadVerdict::Moving => {}
        None => text += ", began before gpuprobe attached",
    }
    text
}

/// The open call that a probe saw, with its arguments if all threads of the group have the same.
pub(super) fn open_call(group: &ThreadGroup) -> Option<String> {
    let call = group.open_call.as_ref()?;
    let mut text = String::new();
    push_printable(&mut text, &call.name);
    if group.has_same_arguments && call.args.is_some() {
        arguments::list(&mut text, call);
    }
    Some(text)
}

/// A time to compare with the patience of people: `3.4 ms`, `12 s`, `3 h`.
pub(super) fn how_long(ns: u64) -> String {
    if ns < 1_000_000_000 { duration(ns) } else { age(ns) }
}

/// `sleeping in futex, futex_wait_queue`
fn state(group: &ThreadGroup, architecture: Architecture) -> String {
    let mut text = match group.state {
        'R' => "running".to_owned(),
        'S' => "sleeping".to_owned(),
        'D' => "sleeping (cannot be interrupted)".to_owned(),
        'T' => "stopped".to_owned(),
        't' => "stopped by a debugger".to_owned(),
        'Z' | 'X' => "exited".to_owned(),
        other => format!("state {}", printable(&other.to_string())),
    };
    let system_call = group.system_call.map(|number| match system_calls::name(number, architecture) {
        Some(name) => name.to_owned(),
        None => format!("system call {number}"),
    });
    let channel = group.wait_channel.as_ref().map(|function| printable(function).into_owned());
    let places: Vec<String> = system_call.into_iter().chain(channel).collect();
    if !places.is_empty() {
        text += &format!(" in {}", places.join(", "));
    }
    text
}

/// `CPU 98%`, or the range if the threads differ.
fn cpu_time(cpu: CpuShares) -> String {
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let (least, most) = (percent(cpu.least), percent(cpu.most));
    if least == most { format!("CPU {most}") } else { format!("CPU {least} to {most}") }
}

/// The threads after the first one.
fn others(group: &ThreadGroup) -> Option<String> {
    let tids: Vec<String> = group.tids.iter().skip(1).take(MOST_LISTED).map(ToString::to_string).collect();
    let more = group.count.saturating_sub(1 + tids.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let word = if group.count == 2 { "thread" } else { "threads" };
    (!tids.is_empty()).then(|| format!("also {word} {}{more}", tids.join(", ")))
}

/// The native frames outside of the outermost Python frame are those of the interpreter, the same in every program: they
/// are counted.
fn frames(out: &mut String, all: &[Frame], width: usize) {
    let python_end = all.iter().rposition(|frame| frame.python).map_or(all.len(), |last| last + 1);
    let (frames, interpreter) = all.split_at(python_end);
    some_frames(out, frames, width);
    if !interpreter.is_empty() {
        let number = count(interpreter.len() as u64, "native frame", "native frames");
        line(out, format_args!("      ... {number} of the interpreter"));
    }
}

fn some_frames(out: &mut String, frames: &[Frame], width: usize) {
    let is_short = frames.len() <= INNERMOST + OUTERMOST;
    let (innermost, rest) = frames.split_at(if is_short { frames.len() } else { INNERMOST });
    let (left_out, outermost) = rest.split_at(rest.len().saturating_sub(OUTERMOST));
    innermost.iter().for_each(|frame| frame_line(out, frame, width));
    if !left_out.is_empty() {
        let number = count(left_out.len() as u64, "frame", "frames");
        line(out, format_args!("      ... {number} not shown"));
    }
    outermost.iter().for_each(|frame| frame_line(out, frame, width));
}

fn frame_line(out: &mut String, frame: &Frame, width: usize) {
    let room = width.saturating_sub("      at ".len()).max(LEAST_FRAME);
    line(out, format_args!("      at {}", fitted(&printable(&frame.to_string()), room)));
}

#[cfg(test)]
mod tests;
