//! `gpuprobe bench`: what a call costs in each mode, beside probes that do nothing.
//!
//! Every mode has its turn in every round, on functions of a built-in library that do next to nothing.

mod bed;
mod modes;
mod rival;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gpuprobe_analysis::{CostReport, Measured, TierCost, costs, judge};
use gpuprobe_capture::{Tier, support};
use nix::sys::signal::Signal;
use serde_json::Value;

use self::bed::{Bed, Probed};
use self::modes::{MODES, Mode, TARGETS};
use self::rival::Rival;
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
    if !args.check {
        return Ok(0);
    }
    let missed: Vec<_> =
        report.missed().map(|(tier, missed)| format!("{} on {}", missed.mode, tier.tier)).collect();
    match missed.as_slice() {
        [] => Ok(0),
        missed => bail!("missed by more than a tenth: {}", missed.join(", ")),
    }
}

/// Measures on every tier that is asked for.
fn report(args: &BenchArgs, signals: &mut Signals) -> Result<CostReport> {
    let support = support();
    let tiers: Vec<_> = match args.attach {
        // where there is none, opening says why
        Some(tier) => vec![Some(tier)],
        None => {
            let here: Vec<_> =
                Tier::ALL.into_iter().filter(|tier| support.lacks(*tier).is_none()).map(Some).collect();
            if here.is_empty() { vec![None] } else { here }
        }
    };
    let seconds = tiers.len() as u32 * (2 + args.rounds / 25);
    note!("gpuprobe: measuring for about {seconds} s");
    let mut costs = Vec::new();
    for (index, tier) in tiers.into_iter().enumerate() {
        costs.push(on_tier(args, signals, tier, index == 0)?);
    }
    let (kernel, rounds) = (support.kernel, args.rounds as usize);
    Ok(CostReport { kernel, rounds, calls_per_round: CALLS_PER_ROUND, tiers: costs })
}

/// Measures. Whether it succeeds or not, no probe and no file is left when it returns.
fn on_tier(args: &BenchArgs, signals: &mut Signals, tier: Option<Tier>, is_best: bool) -> Result<TierCost> {
    let folder = builtin::folder("bench")?;
    let mut beds = Vec::new();
    for probed in Probed::ALL {
        beds.push(Bed::make(folder.path(), probed, tier)?);
        go_on(signals)?;
    }
    let program = folder.path().join("bench");
    builtin::write(&program, PROGRAM)?;
    let modes = if args.beside.is_some() { &MODES[..] } else { &MODES[..MODES.len() - 1] };
    let mut rival = None;
    if let Some(command) = &args.beside {
        let library = bed_of(&mut beds, Probed::ByOther)?.library(modes::Prologue::Push)?;
        rival = Some(Rival::start(command, library)?);
    }
    let said = measure(&program, &mut beds, (modes, args.rounds), signals, rival.as_mut())?;
    // so that what it has to say stands before our table
    drop(rival);
    let measured = read(&said, modes, &mut beds)?;
    for bed in &mut beds {
        bed.end()?;
    }
    let tier = beds.iter().find_map(Bed::tier);
    // what is aimed at is said of sessions, and links of many functions cost nearly the same; else of the best there is
    let is_judged = is_best && (args.attach.is_none() || tier != Some(Tier::Perf));
    Ok(TierCost {
        tier: tier.map_or_else(String::new, |tier| tier.to_string()),
        modes: costs(&measured),
        targets: if is_judged { judge(&measured, &TARGETS) } else { Vec::new() },
    })
}

/// Fails when a signal came to end us.
fn go_on(signals: &mut Signals) -> Result<()> {
    signals.told_to_end().map_or(Ok(()), |signal| Err(Told(signal).into()))
}

/// Runs the program to its end, while its calls are taken out of the ring and thrown away. Returns the lines it wrote.
fn measure(
    program: &Path,
    beds: &mut [Bed],
    (modes, rounds): (&[Mode], u32),
    signals: &mut Signals,
    mut rival: Option<&mut Rival>,
) -> Result<Vec<Value>> {
    let mut command = Command::new(program);
    command.arg((WARM_UP + rounds).to_string()).arg(CALLS_PER_ROUND.to_string());
    for mode in modes {
        let library = bed_of(beds, mode.probed)?.library(mode.prologue)?;
        command.arg(format!("{}:{}", mode.work.word(), library.display()));
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| {
        format!("cannot run {}: set TMPDIR to a folder from where programs may run", program.display())
    })?;
    let stdout = child.stdout.take().context("the measured program has no output")?;
    let reader = thread::spawn(move || lines(stdout));
    let taken = take_until(beds, || {
        go_on(signals)?;
        rival.as_mut().map_or(Ok(()), |rival| rival.check())?;
        Ok(reader.is_finished())
    });
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

fn take_until(beds: &mut [Bed], mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
    loop {
        // asked first: what was sent before the end is then taken
        let over = is_over()?;
        for bed in &mut *beds {
            // one wait is enough for all: the others have next to nothing to take
            let wait = if bed.probed() == Probed::Plain { LOOK_EVERY } else { Duration::ZERO };
            bed.take(wait)?;
        }
        if over {
            return Ok(());
        }
    }
}

fn lines(stdout: ChildStdout) -> Result<Vec<Value>> {
    BufReader::new(stdout).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// What the program said, with what the probes saw of it.
fn read(said: &[Value], modes: &[Mode], beds: &mut [Bed]) -> Result<Vec<Measured>> {
    let made = said.last().map(|last| &last["made"]).context("the measured program said nothing")?;
    let number = |list: &Value, mode: usize| list.get(mode).and_then(Value::as_u64);
    let mut measured = Vec::new();
    for (index, mode) in modes.iter().enumerate() {
        let rounds = said.iter().filter_map(|line| number(line.get("ns")?, index));
        let ns = rounds.skip(WARM_UP as usize).map(|ns| ns as f64 / f64::from(CALLS_PER_ROUND)).collect();
        let made_by = |index| number(made, index).context("the measured program did not say what it did");
        let made = made_by(index)?;
        // one function is counted once, in however many libraries it is
        let is_same = |other: &Mode| (other.probed, other.work) == (mode.probed, mode.work);
        let sharing = (0..modes.len()).filter(|other| is_same(&modes[*other]));
        let made_in_all = sharing.map(made_by).sum::<Result<u64>>()?;
        let bed = bed_of(beds, mode.probed)?;
        let seen = bed.seen(mode.work)?;
        if let Some(wrong) = seen.iter().find(|seen| **seen != made_in_all) {
            bail!("{}: the probes saw {wrong} of {made_in_all}, so their cost means nothing", mode.what);
        }
        measured.push(Measured {
            name: mode.name,
            what: mode.what,
            floor: mode.floor,
            ns,
            made,
            seen: (!seen.is_empty()).then_some(made),
            reader_ns: bed.reader_ns(mode.work),
        });
    }
    Ok(measured)
}
