//! Metrics of the budget: the time that probes take, and the functions whose probes were removed for it.

use gpuprobe_analysis::{BudgetReport, Snapshot, UnprobedFunction};

use super::collect::begin_process;
use super::metric::{Kind, Metric, PROCESS, metric, with_unit};
use super::samples::Samples;

/// Decimal places of ratios.
const PLACES: u8 = 6;
const FUNCTION: &[&str] = &["api", "function"];

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_budget_ratio",
            Kind::Gauge,
            &[],
            "The share of each process's time that probes may take.",
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
            "The share of wall-clock time of one thread that probes take in a process: calls times the cost of a probe on this \
             host.",
            |snapshot, samples| of(snapshot, |budget| processes(snapshot, budget, samples)),
        ),
        "ratio",
    ),
    metric(
        "gpuprobe_functions_skipped",
        Kind::Gauge,
        &[],
        "Functions that are not probed now because their calls cost more than the budget.",
        |snapshot, samples| {
            of(snapshot, |budget| {
                samples.number(&[], budget.unprobed.iter().filter(|f| f.is_unprobed).count() as u64);
            });
        },
    ),
    metric(
        "gpuprobe_function_skipped",
        Kind::Counter,
        FUNCTION,
        "How often the probes of a function were removed for the budget; its figures are lower bounds then.",
        |snapshot, samples| each(snapshot, |f, labels| samples.number(labels, f.times)),
    ),
    with_unit(
        metric(
            "gpuprobe_function_skipped_seconds",
            Kind::Counter,
            FUNCTION,
            "How long a function was not probed because of the budget.",
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
    // converting a float to an integer saturates
    samples.decimal(&[], (ratio * 1e6).round() as u64, PLACES);
}

fn each(snapshot: &Snapshot, mut then: impl FnMut(&UnprobedFunction, &[&str])) {
    of(snapshot, |budget| {
        budget.unprobed.iter().for_each(|f| then(f, &[f.api.as_str(), f.function]));
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
