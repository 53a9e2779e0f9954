//! Metrics of the budget: the time that probes take, and what is estimated because of it.

use gpuprobe_analysis::{BudgetReport, SampledFunction, Snapshot};

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
        "gpuprobe_functions_sampled",
        Kind::Gauge,
        &[],
        "Functions that are probed only for a share of the time now, because their calls cost more than the budget.",
        |snapshot, samples| {
            of(snapshot, |budget| {
                samples.number(&[], budget.sampled.iter().filter(|f| f.ratio < 1.0).count() as u64);
            });
        },
    ),
    with_unit(
        metric(
            "gpuprobe_function_probed_ratio",
            Kind::Gauge,
            FUNCTION,
            "The share of the time for which a function is probed now, if it was ever sampled.",
            |snapshot, samples| {
                each(snapshot, |f, labels| samples.decimal(labels, millionths(f.ratio), PLACES));
            },
        ),
        "ratio",
    ),
    metric(
        "gpuprobe_calls_estimated",
        Kind::Counter,
        FUNCTION,
        "The part of gpuprobe_calls_total of a sampled function that was added by scaling.",
        |snapshot, samples| each(snapshot, |f, labels| samples.number(labels, f.estimated_calls as u64)),
    ),
    metric(
        "gpuprobe_calls_standard_error",
        Kind::Gauge,
        FUNCTION,
        "The standard error of gpuprobe_calls_total of a sampled function, over all processes since the start. The true \
         number is within 1.96 standard errors in 95 of 100 cases.",
        |snapshot, samples| {
            each(snapshot, |f, labels| samples.number(labels, f.standard_error.ceil() as u64))
        },
    ),
    metric(
        "gpuprobe_calls_variance",
        Kind::Counter,
        FUNCTION,
        "The square of the standard error, up to the last finished stratum: the root of its increase is the standard \
         error of the calls in a time window.",
        |snapshot, samples| each(snapshot, |f, labels| samples.number(labels, f.variance as u64)),
    ),
];

fn of(snapshot: &Snapshot, then: impl FnOnce(&BudgetReport)) {
    if let Some(budget) = &snapshot.budget {
        then(budget);
    }
}

fn ratio(samples: &mut Samples, ratio: f64) {
    samples.decimal(&[], millionths(ratio), PLACES);
}

fn millionths(ratio: f64) -> u64 {
    // converting a float to an integer saturates
    (ratio * 1e6).round() as u64
}

fn each(snapshot: &Snapshot, mut then: impl FnMut(&SampledFunction, &[&str])) {
    of(snapshot, |budget| {
        budget.sampled.iter().for_each(|f| then(f, &[f.api.as_str(), f.function]));
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
