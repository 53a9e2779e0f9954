//! Launches by kernel as counters that only rise: a kernel that has a series keeps it, and what was once counted with others
//! stays with them. Rows are read again and again, and what is new in each is added where its kernel belongs by now.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::counters::LaunchCounts;

use crate::launches::UNKNOWN_KERNEL;

/// Kernels that have series of their own from the beginning.
const MOST_AT_FIRST: usize = 20;
/// With those that came to be launched more than most of these.
const MOST_EVER: usize = 40;
/// Looks at a kernel without a name until it is taken for one that never gets any.
const LOOKS_FOR_NAME: u32 = 8;

/// Launches by kernel, and of all others together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSeries {
    /// By name.
    named: Vec<(Arc<str>, u64)>,
    other: u64,
}

impl KernelSeries {
    /// Those with series of their own.
    pub fn named(&self) -> impl Iterator<Item = (&str, u64)> {
        self.named.iter().map(|(name, launches)| (&**name, *launches))
    }

    /// What all others come to.
    pub fn other(&self) -> u64 {
        self.other
    }

    fn add_launches(&mut self, name: &Arc<str>, launches: u64, is_large: bool) {
        let most = if is_large { MOST_EVER } else { MOST_AT_FIRST };
        match self.named.binary_search_by(|(known, _)| known.cmp(name)) {
            Ok(at) => self.named[at].1 = self.named[at].1.saturating_add(launches),
            Err(at) if self.named.len() < most => self.named.insert(at, (Arc::clone(name), launches)),
            Err(_) => self.other = self.other.saturating_add(launches),
        }
    }

    /// Adds what another process launched.
    pub(crate) fn add(&mut self, more: &Self) {
        for (name, launches) in &more.named {
            self.add_launches(name, *launches, true);
        }
        self.other = self.other.saturating_add(more.other);
    }
}

/// How far a row has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    launches: u64,
    /// How often it was looked at without a name.
    looks: u32,
}

/// What one process launched, as far as it has been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    series: KernelSeries,
    /// By handle and stream.
    counted: HashMap<(u64, u64), Counted>,
}

impl Launched {
    /// The counters as they are.
    pub fn series(&self) -> &KernelSeries {
        &self.series
    }

    /// Looks at the rows of the process.
    pub fn look<'a>(&mut self, rows: impl IntoIterator<Item = &'a LaunchCounts>) {
        self.take(rows, false);
    }

    /// Looks at them for the last time.
    pub(crate) fn finish<'a>(mut self, rows: impl IntoIterator<Item = &'a LaunchCounts>) -> KernelSeries {
        self.take(rows, true);
        self.series
    }

    fn take<'a>(&mut self, rows: impl IntoIterator<Item = &'a LaunchCounts>, is_last: bool) {
        let unknown: Arc<str> = Arc::from(UNKNOWN_KERNEL);
        // by kernel, all launches and those that are new
        let mut kernels: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
        for row in rows {
            let counted = self.counted.entry((row.handle, row.stream)).or_default();
            // its name is on its way
            if row.kernel.is_none() && counted.looks < LOOKS_FOR_NAME && !is_last {
                counted.looks += 1;
                continue;
            }
            let (all, new) = kernels.entry(row.kernel.as_ref().unwrap_or(&unknown)).or_default();
            *all += row.totals.launches;
            *new += row.totals.launches.saturating_sub(counted.launches);
            counted.launches = row.totals.launches;
        }
        let mut kernels: Vec<_> = kernels.into_iter().collect();
        kernels.sort_unstable_by_key(|(name, (all, _))| (std::cmp::Reverse(*all), *name));
        for (rank, (name, (_, new))) in kernels.into_iter().enumerate().filter(|(_, (_, (_, new)))| *new > 0)
        {
            self.series.add_launches(name, new, rank < MOST_AT_FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;
    use gpuprobe_event::counters::{LaunchTotals, ProcessKey};

    use super::*;

    fn row(handle: u64, kernel: Option<&str>, launches: u64) -> LaunchCounts {
        let totals = LaunchTotals { launches, ..LaunchTotals::default() };
        let process = ProcessKey { tgid: Tgid(1), instance: 1 };
        LaunchCounts { process, handle, kernel: kernel.map(Into::into), stream: 0, totals }
    }

    fn values(series: &KernelSeries) -> HashMap<String, u64> {
        let named = series.named().map(|(name, n)| (name.to_owned(), n));
        named.chain([("other".to_owned(), series.other())]).collect()
    }

    /// Every kernel in its turn is launched more than all before it.
    #[test]
    fn no_series_falls_whichever_kernels_are_launched_most_and_none_is_missing_from_the_sum() {
        let (mut launched, mut rows) = (Launched::default(), Vec::new());
        let mut before = HashMap::new();
        for kernel in 0..100_u64 {
            rows.push(row(kernel, Some(&format!("k{kernel}")), 1));
            launched.look(&rows);
            rows[kernel as usize].totals.launches += 10 * (kernel + 1);
            launched.look(&rows);
            let now = values(launched.series());
            for (name, n) in &before {
                assert!(now[name] >= *n, "{name}: {n}, then {}", now[name]);
            }
            let all: u64 = rows.iter().map(|row| row.totals.launches).sum();
            assert_eq!(now.values().sum::<u64>(), all);
            assert!(now.len() <= MOST_EVER + 1);
            before = now;
        }
        assert_eq!(before.len(), MOST_EVER + 1, "{before:?}");
        assert!(before["k39"] > 10 && !before.contains_key("k99"), "the first to come up have the room");
    }

    #[test]
    fn a_name_that_comes_late_takes_nothing_from_the_nameless() {
        let mut launched = Launched::default();
        launched.look(&[row(1, None, 5)]);
        assert_eq!(values(launched.series()), HashMap::from([("other".to_owned(), 0)]), "it is on its way");
        launched.look(&[row(1, Some("add"), 6), row(2, None, 3)]);
        assert_eq!(values(launched.series())["add"], 6);
        for _ in 0..LOOKS_FOR_NAME {
            launched.look(&[row(1, Some("add"), 6), row(2, None, 3)]);
        }
        launched.look(&[row(2, Some("scale"), 5)]);
        let last = launched.finish(&[row(1, Some("add"), 6), row(2, Some("scale"), 5), row(3, None, 7)]);
        let now = values(&last);
        assert_eq!((now["unknown"], now["scale"], now["add"], now["other"]), (10, 2, 6, 0));
    }

    #[test]
    fn sums_over_processes_only_rise() {
        let of = |kernels: std::ops::Range<u64>| {
            let rows: Vec<_> = kernels.map(|k| row(k, Some(&format!("k{k}")), k + 1)).collect();
            Launched::default().finish(&rows)
        };
        let (mut sum, mut before) = (KernelSeries::default(), HashMap::new());
        for process in 0..30 {
            sum.add(&of(process..process + 30));
            let now = values(&sum);
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            before = now;
        }
        let all: u64 = (0..30).flat_map(|p| p..p + 30).map(|k: u64| k + 1).sum();
        assert_eq!((before.values().sum::<u64>(), before.len()), (all, MOST_EVER + 1));
    }
}
