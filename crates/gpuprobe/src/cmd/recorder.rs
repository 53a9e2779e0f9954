//! The processes that record for the daemon: the recorder (`__recorder`), and one for each recording (`__record`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use gpuprobe_capture::{Tier, drop_privileges_except_for_children};
use gpuprobe_output::units::grouped;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use crate::cli::{Cli, Command, RecordOneArgs, RecorderArgs};
use crate::cmd::record::{EndedBy, record};
use crate::session::on_demand::{Recorder, Report, mark_as_being_written, send};
use crate::session::probes::linux_hooks;
use crate::session::signals::Signals;

pub(crate) fn run(args: &RecorderArgs) -> Result<u8> {
    // when a whole service or container is ended, the recorder gets the signal too, but it still has to end a recording
    let _blocked = Signals::block()?;
    let mut daemon = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // the processes that record need them; an error only means that there are none to give up
    drop_privileges_except_for_children(args.attach == Tier::Perf).ok();
    let recorder = match Recorder::open(args, daemon.try_clone()?) {
        Ok(recorder) => recorder,
        Err(error) => {
            send(&mut daemon, &Report::Failed { reason: format!("{error:#}") })?;
            return Ok(1);
        }
    };
    recorder.serve()?;
    Ok(0)
}

/// Makes one recording, and reports to standard output.
pub(crate) fn record_one(args: &RecordOneArgs) -> Result<u8> {
    // the recording must not go on without a process that can end it
    set_pdeathsig(Signal::SIGINT).context("cannot ask for a signal at the end of the recorder")?;
    if getppid().as_raw() != args.parent {
        bail!("the recorder has exited");
    }
    let report = make(args).unwrap_or_else(|error| Report::Failed { reason: format!("{error:#}") });
    send(&mut io::stdout(), &report)?;
    Ok(0)
}

fn make(args: &RecordOneArgs) -> Result<Report> {
    let words = ["gpuprobe", "record"].map(Into::into).into_iter().chain(args.options.iter().cloned());
    let mut cli = Cli::try_parse_from(words)?;
    linux_hooks::resolve(&mut cli)?;
    let Some(Command::Record(mut options)) = cli.command else { bail!("these are not options of `record`") };
    options.recording.in_one_file = true;
    let partial = options.recording.output.clone().context("the recording has no file")?;
    let (mut begun, mut mark) = (Instant::now(), None);
    let (recorded, ended_by) = record(&options, || {
        begun = Instant::now();
        mark = mark_as_being_written(&partial);
        // if the recorder has exited, a signal follows
        send(&mut io::stdout(), &Report::Begun).ok();
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let lost = lost_by_cause(&recorded.end.lost);
    let trace = recorded.end_trace()?;
    fs::rename(&partial, &args.rename).context("cannot rename the complete recording")?;
    let why = match ended_by {
        EndedBy::Time => "",
        EndedBy::Exit => "the process exited",
        EndedBy::Size => "it reached the size limit",
        EndedBy::Request => "gpuprobe ended",
    };
    let why = [why, &lost].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
    Ok(Report::Made { bytes: trace.bytes, seconds, why })
}

/// What is missing from a recording: `12 lost (ring_full)`.
fn lost_by_cause(lost: &BTreeMap<String, u64>) -> String {
    let causes: Vec<_> =
        lost.iter().map(|(cause, count)| format!("{} lost ({cause})", grouped(*count))).collect();
    causes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named_by_cause() {
        assert_eq!(lost_by_cause(&BTreeMap::new()), "");
        let lost = [("disk_full", 240_244), ("ring_full", 1)].map(|(cause, count)| (cause.to_owned(), count));
        assert_eq!(lost_by_cause(&lost.into()), "240,244 lost (disk_full), 1 lost (ring_full)");
    }
}
