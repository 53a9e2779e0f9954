//! The running processes among those that the user gave, including the processes that they fork.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::Batch;
use gpuprobe_event::{ProcessChange, Tgid};

use crate::session::probes::probe_set::Probes;

#[derive(Debug, Default)]
pub(crate) struct ProcessSet {
    running: HashSet<Tgid>,
    /// The user gave some; without any, all processes of the host are meant.
    is_given: bool,
}

impl ProcessSet {
    pub(crate) fn new(pids: &[u32]) -> Self {
        Self { running: pids.iter().map(|pid| Tgid(*pid)).collect(), is_given: !pids.is_empty() }
    }

    pub(crate) fn running(&self) -> &HashSet<Tgid> {
        &self.running
    }

    pub(crate) fn is_given(&self) -> bool {
        self.is_given
    }

    /// Adds forked processes and removes exited ones.
    pub(crate) fn take(&mut self, batch: &Batch) {
        for (_, process) in &batch.processes {
            match process.change {
                ProcessChange::Exit => {
                    self.running.remove(&process.tgid);
                }
                ProcessChange::Start if process.parent.is_some_and(|p| self.running.contains(&p)) => {
                    self.running.insert(process.tgid);
                }
                _ => {}
            }
        }
    }
}

/// Probes the given processes and follows them. Files that only other processes use are not probed: that would slow down
/// these processes for nothing. But the installed libraries are, because a process may have mapped only the CUDA runtime,
/// which loads libcuda at its first call.
pub(crate) fn attach_given(pids: &[u32], probes: &mut Probes) -> Result<()> {
    for pid in pids {
        if let Some(process) = process_of_thread(*pid) {
            bail!("{pid} is a thread of process {process}: use -d {process}");
        }
        probes.attach_process(Tgid(*pid)).with_context(|| format!("cannot watch process {pid}"))?;
        probes.capture.observe(Tgid(*pid));
        probes.capture.add_target(Tgid(*pid))?;
    }
    probes.attach_installed_quietly();
    Ok(())
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
