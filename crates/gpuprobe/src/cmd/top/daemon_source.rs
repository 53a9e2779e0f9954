//! Readings of daemons, over HTTP.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_output::http_client::DaemonClient;
use gpuprobe_output::top::reading_of_answer;

use super::host_reader::{Answer, HostSource, Hosts, poll_for};
use crate::cli::TopArgs;
use crate::session::signals::Signals;

/// How long the first frame waits for the first answers of several daemons.
const FIRST_ANSWERS: Duration = Duration::from_secs(1);

struct DaemonSource(DaemonClient);

/// Starts to read the daemons. `None` if a signal ended gpuprobe before there was an answer.
pub(super) fn open_daemons(args: &TopArgs, signals: &mut Signals) -> Result<Option<Hosts>> {
    let read =
        |file: &PathBuf| fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    let password = args.password_file.as_ref().map(read).transpose()?;
    let (mut hosts, mut addresses) = (Hosts::none()?, HashSet::new());
    for url in &args.connect {
        let client = DaemonClient::new(url, args.ca_file.as_deref(), password.as_deref())?;
        if !addresses.insert(client.address()) {
            bail!("{url}: this daemon is given twice; name each daemon once");
        }
        hosts.add(Some(client.name()), args.interval, || Ok(DaemonSource(client)))?;
    }
    Ok(if wait_for_answers(&mut hosts, signals)? { Some(hosts) } else { None })
}

/// Waits for the first answer of each daemon. Of several ones, some may be silent. Whether gpuprobe goes on.
fn wait_for_answers(hosts: &mut Hosts, signals: &mut Signals) -> Result<bool> {
    let started = Instant::now();
    while !hosts.all_were_read() {
        let left = (hosts.count() > 1).then(|| FIRST_ANSWERS.saturating_sub(started.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        hosts.wait(&[signals.fd()], left)?;
        if signals.termination_signal().is_some() {
            return Ok(false);
        }
    }
    // a daemon that does not answer now may do so later, but a wrong address is reported at once
    match (hosts.count(), hosts.problem()) {
        (1, Some(problem)) => bail!("{problem}"),
        _ => Ok(true),
    }
}

impl HostSource for DaemonSource {
    const HAS_PROBES: bool = false;

    fn read(&mut self) -> Result<Answer> {
        let Self(client) = self;
        Ok(client.snapshot().map_err(|error| error.to_string()).and_then(|answer| {
            reading_of_answer(&answer)
                .map_err(|error| format!("{}: its answer is not a snapshot: {error}", client.name()))
        }))
    }

    fn is_readable(&self) -> bool {
        true
    }

    fn wait(&mut self, stop: BorrowedFd<'_>, most: Duration) -> Result<()> {
        poll_for(&[stop.as_fd()], Some(most)).map(drop)
    }
}
