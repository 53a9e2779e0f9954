//! A command under the probes: nothing of it runs before what it has mapped is probed, and signals meant for it reach it.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_capture::{Answer, Batch, Ending, Hold, Urgent};
use gpuprobe_discover::DiscoverError;
use gpuprobe_event::Tgid;

use crate::launch::{self, Launched};
use crate::notes::note;
use crate::probes::Probes;
use crate::signals::Signals;
use crate::stops::Stops;

/// How long records may wait in the ring before they are looked at without being called.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Supervised {
    signals: Signals,
    launched: Launched,
    stops: Stops,
}

/// What was left when the command had ended.
#[derive(Debug)]
pub(crate) struct Left {
    /// The last that was seen.
    pub(crate) ending: Ending,
    /// Processes that run on, unwatched.
    pub(crate) running: usize,
    /// Processes that had gone on before they were probed.
    pub(crate) late: u64,
}

impl Supervised {
    /// Starts the command up to the point where it would exec.
    pub(crate) fn waiting(command: &[OsString]) -> Result<Self> {
        // before any thread is made, and before the command, so that none of them is hit by a signal meant for us
        let signals = Signals::hold_back()?;
        Ok(Self { signals, launched: Launched::waiting(command)?, stops: Stops::default() })
    }

    /// Lets it go on, watched.
    pub(crate) fn go(&mut self, probes: &Probes) -> Result<()> {
        probes.capture.add_target(self.launched.tgid())?;
        self.launched.go()
    }

    /// Waits for something to happen, and serves who waits for us; tells the status of the command when it has ended.
    pub(crate) fn look(&mut self, probes: &mut Probes) -> Result<(Batch, Option<u8>)> {
        // from here until those who wait have been answered
        let urgent = Urgent::begin();
        probes.capture.wait(&[self.signals.fd()], LOOK_EVERY);
        for arrived in self.signals.take() {
            if arrived.from_process {
                self.launched.signal(arrived.signal);
            }
        }
        // asked before the rings are read: what the command did up to its end is then in them
        let ended = self.launched.ended()?;
        let batch = probes.take()?;
        self.serve_all(&batch.holds, probes)?;
        self.attach_late(probes);
        drop(urgent);
        Ok((batch, ended))
    }

    /// Takes the probes out when the command has ended.
    pub(crate) fn finish(&mut self, probes: &mut Probes) -> Result<Left> {
        // children that outlive the command run on, unwatched; none may be left waiting for us
        let running = probes.capture.target_count()?;
        let ending = probes.capture.detach()?;
        for hold in &ending.batch.holds {
            self.stops.waits(*hold);
            let_go(*hold, probes)?;
        }
        probes.capture.dismiss();
        Ok(Left { ending, running, late: self.stops.late() })
    }

    fn serve_all(&mut self, holds: &[Hold], probes: &mut Probes) -> Result<()> {
        for hold in holds {
            probes.capture.answer(*hold, Answer::Seen)?;
        }
        holds.iter().try_for_each(|hold| self.serve(*hold, probes))
    }

    /// Probes what a process has mapped, and lets it go on.
    fn serve(&mut self, hold: Hold, probes: &mut Probes) -> Result<()> {
        let tgid = hold.tgid;
        if !hold.may_attach && probes.has_new(tgid, hold.at_exec) {
            self.stops.tell(hold, Instant::now());
            return Ok(probes.capture.answer(hold, Answer::Stop)?);
        }
        if hold.may_attach {
            self.stops.waits(hold);
            attach(tgid, hold.at_exec, probes);
        }
        // it may be over before its first stack is looked at
        probes.capture.observe(tgid);
        let_go(hold, probes)
    }

    /// Processes that were told to stop when they had already gone on: on a very busy machine nobody looks in time.
    fn attach_late(&mut self, probes: &mut Probes) {
        for tgid in self.stops.overdue(Instant::now()) {
            attach(tgid, true, probes);
        }
    }
}

/// Probes what a process has mapped. Its loader is looked at when it begins; later it is the loader that asks.
fn attach(tgid: Tgid, with_loader: bool, probes: &mut Probes) {
    if with_loader {
        probes.attach_loader_of(tgid);
    }
    match probes.attach_process(tgid) {
        // it was killed while it waited, so there is nothing to watch
        Ok(_) | Err(DiscoverError::NoSuchProcess { .. }) => {}
        Err(error) => note!("gpuprobe: process {tgid} is not fully watched: {error:#}"),
    }
}

/// Lets a process go on. It may have been killed meanwhile, which is no concern of ours.
fn let_go(hold: Hold, probes: &Probes) -> Result<()> {
    probes.capture.answer(hold, Answer::GoOn)?;
    if hold.stopped {
        launch::continue_stopped(hold.tgid);
    }
    Ok(())
}
