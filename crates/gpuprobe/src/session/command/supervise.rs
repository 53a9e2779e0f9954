//! Runs a command under the probes: it is paused until what it has mapped is probed, and signals are forwarded to it.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_capture::{Answer, Batch, Ending, PausedProcess, Urgent};
use gpuprobe_discover::DiscoverError;
use gpuprobe_event::Tgid;
use nix::sys::signal::Signal;

use super::command_user::CommandUser;
use super::launch::{self, LaunchedCommand};
use super::stop_requests::StopRequests;
use crate::cli::UserArgs;
use crate::session::probes::probe_set::Probes;
use crate::session::record::recording::Recording;
use crate::session::signals::Signals;
use crate::terminal::notes::note;

/// Longest time between two reads of the ring buffer: the BPF programs do not wake us up for every record.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A started command and its pending stop requests.
#[derive(Debug)]
pub(crate) struct SupervisedCommand {
    signals: Signals,
    launched: LaunchedCommand,
    stops: StopRequests,
    at_quit: AtQuit,
    /// SIGQUIT came, and asks for stacks.
    wants_stacks: bool,
}

/// What SIGQUIT does, which Ctrl-\ sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtQuit {
    /// It asks gpuprobe for stacks. On a terminal, the command ignores it.
    ShowStacks,
    /// The same as without gpuprobe: it is for the command.
    ForCommand,
}

/// The last records of a session with a command.
#[derive(Debug)]
pub(crate) struct CommandEnd {
    pub(crate) ending: Ending,
    /// Processes that still run and are no longer observed.
    pub(crate) running: usize,
    /// Processes whose code ran before they were probed.
    pub(crate) late: u64,
}

impl SupervisedCommand {
    /// Starts the command up to its exec, as this user and with these variables.
    pub(crate) fn start_paused(
        command: &[OsString],
        user: &UserArgs,
        at_quit: AtQuit,
        variables: &[(&'static str, OsString)],
    ) -> Result<Self> {
        let user = CommandUser::selected(user)?;
        // before any thread or the command is created, so that none of them receives the signals
        let signals = Signals::block()?;
        Ok(Self {
            signals,
            launched: LaunchedCommand::start_paused(
                command,
                user.as_ref(),
                at_quit == AtQuit::ShowStacks,
                variables,
            )?,
            stops: StopRequests::default(),
            at_quit,
            wants_stacks: false,
        })
    }

    /// Starts to observe the command and lets it run.
    pub(crate) fn resume(&mut self, probes: &Probes) -> Result<()> {
        probes.capture.add_target(self.launched.tgid())?;
        self.launched.resume()
    }

    /// Whether the user asked for stacks since the last time.
    pub(crate) fn take_stacks_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_stacks)
    }

    /// Waits for records and probes paused processes. Returns the exit status of the command when it has exited.
    pub(crate) fn poll(&mut self, probes: &mut Probes) -> Result<(Batch, Option<u8>)> {
        // high priority until the paused processes have been answered
        let urgent = Urgent::begin();
        probes.capture.wait(&[self.signals.fd()], POLL_EVERY);
        for arrived in self.signals.take() {
            if arrived.signal == Signal::SIGQUIT && self.at_quit == AtQuit::ShowStacks {
                self.wants_stacks = true;
            } else if arrived.from_process {
                self.launched.signal(arrived.signal);
            }
        }
        // before the ring buffers are read, so that they contain everything up to the exit
        let exit_status = self.launched.exit_status()?;
        let batch = probes.take()?;
        self.probe_all_paused(&batch.paused, probes)?;
        self.attach_late(probes);
        drop(urgent);
        Ok((batch, exit_status))
    }

    /// Removes the probes after the command has exited, and takes in what is spooled. A signal that would end gpuprobe
    /// discards the rest.
    pub(crate) fn take_spooled(&mut self, probes: &mut Probes, recording: &mut Recording) -> Result<()> {
        if probes.capture.spooled_calls().is_none() {
            return Ok(());
        }
        probes.capture.detach_probes()?;
        let Self { signals, stops, .. } = self;
        let next = |probes: &mut Probes| {
            let batch = probes.take()?;
            resume_all(&batch.paused, stops, probes)?;
            Ok(batch)
        };
        recording.take_spooled(probes, next, || signals.must_end())
    }

    /// Detaches the probes after the command has exited.
    pub(crate) fn finish(&mut self, probes: &mut Probes) -> Result<CommandEnd> {
        // children that outlive the command are no longer observed; none of them may stay paused
        let running = probes.capture.targets()?.len();
        let ending = probes.end_observation()?;
        resume_all(&ending.batch.paused, &mut self.stops, probes)?;
        probes.capture.dismiss();
        Ok(CommandEnd { ending, running, late: self.stops.late() })
    }

    fn probe_all_paused(&mut self, pauses: &[PausedProcess], probes: &mut Probes) -> Result<()> {
        for pause in pauses {
            probes.capture.answer(*pause, Answer::Seen)?;
        }
        pauses.iter().try_for_each(|pause| self.probe_paused(*pause, probes))
    }

    /// Probes what a paused process has mapped, and resumes it.
    fn probe_paused(&mut self, pause: PausedProcess, probes: &mut Probes) -> Result<()> {
        let tgid = pause.tgid;
        if !pause.may_attach && probes.has_new_libraries(tgid, pause.at_exec) {
            self.stops.requested(pause, Instant::now());
            return Ok(probes.capture.answer(pause, Answer::Stop)?);
        }
        if pause.may_attach {
            self.stops.paused(pause);
            attach(tgid, pause.at_exec, probes);
        } else {
            // it may exit before its first stack is read
            probes.capture.observe(tgid);
        }
        resume(pause, probes)
    }

    /// Probes processes that did not stop in time, as can happen on a very busy machine.
    fn attach_late(&mut self, probes: &mut Probes) {
        for tgid in self.stops.overdue(Instant::now()) {
            attach(tgid, true, probes);
        }
    }
}

/// Probes what a process has mapped. Its dynamic loader is probed at exec; later pauses come from the probe in the
/// loader.
fn attach(tgid: Tgid, with_loader: bool, probes: &mut Probes) {
    if with_loader {
        probes.attach_loader_of(tgid);
    }
    match probes.attach_paused(tgid) {
        // it was killed while it was paused
        Ok(()) | Err(DiscoverError::NoSuchProcess { .. }) => {}
        Err(error) => note!("gpuprobe: process {tgid} is not fully probed: {error:#}"),
    }
}

/// Resumes processes that need no probes any more.
fn resume_all(pauses: &[PausedProcess], stops: &mut StopRequests, probes: &Probes) -> Result<()> {
    pauses.iter().try_for_each(|pause| {
        stops.paused(*pause);
        resume(*pause, probes)
    })
}

/// Resumes a process. It may have been killed meanwhile.
fn resume(pause: PausedProcess, probes: &Probes) -> Result<()> {
    probes.capture.answer(pause, Answer::Continue)?;
    if pause.stopped {
        launch::resume_stopped(pause.tgid);
    }
    Ok(())
}
