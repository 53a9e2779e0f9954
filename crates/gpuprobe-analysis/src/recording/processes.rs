//! The processes of a recording and how they exited.

use std::collections::HashMap;

use gpuprobe_event::{Call, Outcome, ProcessChange, ProcessEvent, Tgid};
use serde::Serialize;

/// How a process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessEnd {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// The exit was observed, but not its status.
    Unknown,
}

impl ProcessEnd {
    /// From a status as in a shell: the exit code, or 128 plus the signal.
    pub fn from_shell(status: Option<i32>) -> Self {
        match status {
            None => Self::Unknown,
            Some(status) if status > 128 => Self::Signal(status - 128),
            Some(status) => Self::Code(status),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSummary {
    pub pid: Tgid,
    /// The last name seen.
    pub name: String,
    /// Its calls, including nested ones, without calls into the Linux kernel.
    pub calls: u64,
    /// The time of its exit.
    pub ended_ns: Option<u64>,
    pub end: Option<ProcessEnd>,
}

/// Processes with a row of their own. All others share one row.
const MOST: usize = 1 << 16;
/// The name of that row.
const OTHERS: &str = "(others)";

/// Processes in the order in which they were first seen. A pid reused after an exit is another process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes {
    rows: Vec<ProcessSummary>,
    latest: HashMap<Tgid, usize>,
}

impl Processes {
    /// Counts a call and returns whether its process has already exited: the last calls of a process may be recorded
    /// after its exit.
    pub(crate) fn feed_call(&mut self, call: &Call) -> bool {
        let row = self.row(call.tgid, call.start_ns, &call.process);
        let is_counted = !call.is_in_linux() && call.outcome != Outcome::Unfinished;
        row.calls += if is_counted { u64::from(call.weight) } else { 0 };
        row.end.is_some()
    }

    pub(crate) fn feed_change(&mut self, event: &ProcessEvent) {
        let row = self.row(event.tgid, event.at_ns, &event.process);
        if row.name == OTHERS {
            return;
        }
        if event.change == ProcessChange::Exit {
            row.ended_ns = Some(event.at_ns);
            row.end = Some(ProcessEnd::from_shell(event.exit_status));
        } else if row.name != *event.process {
            event.process.as_ref().clone_into(&mut row.name);
        }
    }

    /// The name of the latest process with this pid.
    pub(crate) fn name_of(&self, pid: Tgid) -> &str {
        self.latest.get(&pid).and_then(|&row| self.rows.get(row)).map_or("", |row| &row.name)
    }

    pub(crate) fn report(&self) -> Vec<ProcessSummary> {
        self.rows.clone()
    }

    /// The row of the process that had this pid at this time.
    fn row(&mut self, pid: Tgid, at_ns: u64, name: &str) -> &mut ProcessSummary {
        let known = self.latest.get(&pid).copied();
        let index =
            known.filter(|&i| self.rows[i].ended_ns.is_none_or(|end| at_ns <= end)).unwrap_or_else(|| {
                if self.rows.len() > MOST {
                    return MOST;
                }
                let is_full = self.rows.len() == MOST;
                let (pid, name) = if is_full { (Tgid(0), OTHERS.to_owned()) } else { (pid, name.to_owned()) };
                self.rows.push(ProcessSummary { pid, name, calls: 0, ended_ns: None, end: None });
                self.latest.insert(pid, self.rows.len() - 1);
                self.rows.len() - 1
            });
        &mut self.rows[index]
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;
    use crate::samples::{call, process};

    #[test]
    fn a_reused_pid_is_another_process_and_late_calls_belong_to_the_first() {
        let mut processes = Processes::default();
        let at = |start_ns| Call { start_ns, ..call(Api::Driver, "cuInit", 0) };
        assert!(!processes.feed_call(&at(5)));
        processes.feed_change(&process(ProcessChange::Exit, 10, Some(137)));
        assert!(processes.feed_call(&at(9)));
        assert!(!processes.feed_call(&at(20)));
        let report = processes.report();
        assert_eq!(report.len(), 2);
        assert_eq!((report[0].calls, report[0].end), (2, Some(ProcessEnd::Signal(9))));
        assert_eq!((report[1].calls, report[1].end), (1, None));
    }

    #[test]
    fn an_exec_renames_the_process() {
        let mut processes = Processes::default();
        processes.feed_change(&process(ProcessChange::Start, 0, None));
        let event = ProcessEvent { process: "python".into(), ..process(ProcessChange::Exec, 1, None) };
        processes.feed_change(&event);
        assert_eq!(processes.report()[0].name, "python");
    }

    #[test]
    fn a_status_is_a_code_or_a_signal() {
        assert_eq!(ProcessEnd::from_shell(Some(3)), ProcessEnd::Code(3));
        assert_eq!(ProcessEnd::from_shell(Some(0)), ProcessEnd::Code(0));
        assert_eq!(ProcessEnd::from_shell(Some(139)), ProcessEnd::Signal(11));
        assert_eq!(ProcessEnd::from_shell(None), ProcessEnd::Unknown);
    }
}
