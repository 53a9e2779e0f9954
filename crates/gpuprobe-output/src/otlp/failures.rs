//! Which calls failed since the last time, so that each failure is reported once.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_analysis::snapshot::Failure;
use gpuprobe_analysis::{ProcessSnapshot, Snapshot};
use gpuprobe_event::{Api, Container, Tgid};

/// New failures of a function with the same error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) process: String,
    /// `None` if the process has exited so long ago that only the sum of its name is known.
    pub(super) pid: Option<Tgid>,
    pub(super) container: Option<Container>,
    pub(super) function: &'static str,
    pub(super) error: &'static str,
    pub(super) count: u64,
}

type Kind = (Api, &'static str, &'static str);
type Counted = HashMap<Kind, u64>;

/// The failures that were reported.
#[derive(Debug, Default)]
pub(super) struct NewFailures {
    /// Of listed processes, by pid and name: runs of the same program under the same pid are listed and end together,
    /// as in the metrics.
    reported: HashMap<(Tgid, String), Counted>,
    /// Of processes that are no longer listed, by name.
    past: HashMap<String, Counted>,
}

fn kind(failure: &Failure) -> Kind {
    (failure.api, failure.function, failure.error)
}

impl NewFailures {
    /// The failures since the snapshot before, most frequent first.
    pub(super) fn since_last(&mut self, snapshot: &Snapshot) -> Vec<Failed> {
        let mut all = Vec::new();
        let mut runs: BTreeMap<(Tgid, &str), Vec<&ProcessSnapshot>> = BTreeMap::new();
        for process in &snapshot.processes {
            runs.entry((process.pid, &process.name)).or_default().push(process);
        }
        let mut listed = HashMap::new();
        for ((pid, name), runs) in runs {
            let key = (pid, name.to_owned());
            let mut counted = self.reported.remove(&key).unwrap_or_default();
            let mut sums: BTreeMap<Kind, u64> = BTreeMap::new();
            for failure in runs.iter().flat_map(|run| &run.failures) {
                *sums.entry(kind(failure)).or_default() += failure.count;
            }
            for (kind, sum) in sums {
                let container = runs.last().and_then(|run| run.container.clone());
                all.extend(added(&mut counted, kind, sum).map(|count| Failed {
                    process: name.to_owned(),
                    pid: Some(pid),
                    container,
                    function: kind.1,
                    error: kind.2,
                    count,
                }));
            }
            if !counted.is_empty() {
                listed.insert(key, counted);
            }
        }
        // what was reported of processes that are no longer listed is in the sums by name now
        for ((_, name), counted) in self.reported.drain() {
            let is_summed = snapshot.past.iter().any(|past| past.name == name);
            let sum = self.past.entry(if is_summed { name } else { OTHER.to_owned() }).or_default();
            counted.into_iter().for_each(|(kind, n)| *sum.entry(kind).or_default() += n);
        }
        self.reported = listed;
        for past in &snapshot.past {
            let counted = self.past.entry(past.name.clone()).or_default();
            for failure in &past.failures {
                all.extend(added(counted, kind(failure), failure.count).map(|count| Failed {
                    process: past.name.clone(),
                    pid: None,
                    container: None,
                    function: failure.function,
                    error: failure.error,
                    count,
                }));
            }
        }
        all.sort_by_key(|failed| std::cmp::Reverse(failed.count));
        all
    }
}

/// The name of the sum over names without sums of their own.
const OTHER: &str = "other";

/// What was added to a count, if anything.
fn added(counted: &mut Counted, kind: Kind, now: u64) -> Option<u64> {
    let reported = counted.entry(kind).or_default();
    let new = now.saturating_sub(*reported);
    *reported = now.max(*reported);
    (new > 0).then_some(new)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuprobe_analysis::PastProcesses;

    use super::super::points::tests::process;
    use super::*;

    fn counts(all: &[Failed]) -> Vec<(Option<u32>, u64)> {
        all.iter().map(|failed| (failed.pid.map(|pid| pid.0), failed.count)).collect()
    }

    fn listed(processes: Vec<Arc<ProcessSnapshot>>) -> Snapshot {
        Snapshot { processes, ..Snapshot::default() }
    }

    fn past(failures: u64, processes: Vec<Arc<ProcessSnapshot>>) -> Snapshot {
        let sum = PastProcesses {
            name: process(1, 5, 1).name.clone(),
            failures: vec![Failure { count: failures, ..process(1, 5, 1).failures[0] }],
            ..PastProcesses::default()
        };
        Snapshot { past: vec![sum.into()], ..listed(processes) }
    }

    #[test]
    fn each_failure_is_reported_once_also_when_its_process_is_gone() {
        let mut new = NewFailures::default();
        let mut reported = |snapshot: Snapshot| counts(&new.since_last(&snapshot));
        assert_eq!(reported(listed(vec![process(7, 5, 2), process(8, 5, 3)])), [(Some(8), 3), (Some(7), 2)]);
        assert_eq!(reported(listed(vec![process(7, 5, 2), process(8, 5, 4)])), [(Some(8), 1)]);
        assert_eq!(reported(listed(vec![process(7, 5, 2), process(8, 5, 4)])), []);
        // process 8 failed once more before it was only in the sum of its name
        assert_eq!(reported(past(5, vec![process(7, 5, 2)])), [(None, 1)]);
        assert_eq!(reported(past(7, vec![])), []);
        // a process that was never listed
        assert_eq!(reported(past(9, vec![])), [(None, 2)]);
    }
}
