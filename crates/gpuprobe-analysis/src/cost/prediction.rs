//! What probes would take of processes that run: how often each calls what, times what a call costs in each way to watch.

use std::collections::BTreeMap;

use gpuprobe_event::{FunctionId, Tgid, catalogue};
use serde::{Serialize, Serializer};

/// The ways to watch that are told of.
pub const WAYS: [&str; 3] = ["daemon", "memory", "trace"];
/// Functions that are told of each process, the dearest first.
const MOST_FUNCTIONS: usize = 5;

/// How often a process calls a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The process.
    pub pid: Tgid,
    /// The function.
    pub function: FunctionId,
    /// Calls a second.
    pub per_second: f64,
}

/// What a function is about to take of a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedFunction {
    /// Its name.
    pub function: &'static str,
    /// Calls a second.
    pub calls_per_second: f64,
    /// The part of one core in each way, see [`WAYS`].
    #[serde(serialize_with = "by_name")]
    pub shares: [f64; WAYS.len()],
}

/// What watching a process would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedProcess {
    /// The process.
    pub pid: Tgid,
    /// Its name.
    pub name: String,
    /// Calls of all functions that are probed in some way.
    pub calls_per_second: f64,
    /// The part of one core in each way, see [`WAYS`].
    #[serde(serialize_with = "by_name")]
    pub shares: [f64; WAYS.len()],
    /// The dearest functions.
    pub functions: Vec<PredictedFunction>,
}

/// Everything that was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Prediction {
    /// How probes would be attached.
    pub tier: String,
    /// How long calls were counted.
    pub seconds: f64,
    /// Processes that use CUDA, also those that called nothing.
    pub processes: Vec<PredictedProcess>,
}

/// Multiplies. `cost` tells the nanoseconds of a call in each way; 0 where it has no probe there. The dearest process comes
/// first.
pub fn predict(
    names: &BTreeMap<Tgid, String>,
    rates: &[Rate],
    cost: &dyn Fn(FunctionId) -> [f64; WAYS.len()],
) -> Vec<PredictedProcess> {
    let process = |(pid, name): (&Tgid, &String)| {
        let of = rates.iter().filter(|rate| rate.pid == *pid && rate.per_second > 0.0);
        let mut functions: Vec<_> = of.filter_map(|rate| function(rate, cost)).collect();
        functions.sort_by(|a, b| {
            dearest(&b.shares).total_cmp(&dearest(&a.shares)).then(a.function.cmp(b.function))
        });
        // a sum of nothing is -0.0
        let sum = |of: &dyn Fn(&PredictedFunction) -> f64| functions.iter().map(of).sum::<f64>() + 0.0;
        let calls_per_second = sum(&|f| f.calls_per_second);
        let shares = std::array::from_fn(|way| sum(&|f| f.shares[way]));
        functions.truncate(MOST_FUNCTIONS);
        PredictedProcess { pid: *pid, name: name.clone(), calls_per_second, shares, functions }
    };
    let mut processes: Vec<_> = names.iter().map(process).collect();
    processes.sort_by(|a, b| dearest(&b.shares).total_cmp(&dearest(&a.shares)).then(a.pid.cmp(&b.pid)));
    processes
}

fn function(rate: &Rate, cost: &dyn Fn(FunctionId) -> [f64; WAYS.len()]) -> Option<PredictedFunction> {
    let function = catalogue().get(rate.function)?.name;
    let shares = cost(rate.function).map(|ns| rate.per_second * ns / 1e9);
    Some(PredictedFunction { function, calls_per_second: rate.per_second, shares })
}

fn by_name<S: Serializer>(shares: &[f64; WAYS.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(WAYS.iter().zip(shares))
}

fn dearest(shares: &[f64]) -> f64 {
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
    fn calls_times_cost_is_the_part_of_a_core() {
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
        let told: Vec<_> = busy.functions.iter().map(|f| (f.function, f.shares[2])).collect();
        assert_eq!(told, [("cuLaunchKernel", 0.06), ("cuMemAlloc_v2", 0.02)]);
        assert_eq!((idle.calls_per_second, idle.shares, idle.functions.len()), (0.0, [0.0; 3], 0));
        assert!(idle.calls_per_second.is_sign_positive() && idle.shares[0].is_sign_positive(), "-0 calls");
    }
}
