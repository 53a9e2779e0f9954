//! Which processes have series of their own, and what the others are summed up in, so that the number of series is bounded
//! and `sum()` and `rate()` over one metric are right when processes exit.
//!
//! A counter of processes has three kinds of series:
//!
//! - with a `pid`: the counters of one process. At most `--max-series-processes` running processes have them.
//! - without a `pid`: the sum over all other processes of one name, while they run and after they have exited. It only
//!   rises by what is counted, so `rate()` sees each call once.
//! - with `ended`: the sum over series that had a `pid` and have ended. What is in it was in those series before, so it
//!   must not rise: Prometheus would see each call twice. When more is added, the label gets another value. That is a
//!   new series, which begins at the new sum, and `rate()` over it is 0.
//!
//! [`series_ledger`](super::series_ledger) decides this from snapshot to snapshot; here is the result for one of them.
//!
//! So the sum over all series is always the number of all calls, and no call is in a rate twice. With `--aggregate container`
//! or `pod`, "process" above means all processes with these labels in common. With `--aggregate name` there are only sums
//! by name.

mod bounded_labels;
mod labels_of_process;
mod plan;
mod totals;

pub(super) use bounded_labels::{BoundedLabels, shown};
pub use labels_of_process::Aggregate;
pub(super) use labels_of_process::ProcessLabels;
pub(crate) use plan::SeriesPlan;
pub(super) use plan::{Member, NamePart, OwnLabels, OwnPart, PastTotals};
pub(super) use totals::Totals;
