//! Readings of daemons, over HTTP. Each daemon has a thread, so that one that does not answer delays no other.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use gpuprobe_analysis::view::Reading;
use gpuprobe_output::http_client::DaemonClient;
use gpuprobe_output::top::reading_of_answer;

use super::{Source, wait_for};
use crate::cli::TopArgs;
use crate::session::signals::Signals;

/// What a thread has read last.
#[derive(Debug, Default)]
struct Latest {
    reading: Option<Reading>,
    problem: Option<String>,
}

pub(super) struct DaemonSource {
    /// Empty if there is only one, which needs no name on the screen.
    names: Vec<String>,
    latest: Vec<Arc<Mutex<Latest>>>,
}

fn locked(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DaemonSource {
    pub(super) fn open(args: &TopArgs) -> Result<Self> {
        let read = |file: &PathBuf| {
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        };
        let password = args.password_file.as_ref().map(read).transpose()?;
        let mut source = Self { names: Vec::new(), latest: Vec::new() };
        for url in &args.connect {
            let client = DaemonClient::new(url, args.ca_file.as_deref(), password.as_deref())?;
            let latest = Arc::<Mutex<Latest>>::default();
            // a daemon that does not answer now may do so later, but a wrong address is reported at once
            take(&client, &latest);
            if let (1, Some(problem)) = (args.connect.len(), locked(&latest).problem.take()) {
                anyhow::bail!("{problem}");
            }
            source.names.push(client.name());
            source.latest.push(Arc::clone(&latest));
            let interval = args.interval;
            std::thread::Builder::new()
                .name("daemon".to_owned())
                .spawn(move || {
                    loop {
                        std::thread::sleep(interval);
                        take(&client, &latest);
                    }
                })
                .context("cannot start a thread")?;
        }
        Ok(source)
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

    fn problem(&self) -> Option<String> {
        let problems: Vec<_> =
            self.latest.iter().filter_map(|latest| locked(latest).problem.clone()).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}
