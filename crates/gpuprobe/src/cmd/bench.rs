//! `gpuprobe bench`: what a call costs in each mode, beside probes that do nothing.
//!
//! Every mode has its turn in every round, on functions of a built-in library that do next to nothing.

mod bed;

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gpuprobe_analysis::{CostReport, Measured, costs};
use gpuprobe_capture::support;
use nix::sys::signal::Signal;
use serde_json::Value;

use self::bed::{Bed, Probed};
use crate::builtin;
use crate::cli::BenchArgs;
use crate::notes::note;
use crate::signals::{self, Signals, status_of};
use crate::stdout::print;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo/bench"));
/// Rounds before those that count: first calls make rows and fill caches.
const WARM_UP: u32 = 5;
const CALLS_PER_ROUND: u32 = 1000;
/// How long records may wait in the ring before they are looked at without being called.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which functions of the library are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Count,
    Stream,
    Memory,
    Launches,
    Copies,
}

impl Work {
    /// As the program knows it.
    fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Stream => "stream",
            Self::Memory => "memory",
            Self::Launches => "launches",
            Self::Copies => "copies",
        }
    }

    /// What is probed for it.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["cuCtxSynchronize"],
            Self::Stream => &[bed::STREAMED],
            Self::Memory => &["cuMemAlloc_v2", "cuMemFree_v2"],
            Self::Launches => &["cuLaunchKernel"],
            Self::Copies => &["cuMemcpyHtoD_v2", "cuMemAlloc_v2", "cuMemAllocHost_v2"],
        }
    }
}

struct Mode {
    name: &'static str,
    what: &'static str,
    floor: Option<&'static str>,
    work: Work,
    probed: Probed,
}

const MODES: [Mode; 12] = [
    Mode { name: "none", what: "a call without probes", floor: None, work: Work::Count, probed: Probed::Not },
    Mode {
        name: "floor",
        what: "a call with empty probes (the floor)",
        floor: None,
        work: Work::Count,
        probed: Probed::Bare,
    },
    Mode {
        name: "count",
        what: "counted: calls, errors, latency",
        floor: Some("floor"),
        work: Work::Count,
        probed: Probed::Plain,
    },
    Mode {
        name: "stream",
        what: "streamed to nobody",
        floor: Some("floor"),
        work: Work::Stream,
        probed: Probed::Plain,
    },
    Mode {
        name: "none_pair",
        what: "an allocation and a free without probes",
        floor: None,
        work: Work::Memory,
        probed: Probed::Not,
    },
    Mode {
        name: "floor_pair",
        what: "both with empty probes (the floor)",
        floor: None,
        work: Work::Memory,
        probed: Probed::Bare,
    },
    Mode {
        name: "memory",
        what: "counted, with live memory",
        floor: Some("floor_pair"),
        work: Work::Memory,
        probed: Probed::Plain,
    },
    Mode {
        name: "sites",
        what: "and where it was allocated",
        floor: Some("floor_pair"),
        work: Work::Memory,
        probed: Probed::WithSites,
    },
    Mode {
        name: "floor_launch",
        what: "a launch with empty probes (the floor)",
        floor: None,
        work: Work::Launches,
        probed: Probed::Bare,
    },
    Mode {
        name: "launches",
        what: "counted by kernel and stream, with gaps",
        floor: Some("floor_launch"),
        work: Work::Launches,
        probed: Probed::WithLaunches,
    },
    Mode {
        name: "floor_copy",
        what: "a copy with empty probes (the floor)",
        floor: None,
        work: Work::Copies,
        probed: Probed::Bare,
    },
    Mode {
        name: "copies",
        what: "counted by direction and memory",
        floor: Some("floor_copy"),
        work: Work::Copies,
        probed: Probed::WithCopies,
    },
];

/// The functions that have probes of one kind, each once.
fn functions_with(probed: Probed) -> BTreeSet<&'static str> {
    MODES
        .iter()
        .filter(|mode| mode.probed == probed)
        .flat_map(|mode| mode.work.functions())
        .copied()
        .collect()
}

/// A signal came before everything was measured.
#[derive(Debug)]
struct Told(Signal);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended by {}", self.0)
    }
}

impl std::error::Error for Told {}

pub(crate) fn run(args: &BenchArgs) -> Result<u8> {
    // before there is anything to clear away, and before any thread is made
    let mut signals = Signals::hold_back()?;
    let report = match report(args, &mut signals) {
        Ok(report) => report,
        Err(error) => return error.downcast::<Told>().map(|told| status_of(told.0)),
    };
    // nothing is left to be cleared away, and a reader may take its time
    signals::let_through()?;
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&report)?),
        false => gpuprobe_output::cost(&report),
    };
    print(&text)?;
    Ok(0)
}

/// Measures. Whether it succeeds or not, no probe and no file is left when it returns.
fn report(args: &BenchArgs, signals: &mut Signals) -> Result<CostReport> {
    let folder = builtin::folder("bench")?;
    let mut beds = Vec::new();
    for probed in Probed::ALL {
        beds.push(Bed::make(folder.path(), probed, &functions_with(probed), args.attach)?);
        go_on(signals)?;
    }
    let program = folder.path().join("bench");
    builtin::write(&program, PROGRAM)?;
    note!("gpuprobe: measuring for about {} s", 1 + args.rounds / 60);
    let said = measure(&program, &mut beds, args.rounds, signals)?;
    let modes = read(&said, &mut beds)?;
    for bed in &mut beds {
        bed.end()?;
    }
    Ok(CostReport {
        tier: beds.iter().find_map(Bed::tier).map_or_else(String::new, |tier| tier.to_string()),
        kernel: support().kernel,
        rounds: args.rounds as usize,
        calls_per_round: CALLS_PER_ROUND,
        modes: costs(&modes),
    })
}

/// Fails when a signal came to end us.
fn go_on(signals: &mut Signals) -> Result<()> {
    signals.told_to_end().map_or(Ok(()), |signal| Err(Told(signal).into()))
}

/// Runs the program to its end, while its calls are taken out of the ring and thrown away. Returns the lines it wrote.
fn measure(program: &Path, beds: &mut [Bed], rounds: u32, signals: &mut Signals) -> Result<Vec<Value>> {
    let mut command = Command::new(program);
    command.arg((WARM_UP + rounds).to_string()).arg(CALLS_PER_ROUND.to_string());
    for mode in &MODES {
        let bed = bed_of(beds, mode.probed)?;
        command.arg(format!("{}:{}", mode.work.word(), bed.library().display()));
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| {
        format!("cannot run {}: set TMPDIR to a folder from where programs may run", program.display())
    })?;
    let stdout = child.stdout.take().context("the measured program has no output")?;
    let reader = thread::spawn(move || lines(stdout));
    let taken = take_until(beds, signals, || reader.is_finished());
    if taken.is_err() {
        child.kill().ok();
    }
    let lines = reader.join().ok().context("the measured program could not be read");
    let status = child.wait()?;
    // first, because what was ended has not said everything
    taken?;
    let lines = lines??;
    ensure!(status.success(), "the measured program failed ({status})");
    Ok(lines)
}

fn bed_of(beds: &mut [Bed], probed: Probed) -> Result<&mut Bed> {
    beds.iter_mut().find(|bed| bed.probed() == probed).context("a mode has no library")
}

fn take_until(beds: &mut [Bed], signals: &mut Signals, is_over: impl Fn() -> bool) -> Result<()> {
    loop {
        // asked first: what was sent before the end is then taken
        let over = is_over();
        for bed in &mut *beds {
            // one wait is enough for all: the others have next to nothing to take
            let wait = if bed.probed() == Probed::Plain { LOOK_EVERY } else { Duration::ZERO };
            bed.take(wait)?;
        }
        if over {
            return Ok(());
        }
        go_on(signals)?;
    }
}

fn lines(stdout: ChildStdout) -> Result<Vec<Value>> {
    BufReader::new(stdout).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// What the program said, with what the probes saw of it.
fn read(said: &[Value], beds: &mut [Bed]) -> Result<Vec<Measured>> {
    let made = said.last().map(|last| &last["made"]).context("the measured program said nothing")?;
    let number = |list: &Value, mode: usize| list.get(mode).and_then(Value::as_u64);
    let mut modes = Vec::new();
    for (index, mode) in MODES.iter().enumerate() {
        let rounds = said.iter().filter_map(|line| number(line.get("ns")?, index));
        let ns = rounds.skip(WARM_UP as usize).map(|ns| ns as f64 / f64::from(CALLS_PER_ROUND)).collect();
        let made = number(made, index).context("the measured program did not say what it did")?;
        let seen = bed_of(beds, mode.probed)?.seen(mode.work)?;
        if let Some(wrong) = seen.iter().find(|seen| **seen != made) {
            bail!("{}: the probes saw {wrong} of {made}, so their cost means nothing", mode.what);
        }
        let seen = seen.first().copied();
        modes.push(Measured { name: mode.name, what: mode.what, floor: mode.floor, ns, made, seen });
    }
    Ok(modes)
}
