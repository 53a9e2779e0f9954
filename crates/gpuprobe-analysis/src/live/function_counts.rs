//! What processes did with functions: calls and failures, with names to them.

use gpuprobe_event::catalogue::ResultKind;
use gpuprobe_event::counters::{CallCounts, FailureCounts, LATENCY_BUCKETS};
use gpuprobe_event::decode::known_error_name;
use gpuprobe_event::driver::is_system_call;
use gpuprobe_event::{Api, Class, DriverTime, FunctionId, catalogue};
use serde::Serialize;

/// What one process did with one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionCounts {
    /// The library family.
    pub api: Api,
    /// The exported name.
    pub function: &'static str,
    /// What it is for.
    pub class: Class,
    /// It is over at once, and so has no time.
    #[serde(skip)]
    pub is_moment: bool,
    /// Calls that returned.
    pub calls: u64,
    /// Of these, how many failed.
    pub errors: u64,
    /// Bytes allocated or moved.
    pub bytes: u64,
    /// Time inside.
    pub total_ns: u64,
    /// Calls that entered the driver, where that is watched, and their time there.
    #[serde(skip)]
    pub driver: DriverTime,
    /// Distribution of that time, see [`CallCounts::latency`].
    pub latency: [u64; LATENCY_BUCKETS],
}

/// One way in which a function of one process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The library family.
    pub api: Api,
    /// The exported name.
    pub function: &'static str,
    /// The name of the error.
    pub error: &'static str,
    /// How often.
    pub count: u64,
}

/// An error that no table has a name for. A process can make its own library return any number, so numbers are no names.
const UNKNOWN_ERROR: &str = "unknown";
/// The function and the error of failures that the kernel side had no room for.
pub const OTHER: &str = "other";

impl From<&CallCounts> for FunctionCounts {
    fn from(counts: &CallCounts) -> Self {
        let (api, function, class) = named(counts.function);
        let row = catalogue().get(counts.function);
        let is_moment = row.is_some_and(|f| f.result == ResultKind::Moment);
        let &CallCounts { calls, errors, bytes, total_ns, driver, latency, .. } = counts;
        Self { api, function, class, is_moment, calls, errors, bytes, total_ns, driver, latency }
    }
}

impl From<&FailureCounts> for Failure {
    fn from(counts: &FailureCounts) -> Self {
        // only those of the runtime are counted without their calls
        let Some((id, status)) = counts.way else {
            return Self { api: Api::Runtime, function: OTHER, error: OTHER, count: counts.count };
        };
        let (api, function, _) = named(id);
        let known = catalogue().get(id).and_then(|f| known_error_name(f, status));
        Self { api, function, error: known.unwrap_or(UNKNOWN_ERROR), count: counts.count }
    }
}

impl Failure {
    /// Adds it to others, in their order. Signatures of one name are one function to people.
    pub(crate) fn add_to(self, failures: &mut Vec<Self>) {
        let key = |f: &Self| (f.api, f.function, f.error);
        match failures.binary_search_by_key(&key(&self), key) {
            Ok(at) => failures[at].count = failures[at].count.saturating_add(self.count),
            Err(at) => failures.insert(at, self),
        }
    }
}

impl FunctionCounts {
    /// Whether these are rows of one function.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.api, self.function) == (other.api, other.function)
    }

    /// Whether it is a call on the driver's devices, which is told of by its commands.
    pub fn is_system_call(&self) -> bool {
        self.api == Api::Kernel && is_system_call(self.function)
    }

    /// Adds another row of this function. Bytes and times are made of what a process says, so their sums may be
    /// anything.
    pub(crate) fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.errors += more.errors;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
        self.driver.calls = self.driver.calls.saturating_add(more.driver.calls);
        self.driver.ns = self.driver.ns.saturating_add(more.driver.ns);
        self.latency.iter_mut().zip(more.latency).for_each(|(sum, n)| *sum += n);
    }
}

fn named(id: FunctionId) -> (Api, &'static str, Class) {
    match catalogue().get(id) {
        Some(f) => (f.api, f.name, f.class),
        None => (Api::Driver, "unknown", Class::Other),
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;
    use gpuprobe_event::counters::ProcessKey;

    use super::*;

    #[test]
    fn failures_are_summed_by_name_and_numbers_without_one_are_one() {
        let process = ProcessKey { tgid: Tgid(1), instance: 1 };
        let id = |api, name| catalogue().lookup(api, Some(12), name).unwrap().id;
        let (driver, runtime) = (id(Api::Driver, "cuMemAlloc_v2"), id(Api::Runtime, "cudaMalloc"));
        let mut failures = Vec::new();
        for (way, count) in [
            (Some((runtime, 35)), 1),
            (Some((driver, 2)), 3),
            (Some((driver, 4242)), 5),
            (None, 7),
            (Some((driver, 2)), u64::MAX),
            (Some((driver, -7)), 6),
        ] {
            Failure::from(&FailureCounts { process, way, count }).add_to(&mut failures);
        }
        let all: Vec<_> = failures.iter().map(|f| (f.function, f.error, f.count)).collect();
        let expected = [
            ("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY", u64::MAX),
            ("cuMemAlloc_v2", "unknown", 11),
            ("cudaMalloc", "cudaErrorInsufficientDriver", 1),
            ("other", "other", 7),
        ];
        assert_eq!(all, expected);
    }
}
