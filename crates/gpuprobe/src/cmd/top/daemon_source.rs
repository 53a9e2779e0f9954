//! Readings of daemons, over HTTP. Each daemon has a thread, so that one that does not answer delays no other.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gpuprobe_analysis::view::Reading;
use gpuprobe_output::http_client::DaemonClient;
use gpuprobe_output::top::reading_of_answer;

use super::{Source, wait_for};
use crate::cli::TopArgs;
use crate::session::signals::Signals;

/// How often a new answer is looked for before there is a frame.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the first frame waits for the first answers of several daemons.
const FIRST_ANSWERS: Duration = Duration::from_secs(1);

/// What a thread has read last.
#[derive(Debug, Default)]
struct Latest {
    reading: Option<Reading>,
    problem: Option<String>,
}

impl Latest {
    fn has_answer(&self) -> bool {
        self.reading.is_some() || self.problem.is_some()
    }
}

pub(super) struct DaemonSource {
    names: Vec<String>,
    latest: Vec<Arc<Mutex<Latest>>>,
}

fn locked(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DaemonSource {
    /// `None` if a signal ended gpuprobe before there was an answer.
    pub(super) fn open(args: &TopArgs, signals: &mut Signals) -> Result<Option<Self>> {
        let read = |file: &PathBuf| {
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        };
        let password = args.password_file.as_ref().map(read).transpose()?;
        let mut source = Self { names: Vec::new(), latest: Vec::new() };
        for url in &args.connect {
            let client = DaemonClient::new(url, args.ca_file.as_deref(), password.as_deref())?;
            let latest = Arc::<Mutex<Latest>>::default();
            source.names.push(client.name());
            source.latest.push(Arc::clone(&latest));
            let interval = args.interval;
            std::thread::Builder::new()
                .name("daemon".to_owned())
                .spawn(move || {
                    loop {
                        take(&client, &latest);
                        std::thread::sleep(interval);
                    }
                })
                .context("cannot start a thread")?;
        }
        Ok(if source.wait_for_answers(signals)? { Some(source) } else { None })
    }

    /// Waits for the first answer of each daemon. Of several ones, some may be silent. Whether gpuprobe goes on.
    fn wait_for_answers(&self, signals: &mut Signals) -> Result<bool> {
        let started = Instant::now();
        let is_done = || match self.latest.as_slice() {
            [only] => locked(only).has_answer(),
            all => started.elapsed() > FIRST_ANSWERS || all.iter().all(|latest| locked(latest).has_answer()),
        };
        while !is_done() {
            wait_for(signals, None, LOOK_EVERY)?;
            if signals.termination_signal().is_some() {
                return Ok(false);
            }
        }
        // a daemon that does not answer now may do so later, but a wrong address is reported at once
        match (self.latest.as_slice(), self.problem()) {
            ([_], Some(problem)) => anyhow::bail!("{problem}"),
            _ => Ok(true),
        }
    }
}

/// Asks a daemon once.
fn take(client: &DaemonClient, latest: &Mutex<Latest>) {
    let reading = client.snapshot().map_err(|error| error.to_string()).and_then(|answer| {
        reading_of_answer(&answer)
            .map_err(|error| format!("{}: its answer is not a snapshot: {error}", client.name()))
    });
    let mut latest = locked(latest);
    match reading {
        Ok(reading) => *latest = Latest { reading: Some(reading), problem: None },
        Err(problem) => latest.problem = Some(problem),
    }
}

impl Source for DaemonSource {
    fn wait(&mut self, signals: &Signals, keys: Option<io::Stdin>, most: Duration) -> Result<()> {
        wait_for(signals, keys, most)
    }

    fn readings(&mut self) -> Result<Vec<(usize, Reading)>> {
        let all = self.latest.iter().enumerate();
        Ok(all.filter_map(|(host, latest)| Some((host, locked(latest).reading.clone()?))).collect())
    }

    fn hosts(&self) -> &[String] {
        &self.names
    }

    fn has_problem(&self, host: usize) -> bool {
        self.latest.get(host).is_none_or(|latest| locked(latest).problem.is_some())
    }

    fn problem(&self) -> Option<String> {
        let problems: Vec<_> =
            self.latest.iter().filter_map(|latest| locked(latest).problem.clone()).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}
