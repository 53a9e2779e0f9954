//! Calls and failures of a process by function.

use gpuprobe_event::catalogue::ResultKind;
use gpuprobe_event::counters::{CallCounts, FailureCounts, LATENCY_BUCKETS};
use gpuprobe_event::decode::known_error_name;
use gpuprobe_event::driver::is_system_call;
use gpuprobe_event::{Api, Class, DeviceTime, FunctionId, catalogue};
use serde::Serialize;

/// The calls of one function in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionCounts {
    pub api: Api,
    /// The exported name.
    pub function: &'static str,
    pub class: Class,
    /// It is an instant without a duration, such as a tracepoint.
    #[serde(skip)]
    pub is_instant: bool,
    /// Calls that returned.
    pub calls: u64,
    /// How many of `calls` failed.
    pub errors: u64,
    /// Bytes allocated or moved.
    pub bytes: u64,
    /// Time inside the calls.
    pub total_ns: u64,
    /// Calls into the NVIDIA kernel module and their time, if these are probed.
    #[serde(skip)]
    pub driver: DeviceTime,
    /// Histogram of `total_ns`, see [`CallCounts::latency`].
    pub latency: [u64; LATENCY_BUCKETS],
}

/// Failures of one function in one process with one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub api: Api,
    /// The exported name.
    pub function: &'static str,
    pub error: &'static str,
    pub count: u64,
}

/// The name of errors that are not in the catalogue. A process can make its own library return any number, so numbers
/// are not used as names.
const UNKNOWN_ERROR: &str = "unknown";
/// The function and the error of failures for which the BPF table had no room.
pub const OTHER: &str = "other";

impl From<&CallCounts> for FunctionCounts {
    fn from(counts: &CallCounts) -> Self {
        let (api, function, class) = named(counts.function);
        let row = catalogue().get(counts.function);
        let is_instant = row.is_some_and(|f| f.result == ResultKind::Moment);
        let &CallCounts { calls, errors, bytes, total_ns, driver, latency, .. } = counts;
        Self { api, function, class, is_instant, calls, errors, bytes, total_ns, driver, latency }
    }
}

impl From<&FailureCounts> for Failure {
    fn from(counts: &FailureCounts) -> Self {
        // only failures of the runtime are counted without their calls
        let Some((id, status)) = counts.failure else {
            return Self { api: Api::Runtime, function: OTHER, error: OTHER, count: counts.count };
        };
        let (api, function, _) = named(id);
        let known = catalogue().get(id).and_then(|f| known_error_name(f, status));
        Self { api, function, error: known.unwrap_or(UNKNOWN_ERROR), count: counts.count }
    }
}

impl Failure {
    /// Adds it to a sorted list. Several signatures with the same name are one function.
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

    /// Whether it is a system call on the devices of the kernel module, which is reported by command instead.
    pub fn is_system_call(&self) -> bool {
        self.api == Api::Kernel && is_system_call(self.function)
    }

    /// Adds another row of this function. Bytes and times come from the process, so their sums may overflow.
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
    fn failures_are_summed_by_name_and_unnamed_errors_are_one_row() {
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
            Failure::from(&FailureCounts { process, failure: way, count }).add_to(&mut failures);
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
