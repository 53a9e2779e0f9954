//! The series of the processes of one snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Container, Tgid};

use super::bounded_labels::BoundedLabels;
use super::labels_of_process::{Aggregate, ProcessLabels};
use super::totals::Totals;

/// The series that processes with these properties belong to.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) container: Option<Container>,
    /// `None`: in the sum of its name.
    pub(crate) own: Option<OwnLabels>,
    /// An index into the sums.
    pub(crate) sum: usize,
}

/// The labels of own series.
#[derive(Clone, Debug)]
pub(crate) struct OwnLabels {
    pub(crate) process: Arc<ProcessLabels>,
    /// Whether several processes may share the series.
    pub(crate) is_shared: bool,
    /// `None`: no limit.
    pub(crate) bounded: Option<Arc<BoundedLabels>>,
}

/// What own series have beyond the counters of processes in the snapshot.
#[derive(Clone, Debug)]
pub(crate) struct OwnPart {
    pub(crate) labels: Arc<ProcessLabels>,
    pub(crate) past: Arc<Totals>,
}

/// The sum over all processes of one name without series of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamePart {
    pub(crate) labels: ProcessLabels,
    /// What it has beyond the counters of processes in the snapshot.
    pub(crate) counted: Arc<Totals>,
    /// The sum over series of their own that have ended.
    pub(crate) ended: Arc<Totals>,
    /// The label `ended` of that.
    pub(crate) ended_at: String,
    pub(crate) bounded: Arc<BoundedLabels>,
}

/// The series of the processes of one snapshot. The default gives each process its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeriesPlan {
    pub(crate) aggregate: Aggregate,
    pub(crate) members: HashMap<Tgid, Vec<Member>>,
    pub(crate) own: Vec<OwnPart>,
    pub(crate) sums: Vec<NamePart>,
}

/// The series of one process.
#[derive(Clone, Debug)]
pub(crate) enum SeriesOf<'a> {
    Own(OwnLabels),
    Sum(&'a ProcessLabels, &'a BoundedLabels),
}

impl SeriesOf<'_> {
    pub(crate) fn labels(&self) -> &ProcessLabels {
        match self {
            Self::Own(own) => &own.process,
            Self::Sum(labels, _) => labels,
        }
    }

    /// Whether other processes may have the same series.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Own(own) => own.is_shared,
            Self::Sum(..) => true,
        }
    }

    /// The kernels and commands with series; `None` for all of a process.
    pub(crate) fn bounded(&self) -> Option<&BoundedLabels> {
        match self {
            Self::Own(own) => own.bounded.as_deref(),
            Self::Sum(_, bounded) => Some(bounded),
        }
    }
}

/// Counters that no process of the snapshot has any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastTotals<'a> {
    pub(crate) labels: &'a ProcessLabels,
    /// The label `ended`; empty if it has none.
    pub(crate) ended: &'a str,
    pub(crate) totals: &'a Totals,
}

impl SeriesPlan {
    /// The series of a process. One that the plan does not know has its own.
    pub(crate) fn series_of(&self, pid: Tgid, name: &str, container: Option<&Container>) -> SeriesOf<'_> {
        let members = self.members.get(&pid).into_iter().flatten();
        let mut same = members.filter(|member| member.name == name && member.container.as_ref() == container);
        let member = same.next();
        if let Some(Member { own: Some(own), .. }) = member {
            return SeriesOf::Own(own.clone());
        }
        match member.and_then(|member| self.sums.get(member.sum)) {
            Some(sum) => SeriesOf::Sum(&sum.labels, &sum.bounded),
            None => {
                let process = Arc::new(ProcessLabels::new(self.aggregate, pid, name, container));
                SeriesOf::Own(OwnLabels { process, is_shared: false, bounded: None })
            }
        }
    }

    pub(crate) fn past(&self) -> impl Iterator<Item = PastTotals<'_>> {
        let own = self.own.iter().map(|own| PastTotals { labels: &own.labels, ended: "", totals: &own.past });
        let sums = self.sums.iter().flat_map(|sum| {
            let labels = &sum.labels;
            let ended = PastTotals { labels, ended: &sum.ended_at, totals: &sum.ended };
            [PastTotals { labels, ended: "", totals: &sum.counted }, ended]
        });
        own.chain(sums)
    }
}
