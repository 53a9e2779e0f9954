//! The running processes among those that the user gave, including the processes that they fork.

use std::collections::HashSet;

use gpuprobe_capture::Batch;
use gpuprobe_event::{ProcessChange, Tgid};

#[derive(Debug, Default)]
pub(crate) struct ProcessSet(HashSet<Tgid>);

impl ProcessSet {
    pub(crate) fn new(pids: &[u32]) -> Self {
        Self(pids.iter().map(|pid| Tgid(*pid)).collect())
    }

    pub(crate) fn running(&self) -> &HashSet<Tgid> {
        &self.0
    }

    /// Adds forked processes and removes exited ones.
    pub(crate) fn take(&mut self, batch: &Batch) {
        for (_, process) in &batch.processes {
            match process.change {
                ProcessChange::Exit => {
                    self.0.remove(&process.tgid);
                }
                ProcessChange::Start if process.parent.is_some_and(|p| self.0.contains(&p)) => {
                    self.0.insert(process.tgid);
                }
                _ => {}
            }
        }
    }
}

/// The process of a thread; `None` if the number is a process or unknown.
pub(crate) fn process_of_thread(number: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    (process != number).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_number_is_recognized() {
        let own = std::process::id();
        assert_eq!(process_of_thread(own), None);
        let thread = std::thread::spawn(|| process_of_thread(nix::unistd::gettid().as_raw().cast_unsigned()));
        assert_eq!(thread.join().unwrap(), Some(own));
        assert_eq!(process_of_thread(u32::MAX), None);
    }
}
