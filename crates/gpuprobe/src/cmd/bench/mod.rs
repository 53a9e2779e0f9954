//! `gpuprobe bench`: measures what a call costs in each mode, compared with empty probes.
//!
//! Every mode runs in every round, on functions of an embedded library that do almost nothing.

mod modes;
mod other_program;
mod probed_copy;

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

use self::modes::{Mode, targets_on};
use self::other_program::OtherProgram;
use self::probed_copy::{ProbeKind, ProbedCopy};
use crate::cli::BenchArgs;
use crate::cmd::embedded;
use crate::session::signals::{self, Signals, status_of};
use crate::terminal::notes::note;
use crate::terminal::stdout::print;

/// Compressed.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo/bench.gz"));
/// Rounds that are not measured: the first calls create rows and fill caches.
const WARM_UP: u32 = 5;
const CALLS_PER_ROUND: u32 = 1000;
/// Longest time between two reads of the ring buffer: the BPF programs do not wake us up for every record.
const READ_EVERY: Duration = Duration::from_millis(50);

/// A signal ended the measurement.
#[derive(Debug)]
struct Interrupted(Signal);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

pub(crate) fn run(args: &BenchArgs) -> Result<u8> {
    // before there is anything to clean up, and before any thread is created
    let mut signals = Signals::block()?;
    let report = match report(args, &mut signals) {
        Ok(report) => report,
        Err(error) => return error.downcast::<Interrupted>().map(|interrupted| status_of(interrupted.0)),
    };
    // everything is cleaned up, and a reader of stdout may be slow
    signals::unblock_signals()?;
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

/// Measures on every requested tier.
fn report(args: &BenchArgs, signals: &mut Signals) -> Result<CostReport> {
    let support = support();
    let tiers: Vec<_> = match args.attach {
        // if it is not supported, opening the capture reports why
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

/// Measures on one tier. When it returns, all probes are detached and all files are removed, also after an error.
fn on_tier(args: &BenchArgs, signals: &mut Signals, tier: Option<Tier>, is_best: bool) -> Result<TierCost> {
    let folder = embedded::folder("bench")?;
    let mut copies = Vec::new();
    for kind in ProbeKind::ALL {
        copies.push(ProbedCopy::create(folder.path(), kind, tier)?);
        check_signals(signals)?;
    }
    let program = folder.path().join("bench");
    embedded::write(&program, PROGRAM)?;
    let modes = modes::modes(args.beside.is_some());
    let mut other = None;
    if let Some(command) = &args.beside {
        let library = copy_of(&mut copies, ProbeKind::ByOther)?.library(modes::Prologue::Push)?;
        other = Some(OtherProgram::start(command, library)?);
    }
    let lines = measure(&program, &mut copies, (&modes, args.rounds), signals, other.as_mut())?;
    // so that its output comes before our table
    drop(other);
    let measured = read(&lines, &modes, &mut copies)?;
    for copy in &mut copies {
        copy.end()?;
    }
    let tier = copies.iter().find_map(ProbedCopy::tier);
    // the targets apply to sessions, and multi links cost nearly the same; otherwise to the best supported tier
    let is_judged = is_best && (args.attach.is_none() || tier != Some(Tier::Perf));
    Ok(TierCost {
        tier: tier.map_or_else(String::new, |tier| tier.to_string()),
        modes: costs(&measured),
        targets: if is_judged { judge(&measured, &targets_on(tier)) } else { Vec::new() },
    })
}

/// Fails if a signal has ended the measurement.
fn check_signals(signals: &mut Signals) -> Result<()> {
    signals.termination_signal().map_or(Ok(()), |signal| Err(Interrupted(signal).into()))
}

/// Runs the program until it exits, and discards its records from the ring buffer. Returns the lines that it wrote.
fn measure(
    program: &Path,
    copies: &mut [ProbedCopy],
    (modes, rounds): (&[Mode], u32),
    signals: &mut Signals,
    mut other: Option<&mut OtherProgram>,
) -> Result<Vec<Value>> {
    let mut command = Command::new(program);
    command.arg((WARM_UP + rounds).to_string()).arg(CALLS_PER_ROUND.to_string());
    for mode in modes {
        let library = copy_of(copies, mode.kind)?.library(mode.prologue)?;
        command.arg(format!("{}:{}", modes::word(mode), library.display()));
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| {
        format!("cannot run {}: set TMPDIR to a folder from which programs may run", program.display())
    })?;
    let stdout = child.stdout.take().context("the measured program has no output")?;
    let reader = thread::spawn(move || lines(stdout));
    let taken = take_until(copies, || {
        check_signals(signals)?;
        other.as_mut().map_or(Ok(()), |other| other.check())?;
        Ok(reader.is_finished())
    });
    if taken.is_err() {
        child.kill().ok();
    }
    let lines = reader.join().ok().context("the output of the measured program could not be read");
    let status = child.wait()?;
    // first: a killed program has not written all lines
    taken?;
    let lines = lines??;
    ensure!(status.success(), "the measured program failed ({status})");
    Ok(lines)
}

fn copy_of(copies: &mut [ProbedCopy], kind: ProbeKind) -> Result<&mut ProbedCopy> {
    copies.iter_mut().find(|copy| copy.kind() == kind).context("a mode has no library")
}

fn take_until(copies: &mut [ProbedCopy], mut has_exited: impl FnMut() -> Result<bool>) -> Result<()> {
    loop {
        // checked first, so that everything sent before the end is read
        let ended = has_exited()?;
        for copy in &mut *copies {
            // wait only for this one: the others have almost no records
            let wait = if copy.kind() == ProbeKind::Plain { READ_EVERY } else { Duration::ZERO };
            copy.take(wait)?;
        }
        if ended {
            return Ok(());
        }
    }
}

fn lines(stdout: ChildStdout) -> Result<Vec<Value>> {
    BufReader::new(stdout).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// The measurements of the program, checked against what the probes counted.
fn read(lines: &[Value], modes: &[Mode], copies: &mut [ProbedCopy]) -> Result<Vec<Measured>> {
    let made = lines.last().map(|last| &last["made"]).context("the measured program printed nothing")?;
    let number = |list: &Value, mode: usize| list.get(mode).and_then(Value::as_u64);
    let mut measured = Vec::new();
    for (index, mode) in modes.iter().enumerate() {
        let rounds = lines.iter().filter_map(|line| number(line.get("ns")?, index));
        let ns = rounds.skip(WARM_UP as usize).map(|ns| ns as f64 / f64::from(CALLS_PER_ROUND)).collect();
        let made_by = |index| number(made, index).context("the measured program did not report its calls");
        let made = made_by(index)?;
        // calls of one function are counted together, in however many libraries it is
        let is_same = |other: &Mode| (other.kind, other.workload) == (mode.kind, mode.workload);
        let sharing = (0..modes.len()).filter(|other| is_same(&modes[*other]));
        let made_in_all = sharing.map(made_by).sum::<Result<u64>>()?;
        let copy = copy_of(copies, mode.kind)?;
        let seen = copy.seen(mode.workload)?;
        if let Some(wrong) = seen.iter().find(|seen| **seen != made_in_all) {
            bail!(
                "{}: the probes saw {wrong} of {made_in_all} calls, so the measured cost is meaningless",
                mode.what
            );
        }
        measured.push(Measured {
            name: mode.name,
            what: mode.what,
            floor: mode.floor,
            ns,
            made,
            seen: (!seen.is_empty()).then_some(made),
            reader_ns: copy.reader_ns(mode.workload),
        });
    }
    Ok(measured)
}
