//! `gpuprobe doctor --cost`: predicts what it would cost to observe the running processes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use gpuprobe_analysis::prediction::COMMANDS;
use gpuprobe_analysis::{Prediction, Rate, predict};
use gpuprobe_capture::{Capture, CaptureConfig, Collect, ProbeCosts, check_machine};
use gpuprobe_discover::{Inspector, Library, ProbeCost, Target, plan};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Class, FunctionId, Hooks, Tgid, catalogue};

use crate::cli::{DoctorArgs, Layer};
use crate::session::host::observer::MEMORY;
use crate::session::probes::helper_commands;
use crate::session::probes::selection::{RuntimeFailures, Selection};
use crate::session::signals::Signals;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;

const PROC: &str = "/proc";

pub(super) fn run(args: &DoctorArgs) -> Result<u8> {
    // without privileges no process would appear to use CUDA
    check_machine(args.attach)?;
    let mut signals = Signals::block()?;
    let mut inspector = Inspector::new();
    let scan = match args.pid {
        Some(pid) => inspector.of_pid(Path::new(PROC), pid)?,
        None => inspector.of_processes(Path::new(PROC)),
    };
    let users = users(&mut inspector, args.pid);
    let mut prediction = Prediction::default();
    if !users.is_empty() {
        let modes = modes(args)?;
        note!("gpuprobe: counting calls for {} s", args.duration.as_secs_f64());
        prediction = predicted(args, (&scan.libraries, &users), modes, &mut signals)?;
    }
    let text = match args.json {
        true => format!("{:#}\n", serde_json::to_value(&prediction)?),
        false => gpuprobe_output::prediction(&prediction),
    };
    print(&text)?;
    Ok(0)
}

/// A command that observes processes: what it probes, what its probes collect, and what a call costs.
struct Mode {
    selection: Selection,
    collect: Collect,
    costs: ProbeCosts,
}

/// What a daemon selects by default of these classes.
pub(super) fn daemon_selection(classes: &[Class]) -> Selection {
    Selection::Driver {
        classes: classes.to_vec(),
        named: false,
        few: false,
        failures: RuntimeFailures::Rare,
        entry_counted: Vec::new(),
    }
}

/// In the order of [`COMMANDS`], with default options.
fn modes(args: &DoctorArgs) -> Result<[Mode; COMMANDS.len()]> {
    let config = CaptureConfig { tier: args.attach, names: true, ..CaptureConfig::default() };
    let daemon = CaptureConfig {
        sites: true,
        launches: true,
        sample_launch_returns: true,
        copies: true,
        ..config.clone()
    };
    let memory = CaptureConfig { sites: true, ..config.clone() };
    let costs = |config: &CaptureConfig, collect| {
        ProbeCosts::measure(config, collect, helper_commands::attach_helper(false))
    };
    Ok([
        Mode {
            selection: daemon_selection(crate::cmd::daemon::EVERYTHING),
            collect: Collect::Count,
            costs: costs(&daemon, Collect::Count)?,
        },
        Mode {
            selection: daemon_selection(MEMORY),
            collect: Collect::Count,
            costs: costs(&memory, Collect::Count)?,
        },
        Mode {
            selection: Selection::from_globs(&[], Layer::Both, &Hooks::default())?,
            collect: Collect::Stream,
            costs: costs(&config, Collect::Stream)?,
        },
    ])
}

impl Mode {
    /// The cost of a call of a function; 0 if it is not probed.
    fn cost(&self, library: &Library, name: &str, id: FunctionId, point: ProbeCost) -> f64 {
        let is_probed = self.selection.function(library, name).is_some();
        let function = catalogue().get(id).filter(|_| is_probed);
        function.map_or(0.0, |f| self.costs.of(f, point, self.selection.collect(id, self.collect)))
    }
}

/// Counts the entries of calls, which is cheapest, and multiplies by their cost.
fn predicted(
    args: &DoctorArgs,
    (libraries, users): (&[Library], &BTreeMap<Tgid, String>),
    modes: [Mode; COMMANDS.len()],
    signals: &mut Signals,
) -> Result<Prediction> {
    let config = CaptureConfig {
        tier: args.attach,
        entry_counts: true,
        only_targets: args.pid.is_some(),
        ring_bytes: 1 << 20,
        live_entries: 1,
        ..CaptureConfig::default()
    };
    let mut capture = Capture::open(&config, helper_commands::attach_helper(false))?;
    let modes = modes.map(|mode| Mode { selection: mode.selection.on(capture.tier()), ..mode });
    let wanted =
        |library: &Library, name: &str| modes.iter().find_map(|mode| mode.selection.function(library, name));
    let (plan, _) = plan(libraries, &wanted, &|_, _| None);
    let mut costs: HashMap<FunctionId, [f64; COMMANDS.len()]> = HashMap::new();
    for target in &plan.targets {
        capture.attach(target, &|_| Collect::EntryCount)?;
        add_costs(&mut costs, target, &modes);
    }
    capture.start_observing()?;
    if let Some(pid) = args.pid {
        capture.add_target(Tgid(pid))?;
    }
    let (begun, before) = (Instant::now(), calls(&capture)?);
    while begun.elapsed() < args.duration && signals.termination_signal().is_none() {
        capture.wait(&[signals.fd()], args.duration.saturating_sub(begun.elapsed()));
        capture.take()?;
    }
    let (seconds, after) = (begun.elapsed().as_secs_f64(), calls(&capture)?);
    let tier = capture.tier().to_string();
    capture.detach()?;
    capture.dismiss();
    let rate = |(&(process, function), calls): (&(ProcessKey, FunctionId), &u64)| {
        let new = calls.saturating_sub(before.get(&(process, function)).copied().unwrap_or(0));
        Rate { pid: process.tgid, function, per_second: new as f64 / seconds }
    };
    let rates: Vec<Rate> = after.iter().map(rate).collect();
    let processes = predict(users, &rates, &|id| costs.get(&id).copied().unwrap_or_default());
    Ok(Prediction { tier, seconds, processes })
}

/// Adds the costs of a file. If a function is in several files, the highest cost counts.
fn add_costs(
    costs: &mut HashMap<FunctionId, [f64; COMMANDS.len()]>,
    target: &Target,
    modes: &[Mode; COMMANDS.len()],
) {
    for planned in &target.functions {
        let known = costs.entry(planned.function).or_default();
        for (known, mode) in known.iter_mut().zip(modes) {
            let cost = mode.cost(&target.library, &planned.name, planned.function, planned.point.cost);
            *known = known.max(cost);
        }
    }
}

fn calls(capture: &Capture) -> Result<HashMap<(ProcessKey, FunctionId), u64>> {
    Ok(capture.counts()?.iter().map(|row| ((row.process, row.function), row.calls)).collect())
}

/// The names of the processes that have CUDA mapped, without those that have exited meanwhile.
fn users(inspector: &mut Inspector, pid: Option<u32>) -> BTreeMap<Tgid, String> {
    let proc_root = Path::new(PROC);
    let all = || {
        let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let mut users = BTreeMap::new();
    for pid in pid.map_or_else(all, |pid| vec![pid]) {
        let uses = inspector.of_pid(proc_root, pid).is_ok_and(|scan| !scan.libraries.is_empty());
        if let Some(comm) =
            fs::read_to_string(proc_root.join(pid.to_string()).join("comm")).ok().filter(|_| uses)
        {
            users.insert(Tgid(pid), comm.trim_end().to_owned());
        }
    }
    users
}
