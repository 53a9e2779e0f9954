//! Calls by function: counts, errors, times, and bytes moved.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, Outcome};
use serde::Serialize;

use crate::stats::distribution::{Bucket, Distribution};

/// The calls of one function. Calls made inside another call are counted as well, in the row of their own function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionSummary {
    pub api: Api,
    /// The exported name.
    pub name: Name,
    /// Calls that returned, and those whose return is not recorded.
    pub calls: u64,
    /// How many of `calls` are estimated: added by scaling, because the function was sampled.
    #[serde(skip_serializing_if = "is_zero")]
    pub estimated: u64,
    /// How many of `calls` failed.
    pub errors: u64,
    /// How many of `calls` have no recorded return.
    pub unobserved: u64,
    /// How many of `calls` are launches whose return was not probed: their times are those of earlier launches.
    #[serde(skip_serializing_if = "is_zero")]
    pub unprobed_returns: u64,
    /// Calls that did not return before their process or the recording ended. Not part of `calls`.
    pub unfinished: u64,
    /// Time inside the calls that returned.
    pub total_ns: u64,
    /// The shortest call; 0 if none returned.
    pub min_ns: u64,
    /// The longest call; 0 if none returned.
    pub max_ns: u64,
    /// Bytes moved by copies and memsets, counted at the outermost call.
    pub bytes: u64,
    /// The median time of the calls that returned.
    pub p50_ns: Option<u64>,
    /// The 99th percentile of their times.
    pub p99_ns: Option<u64>,
    /// Histogram of their times.
    pub latency: Vec<Bucket>,
    pub class: Class,
}

impl FunctionSummary {
    /// The mean time of the calls that returned.
    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.calls - self.unobserved)
    }

    /// By total time, longest first.
    pub(super) fn in_order(&self, other: &Self) -> Ordering {
        let key = |f: &Self| (Reverse(f.total_ns), Reverse(f.calls), f.api);
        key(self).cmp(&key(other)).then_with(|| self.name.cmp(&other.name))
    }
}

/// Whether a number is left out of JSON.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What a row counts of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    is_unfinished: bool,
    return_probed: bool,
    duration_ns: Option<u64>,
    failed: bool,
    bytes: u64,
    /// How many calls it stands for.
    weight: u64,
}

impl Observed {
    pub(super) fn of(call: &Call) -> Self {
        Self {
            is_unfinished: call.outcome == Outcome::Unfinished,
            return_probed: call.return_probed,
            duration_ns: call.duration_ns(),
            failed: call.failed(),
            bytes: call.moved_bytes(),
            weight: u64::from(call.weight).max(1),
        }
    }
}

/// A row while calls are counted.
#[derive(Clone, Debug)]
pub(super) struct FunctionRow {
    row: FunctionSummary,
    latency: Distribution,
}

impl FunctionRow {
    pub(super) fn new(api: Api, name: Name, class: Class) -> Self {
        Self { row: empty_row(api, name, class), latency: Distribution::default() }
    }

    pub(super) fn add(&mut self, call: &Observed) {
        let row = &mut self.row;
        if call.is_unfinished {
            row.unfinished += call.weight;
            return;
        }
        match call.duration_ns {
            Some(ns) => {
                let first = row.calls == row.unobserved;
                row.min_ns = if first { ns } else { row.min_ns.min(ns) };
                row.max_ns = row.max_ns.max(ns);
                row.total_ns = row.total_ns.saturating_add(ns.saturating_mul(call.weight));
                self.latency.add_times(ns, call.weight);
            }
            None => row.unobserved += call.weight,
        }
        row.calls += call.weight;
        row.unprobed_returns += if call.return_probed { 0 } else { call.weight };
        row.estimated += call.weight - 1;
        row.errors += if call.failed { call.weight } else { 0 };
        // sizes are arguments of the process, so their sum may overflow
        row.bytes = row.bytes.saturating_add(call.bytes.saturating_mul(call.weight));
    }

    pub(super) fn report(&self) -> FunctionSummary {
        let Self { row, latency } = self;
        FunctionSummary {
            p50_ns: latency.quantile(500),
            p99_ns: latency.quantile(990),
            latency: latency.buckets().collect(),
            ..row.clone()
        }
    }
}

/// Functions with a row of their own. All libraries together have fewer; the bound is for forged files.
const MOST: usize = 1 << 13;
/// The name of the row for all other functions.
const OTHERS: Name = Name::Borrowed("(others)");

/// Calls by function.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    by_name: HashMap<(Api, Name), FunctionRow>,
}

impl Functions {
    pub(crate) fn feed(&mut self, call: &Call) {
        let mut key = (call.api, call.name.clone());
        if self.by_name.len() >= MOST && !self.by_name.contains_key(&key) {
            key.1 = OTHERS;
        }
        let row = self
            .by_name
            .entry(key)
            .or_insert_with_key(|(api, name)| FunctionRow::new(*api, name.clone(), call.class));
        row.add(&Observed::of(call));
    }

    /// The rows, sorted by total time, longest first.
    pub(crate) fn report(&self) -> Vec<FunctionSummary> {
        let mut rows: Vec<_> = self.by_name.values().map(FunctionRow::report).collect();
        rows.sort_unstable_by(FunctionSummary::in_order);
        rows
    }
}

fn empty_row(api: Api, name: Name, class: Class) -> FunctionSummary {
    FunctionSummary {
        api,
        name,
        class,
        calls: 0,
        estimated: 0,
        errors: 0,
        unfinished: 0,
        unobserved: 0,
        unprobed_returns: 0,
        total_ns: 0,
        min_ns: 0,
        max_ns: 0,
        bytes: 0,
        p50_ns: None,
        p99_ns: None,
        latency: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::CopyDirection;

    use super::*;
    use crate::samples::{alloc, call, copy, nested, took, unfinished};

    #[test]
    fn calls_errors_and_times_add_up_per_function() {
        let mut functions = Functions::default();
        functions.feed(&took(call(Api::Runtime, "cudaMalloc", 0), 30));
        functions.feed(&took(call(Api::Runtime, "cudaMalloc", 2), 10));
        functions.feed(&unfinished(call(Api::Runtime, "cudaMalloc", 0)));
        functions.feed(&took(call(Api::Driver, "cuMemAlloc_v2", 0), 99));
        let report = functions.report();
        assert_eq!(report.len(), 2);
        assert_eq!(report[0].name, "cuMemAlloc_v2");
        let malloc = &report[1];
        assert_eq!((malloc.calls, malloc.errors, malloc.unfinished), (2, 1, 1));
        assert_eq!((malloc.total_ns, malloc.min_ns, malloc.max_ns), (40, 10, 30));
        assert_eq!(malloc.mean_ns(), Some(20));
    }

    #[test]
    fn bytes_are_the_bytes_moved_by_copies() {
        let copied = |bytes, status| copy(CopyDirection::HostToDevice, bytes, status);
        let inner = nested(Call { api: Api::Driver, name: "cuMemcpy".into(), ..copied(0, 0) }, 1);
        let mut functions = Functions::default();
        let calls = [inner, copied(100, 0), copied(20, 0), copied(7, 1), unfinished(copied(9, 0))];
        calls.iter().for_each(|call| functions.feed(call));
        functions.feed(&alloc(0x10, 4096, 10));
        let report = functions.report();
        let bytes = |name: &str| report.iter().find(|f| f.name == name).map(|f| f.bytes);
        assert_eq!((bytes("cudaMemcpy"), bytes("cuMemcpy")), (Some(120), Some(0)));
        assert_eq!(bytes("cudaMalloc"), Some(0), "allocated bytes are counted by process");
    }

    #[test]
    fn a_sampled_call_counts_as_many_calls_as_it_stands_for() {
        let sampled = |bytes, status| Call { weight: 10, ..copy(CopyDirection::HostToDevice, bytes, status) };
        let mut functions = Functions::default();
        functions.feed(&took(sampled(100, 0), 20));
        functions.feed(&took(sampled(7, 1), 50));
        functions.feed(&took(copy(CopyDirection::HostToDevice, 1, 0), 30));
        let report = functions.report();
        let row = &report[0];
        assert_eq!((row.calls, row.estimated, row.errors, row.bytes), (21, 18, 10, 1001));
        assert_eq!((row.total_ns, row.min_ns, row.max_ns), (730, 20, 50));
        assert_eq!(row.latency.iter().map(|bucket| bucket.count).sum::<u64>(), 21);
    }

    #[test]
    fn not_ready_is_no_error_and_an_unfinished_call_has_no_mean() {
        let mut functions = Functions::default();
        functions.feed(&took(call(Api::Runtime, "cudaStreamQuery", 600), 5));
        functions.feed(&unfinished(call(Api::Runtime, "cudaDeviceSynchronize", 0)));
        let report = functions.report();
        assert_eq!((report[0].name.as_ref(), report[0].errors), ("cudaStreamQuery", 0));
        assert_eq!((report[1].mean_ns(), report[1].min_ns), (None, 0));
    }

    #[test]
    fn names_beyond_the_bound_share_a_row() {
        let mut functions = Functions::default();
        for i in 0..MOST + 100 {
            functions.feed(&Call { name: Name::Owned(format!("f{i}")), ..call(Api::Runtime, "f", 0) });
        }
        let report = functions.report();
        let others = report.iter().find(|f| f.name == OTHERS).unwrap();
        assert_eq!((report.len(), others.calls), (MOST + 1, 100));
    }

    #[test]
    fn rows_of_equal_time_have_a_fixed_order() {
        let mut functions = Functions::default();
        for name in ["b", "a", "c"] {
            functions.feed(&took(call(Api::Runtime, name, 0), 7));
        }
        let names: Vec<_> = functions.report().into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
