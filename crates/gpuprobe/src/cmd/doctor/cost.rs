//! `gpuprobe doctor --cost`: what watching would take of the processes that run now.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use gpuprobe_analysis::prediction::WAYS;
use gpuprobe_analysis::{Prediction, Rate, predict};
use gpuprobe_capture::{Capture, CaptureConfig, Collect, ProbeCosts, check_machine};
use gpuprobe_discover::{Inspector, Library, ProbeCost, Target, plan};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Class, FunctionId, Hooks, Tgid, catalogue};

use crate::cli::DoctorArgs;
use crate::guard;
use crate::notes::note;
use crate::observer::MEMORY;
use crate::select::Selection;
use crate::signals::Signals;
use crate::stdout::print;

const PROC: &str = "/proc";

pub(super) fn run(args: &DoctorArgs) -> Result<u8> {
    // without privileges nobody would be seen to use CUDA
    check_machine(args.attach)?;
    let mut signals = Signals::hold_back()?;
    let mut inspector = Inspector::new();
    let scan = match args.pid {
        Some(pid) => inspector.of_pid(Path::new(PROC), pid)?,
        None => inspector.of_processes(Path::new(PROC)),
    };
    let users = users(&mut inspector, args.pid);
    let mut prediction = Prediction::default();
    if !users.is_empty() {
        let ways = ways(args)?;
        note!("gpuprobe: counting calls for {} s", args.duration.as_secs_f64());
        prediction = predicted(args, (&scan.libraries, &users), ways, &mut signals)?;
    }
    let text = match args.json {
        true => format!("{:#}\n", serde_json::to_value(&prediction)?),
        false => gpuprobe_output::prediction(&prediction),
    };
    print(&text)?;
    Ok(0)
}

/// A way to watch: what it probes, what its probes do, and what that costs.
struct Way {
    selection: Selection,
    collect: Collect,
    costs: ProbeCosts,
}

/// In the order of [`WAYS`]. What is not named is as it is by default.
fn ways(args: &DoctorArgs) -> Result<[Way; WAYS.len()]> {
    let driver = |classes: &[Class]| Selection::Driver {
        classes: classes.to_vec(),
        named: false,
        few: false,
        failures: true,
        tallied: Vec::new(),
    };
    let config = CaptureConfig { tier: args.attach, names: true, ..CaptureConfig::default() };
    let daemon = CaptureConfig { sites: true, launches: true, copies: true, ..config.clone() };
    let memory = CaptureConfig { sites: true, ..config.clone() };
    let costs = |config: &CaptureConfig, collect| ProbeCosts::measure(config, collect, guard::command(false));
    Ok([
        Way {
            selection: driver(crate::cmd::daemon::EVERYTHING),
            collect: Collect::Count,
            costs: costs(&daemon, Collect::Count)?,
        },
        Way { selection: driver(MEMORY), collect: Collect::Count, costs: costs(&memory, Collect::Count)? },
        Way {
            selection: Selection::from_globs(&[], &Hooks::default())?,
            collect: Collect::Stream,
            costs: costs(&config, Collect::Stream)?,
        },
    ])
}

impl Way {
    /// What a call of a function costs; nothing where it is not probed.
    fn cost(&self, library: &Library, name: &str, id: FunctionId, point: ProbeCost) -> f64 {
        let is_probed = self.selection.function(library, name).is_some();
        let function = catalogue().get(id).filter(|_| is_probed);
        function.map_or(0.0, |f| self.costs.of(f, point, self.selection.collect(id, self.collect)))
    }
}

/// Counts calls as they begin, which is the cheapest way, and multiplies.
fn predicted(
    args: &DoctorArgs,
    (libraries, users): (&[Library], &BTreeMap<Tgid, String>),
    ways: [Way; WAYS.len()],
    signals: &mut Signals,
) -> Result<Prediction> {
    let config = CaptureConfig {
        tier: args.attach,
        tallies: true,
        only_targets: args.pid.is_some(),
        ring_bytes: 1 << 20,
        live_entries: 1,
        ..CaptureConfig::default()
    };
    let mut capture = Capture::open(&config, guard::command(false))?;
    let ways = ways.map(|way| Way { selection: way.selection.on(capture.tier()), ..way });
    let wanted =
        |library: &Library, name: &str| ways.iter().find_map(|way| way.selection.function(library, name));
    let (plan, _) = plan(libraries, &wanted);
    let mut costs: HashMap<FunctionId, [f64; WAYS.len()]> = HashMap::new();
    for target in &plan.targets {
        capture.attach(target, &|_| Collect::Entries)?;
        add_costs(&mut costs, target, &ways);
    }
    capture.start_observing()?;
    if let Some(pid) = args.pid {
        capture.add_target(Tgid(pid))?;
    }
    let (begun, before) = (Instant::now(), calls(&capture)?);
    while begun.elapsed() < args.duration && signals.told_to_end().is_none() {
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

/// The dearest of all files counts.
fn add_costs(costs: &mut HashMap<FunctionId, [f64; WAYS.len()]>, target: &Target, ways: &[Way; WAYS.len()]) {
    for planned in &target.functions {
        let known = costs.entry(planned.function).or_default();
        for (known, way) in known.iter_mut().zip(ways) {
            let cost = way.cost(&target.library, &planned.name, planned.function, planned.point.cost);
            *known = known.max(cost);
        }
    }
}

fn calls(capture: &Capture) -> Result<HashMap<(ProcessKey, FunctionId), u64>> {
    Ok(capture.counts()?.iter().map(|row| ((row.process, row.function), row.calls)).collect())
}

/// Who has CUDA mapped, with names; those that have ended meanwhile are left out.
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
