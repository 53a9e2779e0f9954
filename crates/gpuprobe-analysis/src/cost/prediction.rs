//! The predicted cost of probing running processes: their call rates times the cost of a call in each command.

use std::collections::BTreeMap;

use gpuprobe_event::{FunctionId, Tgid, catalogue};
use serde::{Serialize, Serializer};

/// The commands that costs are predicted for.
pub const COMMANDS: [&str; 3] = ["daemon", "memory", "trace"];
/// Functions shown for each process, the most expensive first.
const MOST_FUNCTIONS: usize = 5;

/// How often a process calls a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub pid: Tgid,
    pub function: FunctionId,
    pub per_second: f64,
}

/// The predicted cost of probing one function of a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedFunction {
    pub function: &'static str,
    pub calls_per_second: f64,
    /// The share of one core, for each of [`COMMANDS`].
    #[serde(serialize_with = "by_name")]
    pub shares: [f64; COMMANDS.len()],
}

/// The predicted cost of probing one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedProcess {
    pub pid: Tgid,
    pub name: String,
    /// Calls of all functions that any of [`COMMANDS`] probes.
    pub calls_per_second: f64,
    /// The share of one core, for each of [`COMMANDS`].
    #[serde(serialize_with = "by_name")]
    pub shares: [f64; COMMANDS.len()],
    /// The most expensive functions.
    pub functions: Vec<PredictedFunction>,
}

/// The predictions for all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Prediction {
    /// The tier in which probes would be attached.
    pub tier: String,
    /// The time over which calls were counted.
    pub seconds: f64,
    /// Processes that use CUDA, including those that made no call.
    pub processes: Vec<PredictedProcess>,
}

/// Multiplies rates by costs. `cost` returns the nanoseconds of a call for each of [`COMMANDS`], 0 where it has no
/// probe. The most expensive process comes first.
pub fn predict(
    names: &BTreeMap<Tgid, String>,
    rates: &[Rate],
    cost: &dyn Fn(FunctionId) -> [f64; COMMANDS.len()],
) -> Vec<PredictedProcess> {
    let process = |(pid, name): (&Tgid, &String)| {
        let of = rates.iter().filter(|rate| rate.pid == *pid && rate.per_second > 0.0);
        let mut functions: Vec<_> = of.filter_map(|rate| function(rate, cost)).collect();
        functions.sort_by(|a, b| {
            highest(&b.shares).total_cmp(&highest(&a.shares)).then(a.function.cmp(b.function))
        });
        // an empty sum of floats is -0.0
        let sum = |of: &dyn Fn(&PredictedFunction) -> f64| functions.iter().map(of).sum::<f64>() + 0.0;
        let calls_per_second = sum(&|f| f.calls_per_second);
        let shares = std::array::from_fn(|command| sum(&|f| f.shares[command]));
        functions.truncate(MOST_FUNCTIONS);
        PredictedProcess { pid: *pid, name: name.clone(), calls_per_second, shares, functions }
    };
    let mut processes: Vec<_> = names.iter().map(process).collect();
    processes.sort_by(|a, b| highest(&b.shares).total_cmp(&highest(&a.shares)).then(a.pid.cmp(&b.pid)));
    processes
}

fn function(rate: &Rate, cost: &dyn Fn(FunctionId) -> [f64; COMMANDS.len()]) -> Option<PredictedFunction> {
    let function = catalogue().get(rate.function)?.name;
    let shares = cost(rate.function).map(|ns| rate.per_second * ns / 1e9);
    Some(PredictedFunction { function, calls_per_second: rate.per_second, shares })
}

fn by_name<S: Serializer>(shares: &[f64; COMMANDS.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(COMMANDS.iter().zip(shares))
}

fn highest(shares: &[f64]) -> f64 {
    shares.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    fn id(name: &str) -> FunctionId {
        catalogue().lookup(Api::Driver, None, name).unwrap().id
    }

    #[test]
    fn call_rate_times_cost_is_the_share_of_a_core() {
        let names = [(Tgid(1), "idle"), (Tgid(2), "busy")].map(|(pid, name)| (pid, name.to_owned())).into();
        let rate = |name: &str, per_second| Rate { pid: Tgid(2), function: id(name), per_second };
        let cost = |function: FunctionId| match function == id("cuMemAlloc_v2") {
            true => [1000.0, 2000.0, 4000.0],
            false => [1000.0, 0.0, 3000.0],
        };
        let rates =
            [rate("cuMemAlloc_v2", 5_000.0), rate("cuLaunchKernel", 20_000.0), rate("cuCtxSynchronize", 0.0)];
        let predicted = predict(&names, &rates, &cost);
        let [busy, idle] = predicted.as_slice() else { panic!("{predicted:?}") };
        assert_eq!((busy.name.as_str(), busy.calls_per_second), ("busy", 25_000.0));
        assert_eq!(busy.shares, [0.025, 0.01, 0.08]);
        let shares: Vec<_> = busy.functions.iter().map(|f| (f.function, f.shares[2])).collect();
        assert_eq!(shares, [("cuLaunchKernel", 0.06), ("cuMemAlloc_v2", 0.02)]);
        assert_eq!((idle.calls_per_second, idle.shares, idle.functions.len()), (0.0, [0.0; 3], 0));
        assert!(idle.calls_per_second.is_sign_positive() && idle.shares[0].is_sign_positive(), "-0 calls");
    }
}
