//! Failed calls by function and error name.

use std::collections::BTreeMap;

use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call};
use serde::Serialize;

/// Failures of one function with one error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorCount {
    pub api: Api,
    pub function: Name,
    pub error: Name,
    pub count: u64,
    /// How many of these were outermost calls, whose error the program itself received. The others happened inside
    /// another call, which may have returned the error or handled it.
    pub outermost: u64,
}

impl ErrorCount {
    /// Whether CUDA refused the calls because its driver or runtime had already shut down, as at the end of many
    /// programs. That is not a failure of the program.
    pub fn is_teardown(&self) -> bool {
        is_teardown(&self.error)
    }
}

fn is_teardown(error: &str) -> bool {
    matches!(error, "CUDA_ERROR_DEINITIALIZED" | "cudaErrorCudartUnloading")
}

/// Pairs of function and error with a row of their own. A recorded trace has fewer; the bound is for forged files.
const MOST: usize = 1 << 13;
/// The name of the row for all other pairs.
const OTHERS: Name = Name::Borrowed("(others)");

/// Failures by function and error.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    counts: BTreeMap<(Api, Name, Name), (u64, u64)>,
    /// Errors of outermost calls, without those at teardown, which are in `teardown`.
    pub(crate) outermost: u64,
    pub(crate) teardown: u64,
}

impl Errors {
    pub(crate) fn feed(&mut self, call: &Call) {
        if !call.failed() {
            return;
        }
        let status = call.status.unwrap_or(0);
        let error = call.error.clone().unwrap_or_else(|| Name::Owned(format!("status {status}")));
        let weight = u64::from(call.weight);
        if call.parent.is_none() {
            *(if is_teardown(&error) { &mut self.teardown } else { &mut self.outermost }) += weight;
        }
        let mut key = (call.api, call.name.clone(), error);
        if self.counts.len() >= MOST && !self.counts.contains_key(&key) {
            (key.1, key.2) = (OTHERS, OTHERS);
        }
        let (all, outermost) = self.counts.entry(key).or_default();
        *all += weight;
        *outermost += if call.parent.is_none() { weight } else { 0 };
    }

    /// The most frequent first.
    pub(crate) fn report(&self) -> Vec<ErrorCount> {
        let row = |((api, function, error), &(count, outermost)): (&(Api, Name, Name), &(u64, u64))| {
            ErrorCount { api: *api, function: function.clone(), error: error.clone(), count, outermost }
        };
        let mut rows: Vec<_> = self.counts.iter().map(row).collect();
        rows.sort_by_key(|e| std::cmp::Reverse((e.outermost, e.count)));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{call, inside};

    #[test]
    fn a_failure_inside_another_call_is_not_an_outermost_failure() {
        let mut errors = Errors::default();
        let inner = call(Api::Driver, "cuMemAlloc_v2", 2);
        errors.feed(&inside(Call { error: Some(Name::Borrowed("CUDA_ERROR_OUT_OF_MEMORY")), ..inner }, 1));
        errors.feed(&call(Api::Runtime, "cudaMalloc", 2));
        errors.feed(&call(Api::Runtime, "cudaEventQuery", 600));
        let report = errors.report();
        let got: Vec<_> =
            report.iter().map(|e| (e.function.as_ref(), e.error.as_ref(), e.count, e.outermost)).collect();
        let expected =
            [("cudaMalloc", "status 2", 1, 1), ("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY", 1, 0)];
        assert_eq!(got, expected);
        assert_eq!((errors.outermost, errors.teardown), (1, 0));
    }

    #[test]
    fn an_error_at_teardown_is_not_a_failure() {
        let mut errors = Errors::default();
        for error in ["CUDA_ERROR_DEINITIALIZED", "cudaErrorCudartUnloading", "cudaErrorInvalidValue"] {
            errors.feed(&Call { error: Some(Name::Borrowed(error)), ..call(Api::Runtime, "cudaFree", 4) });
        }
        assert_eq!((errors.outermost, errors.teardown), (1, 2));
        assert_eq!(errors.report().iter().filter(|error| error.is_teardown()).count(), 2);
    }
}
