//! The lines that name processes, and writing a line.

use std::fmt::Write;

use gpuprobe_analysis::{PastProcesses, ProcessSnapshot};

use crate::units::{count, printable};

/// Appends a line. Writing into a `String` cannot fail.
pub(super) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = writeln!(out, "{text}");
    debug_assert!(written.is_ok());
}

/// `process PID [...] (NAME)`
pub(super) fn process_line(process: &ProcessSnapshot) -> String {
    format!("process {}{} ({})", process.pid, whereabouts(process), printable(&process.name))
}

/// The line of processes that exited some time ago, which are summed up by name.
pub(super) fn processes_line(past: &PastProcesses) -> String {
    let processes = count(past.processes, "process that ended", "processes that ended");
    format!("{processes} ({})", printable(&past.name))
}

/// The pid inside its namespace and the container, if the process has them. Empty for most processes.
pub(super) fn whereabouts(process: &ProcessSnapshot) -> String {
    let inside = process.ns_pid.map(|pid| format!("pid {pid} inside"));
    let container = process.container.as_ref().map(|c| format!("container {}", printable(&c.shown())));
    let known: Vec<_> = inside.into_iter().chain(container).collect();
    if known.is_empty() { String::new() } else { format!(" [{}]", known.join(", ")) }
}
