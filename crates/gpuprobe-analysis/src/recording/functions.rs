//! Calls by function: how many, how many failed, how long they took, how many bytes they moved.

use std::collections::HashMap;

use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, Outcome};
use serde::Serialize;

use crate::stats::distribution::{Bucket, Distribution};

/// What was seen of one function. Calls made inside another call are counted here too, on their own row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionSummary {
    /// The library family.
    pub api: Api,
    /// The exported name.
    pub name: Name,
    /// Calls that returned, and those whose return is not recorded.
    pub calls: u64,
    /// Of these, how many failed.
    pub errors: u64,
    /// Of these, how many whose return is not recorded.
    pub unobserved: u64,
    /// Besides these, calls that did not return before their process or the recording ended.
    pub unfinished: u64,
    /// Time inside, over the calls that returned.
    pub total_ns: u64,
    /// The shortest call; 0 where none returned.
    pub min_ns: u64,
    /// The longest call; 0 where none returned.
    pub max_ns: u64,
    /// Bytes that its copies and memsets moved, once for each outermost call.
    pub bytes: u64,
    /// What half of the calls that returned did not exceed.
    pub p50_ns: Option<u64>,
    /// What all but one in a hundred did not exceed.
    pub p99_ns: Option<u64>,
    /// How long calls took.
    pub latency: Vec<Bucket>,
    /// What it is for.
    pub class: Class,
}

impl FunctionSummary {
    /// The mean time of the calls that returned.
    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.calls - self.unobserved)
    }
}

/// Functions told apart. There are fewer in all libraries; more names come only from files that nobody recorded.
const MOST: usize = 1 << 13;
/// What all others are called.
const OTHERS: Name = Name::Borrowed("(others)");

/// Calls by function.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    by_name: HashMap<(Api, Name), (FunctionSummary, Distribution)>,
}

impl Functions {
    pub(crate) fn feed(&mut self, call: &Call) {
        let mut key = (call.api, call.name.clone());
        if self.by_name.len() >= MOST && !self.by_name.contains_key(&key) {
            key.1 = OTHERS;
        }
        let (row, latency) = self
            .by_name
            .entry(key)
            .or_insert_with_key(|(_, name)| (nothing_of(call, name.clone()), Distribution::default()));
        if call.outcome == Outcome::Unfinished {
            row.unfinished += 1;
            return;
        }
        match call.duration_ns() {
            Some(ns) => {
                let first = row.calls == row.unobserved;
                row.min_ns = if first { ns } else { row.min_ns.min(ns) };
                row.max_ns = row.max_ns.max(ns);
                row.total_ns = row.total_ns.saturating_add(ns);
                latency.add(ns);
            }
            None => row.unobserved += 1,
        }
        row.calls += 1;
        row.errors += u64::from(call.failed());
        // sizes come out of a process's arguments, so their sum may be anything
        row.bytes = row.bytes.saturating_add(call.moved_bytes());
    }

    /// The rows, those that took most time first.
    pub(crate) fn report(&self) -> Vec<FunctionSummary> {
        let row = |(row, latency): &(FunctionSummary, Distribution)| FunctionSummary {
            // buckets are coarser than what is known of the shortest and the longest
            p50_ns: latency.quantile(500).map(|ns| ns.clamp(row.min_ns, row.max_ns)),
            p99_ns: latency.quantile(990).map(|ns| ns.clamp(row.min_ns, row.max_ns)),
            latency: latency.buckets().collect(),
            ..row.clone()
        };
        let mut rows: Vec<_> = self.by_name.values().map(row).collect();
        rows.sort_unstable_by(|a, b| {
            let key =
                |f: &FunctionSummary| (std::cmp::Reverse(f.total_ns), std::cmp::Reverse(f.calls), f.api);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }
}

fn nothing_of(call: &Call, name: Name) -> FunctionSummary {
    FunctionSummary {
        api: call.api,
        name,
        class: call.class,
        calls: 0,
        errors: 0,
        unfinished: 0,
        unobserved: 0,
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
    fn bytes_are_those_that_were_moved() {
        let copied = |bytes, status| copy(CopyDirection::HostToDevice, bytes, status);
        let inner = nested(Call { api: Api::Driver, name: "cuMemcpy".into(), ..copied(0, 0) }, 1);
        let mut functions = Functions::default();
        let calls = [inner, copied(100, 0), copied(20, 0), copied(7, 1), unfinished(copied(9, 0))];
        calls.iter().for_each(|call| functions.feed(call));
        functions.feed(&alloc(0x10, 4096, 10));
        let report = functions.report();
        let bytes = |name: &str| report.iter().find(|f| f.name == name).map(|f| f.bytes);
        assert_eq!((bytes("cudaMemcpy"), bytes("cuMemcpy")), (Some(120), Some(0)));
        assert_eq!(bytes("cudaMalloc"), Some(0), "what is allocated is counted with the process");
    }

    #[test]
    fn not_ready_is_no_error_and_nothing_finished_has_no_mean() {
        let mut functions = Functions::default();
        functions.feed(&took(call(Api::Runtime, "cudaStreamQuery", 600), 5));
        functions.feed(&unfinished(call(Api::Runtime, "cudaDeviceSynchronize", 0)));
        let report = functions.report();
        assert_eq!((report[0].name.as_ref(), report[0].errors), ("cudaStreamQuery", 0));
        assert_eq!((report[1].mean_ns(), report[1].min_ns), (None, 0));
    }

    #[test]
    fn endless_names_share_a_row() {
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
