//! What probes may take of processes, and which functions go without them for it.

use gpuprobe_analysis::{BudgetReport, LeftOut, Snapshot};

use super::collect::begin_process;
use super::metric::{Kind, Metric, PROCESS, metric, with_unit};
use super::samples::Samples;

/// Ratios are written with so many decimal places.
const PLACES: u8 = 6;
const FUNCTION: &[&str] = &["api", "function"];

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_budget_ratio",
            Kind::Gauge,
            &[],
            "The part of each process's time that probes may take.",
            |snapshot, samples| {
                of(snapshot, |budget| budget.share.into_iter().for_each(|share| ratio(samples, share)))
            },
        ),
        "ratio",
    ),
    with_unit(
        metric(
            "gpuprobe_probe_time_ratio",
            Kind::Gauge,
            PROCESS,
            "The part of a process's time, by the clock and of one thread, that probes take, by calls times what a call \
             costs here.",
            |snapshot, samples| of(snapshot, |budget| processes(snapshot, budget, samples)),
        ),
        "ratio",
    ),
    metric(
        "gpuprobe_functions_left_out",
        Kind::Gauge,
        &[],
        "Functions that are not counted now because their calls cost more than the budget.",
        |snapshot, samples| {
            of(snapshot, |budget| {
                samples.number(&[], budget.left_out.iter().filter(|f| f.is_out).count() as u64);
            });
        },
    ),
    metric(
        "gpuprobe_function_left_out",
        Kind::Counter,
        FUNCTION,
        "How often a function was left out for the budget; all that is told of it is a lower bound then.",
        |snapshot, samples| each(snapshot, |f, labels| samples.number(labels, f.times)),
    ),
    with_unit(
        metric(
            "gpuprobe_function_left_out_seconds",
            Kind::Counter,
            FUNCTION,
            "For how long a function was not counted, for the budget.",
            |snapshot, samples| each(snapshot, |f, labels| samples.nanoseconds(labels, f.missed_ns)),
        ),
        "seconds",
    ),
];

fn of(snapshot: &Snapshot, then: impl FnOnce(&BudgetReport)) {
    if let Some(budget) = &snapshot.budget {
        then(budget);
    }
}

fn ratio(samples: &mut Samples, ratio: f64) {
    // a conversion to an integer saturates
    samples.decimal(&[], (ratio * 1e6).round() as u64, PLACES);
}

fn each(snapshot: &Snapshot, mut then: impl FnMut(&LeftOut, &[&str])) {
    of(snapshot, |budget| {
        budget.left_out.iter().for_each(|f| then(f, &[f.api.as_str(), f.function]));
    });
}

fn processes(snapshot: &Snapshot, budget: &BudgetReport, samples: &mut Samples) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none()) {
        let is_it = |cost: &&gpuprobe_analysis::budget::ProcessCost| {
            (cost.pid, cost.instance) == (process.pid.0, process.instance)
        };
        begin_process(samples, process);
        ratio(samples, budget.processes.iter().find(is_it).map_or(0.0, |cost| cost.share));
    }
}
