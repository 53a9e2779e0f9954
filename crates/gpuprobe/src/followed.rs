//! The processes that were asked for, and what they fork: those of them that run.

use std::collections::HashSet;

use gpuprobe_capture::Batch;
use gpuprobe_event::{ProcessChange, Tgid};

#[derive(Debug, Default)]
pub(crate) struct Followed(HashSet<Tgid>);

impl Followed {
    pub(crate) fn new(pids: &[u32]) -> Self {
        Self(pids.iter().map(|pid| Tgid(*pid)).collect())
    }

    pub(crate) fn running(&self) -> &HashSet<Tgid> {
        &self.0
    }

    /// Keeps track of who begins and who ends.
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

/// The process that a number is a thread of, where it is not its own.
pub(crate) fn process_of_thread(number: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    (process != number).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_told_from_its_process() {
        let own = std::process::id();
        assert_eq!(process_of_thread(own), None);
        let thread = std::thread::spawn(|| process_of_thread(nix::unistd::gettid().as_raw().cast_unsigned()));
        assert_eq!(thread.join().unwrap(), Some(own));
        assert_eq!(process_of_thread(u32::MAX), None);
    }
}
