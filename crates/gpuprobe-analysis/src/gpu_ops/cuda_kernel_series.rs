//! Launches by CUDA kernel as counters that never decrease: a kernel with a series keeps it, and launches once
//! counted under "other" stay there. The table rows are read repeatedly, and the increase of each row is added to its
//! kernel's counter.
//!
//! A series is never removed, so new ones are created sparingly: a few at first, and two more each time the total
//! number of launches doubles, for kernels that are among the most launched at that time. This keeps room for kernels
//! that start after the warm-up of a program, and it is bounded because a count can double only 64 times.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::counters::{GraphKernelCounts, LaunchCounts};

use crate::gpu_ops::launches::UNKNOWN_KERNEL;

/// CUDA kernels that get a series of their own from the start.
const MOST_AT_FIRST: usize = 20;
/// Further series per doubling of all launches, for kernels among the [`MOST_AT_FIRST`] most launched.
const MORE_PER_DOUBLING: usize = 2;
/// Kernels without a series whose launches are remembered in sums over processes, where there are no rows to rank
/// them by.
const MOST_WAITING: usize = 64;
/// A kernel that has no name after this time is counted as one without a name.
pub const NAME_TIMEOUT_NS: u64 = 2_000_000_000;

/// Launches of CUDA kernels with a series of their own, and the sum of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaKernelSeries {
    /// Sorted by name. An entry with 0 launches reserves the series of an earlier run.
    named: Vec<(Arc<str>, u64)>,
    other: u64,
    /// In sums over processes: kernels without a series, with an upper bound of their launches.
    waiting: Vec<(Arc<str>, u64)>,
}

impl CudaKernelSeries {
    /// A series of one kernel.
    pub(crate) fn of(name: Arc<str>, count: u64) -> Self {
        Self { named: vec![(name, count)], ..Self::default() }
    }

    /// The kernels with a series of their own.
    pub fn named(&self) -> impl Iterator<Item = (&str, u64)> {
        self.named.iter().filter(|(_, n)| *n > 0).map(|(name, launches)| (&**name, *launches))
    }

    /// The sum of all other kernels.
    pub fn other(&self) -> u64 {
        self.other
    }

    fn all(&self) -> u64 {
        self.named.iter().map(|(_, launches)| *launches).fold(self.other, u64::saturating_add)
    }

    /// Adds launches of a kernel. `is_large`: it is among the most launched. `all`: launches of all kernels.
    fn add_launches(&mut self, name: &Arc<str>, launches: u64, is_large: bool, all: u64) {
        let doublings = all.checked_ilog2().and_then(|power| usize::try_from(power).ok()).unwrap_or(0);
        let more = if is_large { MORE_PER_DOUBLING * doublings } else { 0 };
        // launches without a name always have a series, so that they can be found
        let most = if **name == *UNKNOWN_KERNEL { usize::MAX } else { MOST_AT_FIRST + more };
        self.add_to_named(name, launches, most);
    }

    /// Adds the launches of another process.
    pub(crate) fn add(&mut self, more: &Self) {
        let all = self.all().saturating_add(more.all());
        let mut kernels: Vec<_> = more.named.iter().filter(|(_, n)| *n > 0).collect();
        kernels.sort_unstable_by_key(|(name, launches)| (std::cmp::Reverse(*launches), name));
        for (name, launches) in kernels {
            let launched = if self.has(name) { 0 } else { self.wait(name, *launches) };
            let larger = |kernels: &[(Arc<str>, u64)]| kernels.iter().filter(|(_, n)| *n > launched).count();
            let is_large = larger(&self.named) + larger(&self.waiting) < MOST_AT_FIRST;
            self.add_launches(name, *launches, is_large, all);
            if self.has(name) {
                self.waiting.retain(|(waiting, _)| waiting != name);
            }
        }
        self.other = self.other.saturating_add(more.other);
    }

    fn has(&self, name: &Arc<str>) -> bool {
        self.named.binary_search_by(|(known, _)| known.cmp(name)).is_ok()
    }

    /// Notes launches of a kernel without a series and returns an upper bound of its launches. If there is no room,
    /// the kernel replaces the one with the fewest launches and inherits its count (the space-saving algorithm), so a
    /// kernel that is launched often is never missed.
    fn wait(&mut self, name: &Arc<str>, launches: u64) -> u64 {
        let known = self.waiting.iter().position(|(waiting, _)| waiting == name);
        let fewest = || (0..self.waiting.len()).min_by_key(|&at| self.waiting[at].1);
        match known.or_else(|| fewest().filter(|_| self.waiting.len() >= MOST_WAITING)) {
            Some(at) => {
                let (waiting, sum) = &mut self.waiting[at];
                *waiting = Arc::clone(name);
                *sum = sum.saturating_add(launches);
                *sum
            }
            None => {
                self.waiting.push((Arc::clone(name), launches));
                launches
            }
        }
    }

    /// Adds the launches of another run that shares its series with this one. All series are kept. Their number stays
    /// close to that of a single run because a run reserves the series of earlier ones, see [`Launched::after`].
    pub(crate) fn add_run(&mut self, more: &Self) {
        for (name, launches) in &more.named {
            self.add_to_named(name, *launches, usize::MAX);
        }
        self.other = self.other.saturating_add(more.other);
    }

    fn add_to_named(&mut self, name: &Arc<str>, launches: u64, most: usize) {
        match self.named.binary_search_by(|(known, _)| known.cmp(name)) {
            Ok(at) => self.named[at].1 = self.named[at].1.saturating_add(launches),
            Err(at) if self.named.len() < most => self.named.insert(at, (Arc::clone(name), launches)),
            Err(_) => self.other = self.other.saturating_add(launches),
        }
    }
}

/// A row of a table with the launches of one CUDA kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelCount<'a> {
    handle: u64,
    stream: u64,
    kernel: Option<&'a Arc<str>>,
    launches: u64,
}

impl<'a> From<&'a LaunchCounts> for KernelCount<'a> {
    fn from(row: &'a LaunchCounts) -> Self {
        let (kernel, launches) = (row.kernel.as_ref(), row.totals.launches);
        Self { handle: row.handle, stream: row.stream, kernel, launches }
    }
}

impl<'a> From<&'a GraphKernelCounts> for KernelCount<'a> {
    fn from(row: &'a GraphKernelCounts) -> Self {
        Self { handle: row.handle, stream: 0, kernel: row.kernel.as_ref(), launches: row.runs }
    }
}

/// How much of a row has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    launches: u64,
    /// When the row was first seen without a name.
    unnamed_since_ns: Option<u64>,
}

/// The launches of one process, updated from its table rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchTracker {
    series: CudaKernelSeries,
    /// Launches of earlier runs that share the series.
    earlier: u64,
    /// Rows by handle and stream.
    counted: HashMap<(u64, u64), Counted>,
}

impl LaunchTracker {
    /// For a process that shares its series with earlier runs: their kernels get their series back.
    pub fn after<'a>(earlier: impl IntoIterator<Item = &'a CudaKernelSeries>) -> Self {
        let mut launched = Self::default();
        for series in earlier {
            launched.earlier = launched.earlier.saturating_add(series.all());
            series.named.iter().for_each(|(name, _)| launched.series.add_to_named(name, 0, usize::MAX));
        }
        launched
    }

    pub fn series(&self) -> &CudaKernelSeries {
        &self.series
    }

    /// Adds what is new in the rows of the process. `now_ns` must be of the same clock each time.
    pub fn update<'a, R: Into<KernelCount<'a>>>(&mut self, rows: impl IntoIterator<Item = R>, now_ns: u64) {
        self.take(rows, Some(now_ns));
    }

    /// Updates for the last time.
    pub(crate) fn finish<'a, R: Into<KernelCount<'a>>>(
        mut self,
        rows: impl IntoIterator<Item = R>,
    ) -> CudaKernelSeries {
        self.take(rows, None);
        self.series
    }

    /// Without a time it is the last update, and kernels without a name are not waited for.
    fn take<'a, R: Into<KernelCount<'a>>>(&mut self, rows: impl IntoIterator<Item = R>, now_ns: Option<u64>) {
        let unknown: Arc<str> = Arc::from(UNKNOWN_KERNEL);
        // by kernel: all launches, and the new ones
        let mut kernels: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
        for row in rows {
            let row = row.into();
            let counted = self.counted.entry((row.handle, row.stream)).or_default();
            if let (None, Some(now_ns)) = (row.kernel, now_ns) {
                let since_ns = *counted.unnamed_since_ns.get_or_insert(now_ns);
                // the name may still arrive
                if now_ns.saturating_sub(since_ns) < NAME_TIMEOUT_NS {
                    continue;
                }
            }
            let (all, new) = kernels.entry(row.kernel.unwrap_or(&unknown)).or_default();
            *all += row.launches;
            *new += row.launches.saturating_sub(counted.launches);
            counted.launches = row.launches;
        }
        let mut kernels: Vec<_> = kernels.into_iter().collect();
        let everything = kernels.iter().map(|(_, (all, _))| *all).fold(self.earlier, u64::saturating_add);
        kernels.sort_unstable_by_key(|(name, (all, _))| (std::cmp::Reverse(*all), *name));
        for (rank, (name, (_, new))) in kernels.into_iter().enumerate().filter(|(_, (_, (_, new)))| *new > 0)
        {
            self.series.add_launches(name, new, rank < MOST_AT_FIRST, everything);
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

    fn values(series: &CudaKernelSeries) -> HashMap<String, u64> {
        let named = series.named().map(|(name, n)| (name.to_owned(), n));
        named.chain([("other".to_owned(), series.other())]).collect()
    }

    /// The highest number of series after this many launches.
    fn most(all: u64) -> usize {
        MOST_AT_FIRST + MORE_PER_DOUBLING * all.ilog2() as usize
    }

    /// Each kernel is launched more often than all before it.
    #[test]
    fn no_series_decreases_and_the_sum_is_complete_when_the_most_launched_kernel_changes() {
        let (mut launched, mut rows) = (LaunchTracker::default(), Vec::new());
        let mut before = HashMap::new();
        for kernel in 0..100_u64 {
            rows.push(row(kernel, Some(&format!("k{kernel}")), 1));
            launched.update(&rows, 0);
            rows[kernel as usize].totals.launches += 10 * (kernel + 1);
            launched.update(&rows, 0);
            let now = values(launched.series());
            for (name, n) in &before {
                assert!(now[name] >= *n, "{name}: {n}, then {}", now[name]);
            }
            let all: u64 = rows.iter().map(|row| row.totals.launches).sum();
            assert_eq!(now.values().sum::<u64>(), all);
            assert!(now.len() <= most(all) + 1, "{}", now.len());
            before = now;
        }
        assert!((70..100).any(|k| before.contains_key(&format!("k{k}"))), "there is room for late kernels");
    }

    /// A hundred kernels take turns at being the most launched; then the main kernel of the process starts.
    #[test]
    fn a_warm_up_leaves_series_for_the_kernels_that_follow() {
        let mut launched = LaunchTracker::default();
        let mut rows: Vec<_> = (0..100).map(|k| row(k, Some(&format!("warm{k:02}")), 1)).collect();
        for turn in 0..100 {
            rows.iter_mut().skip(turn).take(20).for_each(|row| row.totals.launches += 3);
            launched.update(&rows, 0);
        }
        rows.push(row(101, None, 1));
        (0..2).for_each(|update| launched.update(&rows, update * NAME_TIMEOUT_NS));
        assert_eq!(values(launched.series())["unknown"], 1, "kernels without a name have a series");
        let warm: u64 = rows.iter().map(|row| row.totals.launches).sum();
        rows.push(row(100, Some("train_step"), 0));
        let mut before = values(launched.series());
        for _ in 0..200 {
            rows[101].totals.launches += 1000;
            launched.update(&rows, NAME_TIMEOUT_NS);
            let now = values(launched.series());
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            assert_eq!(now.values().sum::<u64>(), warm + rows[101].totals.launches);
            before = now;
        }
        assert!(before["train_step"] > 200_000 - warm, "{} of {warm}", before["train_step"]);
        assert!(before["other"] <= 2 * warm && before.len() <= most(200_000 + warm) + 2);
    }

    /// No process launches it often, but all processes launch it.
    #[test]
    fn a_kernel_that_many_short_processes_launch_has_a_series_in_their_sums() {
        let of = |kernels: &[(String, u64)]| {
            let rows = kernels.iter().zip(0..).map(|((name, n), handle)| row(handle, Some(name), *n));
            LaunchTracker::default().finish(&rows.collect::<Vec<_>>())
        };
        let (mut sum, mut before) = (CudaKernelSeries::default(), HashMap::new());
        for process in 0..100 {
            let kernels: Vec<_> = (0..20).map(|k| (format!("p{process}k{k}"), 100 + k)).collect();
            sum.add(&of(&kernels));
        }
        for process in 0..2000 {
            sum.add(&of(&[(format!("once{process}"), 150), ("step".to_owned(), 200)]));
            let now = values(&sum);
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            before = now;
        }
        let all = 100 * (2000 + 190) + 2000 * 350;
        assert_eq!(before.values().sum::<u64>(), all);
        assert!(before["step"] > 200_000 && before.len() <= most(all) + 1, "{}", before.len());
        assert!(sum.waiting.len() <= MOST_WAITING);
    }

    #[test]
    fn a_late_name_takes_no_launches_from_the_unknown_series() {
        let mut launched = LaunchTracker::default();
        launched.update(&[row(1, None, 5)], 7);
        assert_eq!(
            values(launched.series()),
            HashMap::from([("other".to_owned(), 0)]),
            "the name may arrive"
        );
        launched.update(&[row(1, Some("add"), 6), row(2, None, 3)], 8);
        assert_eq!(values(launched.series())["add"], 6);
        let rows = [row(1, Some("add"), 6), row(2, None, 3)];
        // regardless of the number of updates in that time
        (9..20).for_each(|at| launched.update(&rows, at));
        launched.update(&rows, NAME_TIMEOUT_NS + 7);
        assert!(!values(launched.series()).contains_key("unknown"));
        launched.update(&rows, NAME_TIMEOUT_NS + 8);
        assert_eq!(values(launched.series())["unknown"], 3);
        launched.update(&[row(2, None, 4)], NAME_TIMEOUT_NS + 9);
        assert_eq!(values(launched.series())["unknown"], 4, "it is not waited for again");
        launched.update(&[row(2, Some("scale"), 6)], NAME_TIMEOUT_NS + 10);
        let last = launched.finish(&[row(1, Some("add"), 6), row(2, Some("scale"), 6), row(3, None, 7)]);
        let now = values(&last);
        assert_eq!((now["unknown"], now["scale"], now["add"], now["other"]), (11, 2, 6, 0));
    }

    #[test]
    fn sums_over_processes_never_decrease() {
        let of = |kernels: std::ops::Range<u64>| {
            let rows: Vec<_> = kernels.map(|k| row(k, Some(&format!("k{k}")), k + 1)).collect();
            LaunchTracker::default().finish(&rows)
        };
        let (mut sum, mut before) = (CudaKernelSeries::default(), HashMap::new());
        for process in 0..30 {
            sum.add(&of(process..process + 30));
            let now = values(&sum);
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            before = now;
        }
        let all: u64 = (0..30).flat_map(|p| p..p + 30).map(|k: u64| k + 1).sum();
        assert_eq!(before.values().sum::<u64>(), all);
        assert!(before.len() <= most(all) + 1);
    }

    #[test]
    fn runs_that_share_their_series_have_no_more_series_than_one_run() {
        let run = |series: &CudaKernelSeries, kernels: std::ops::Range<u64>| {
            let rows: Vec<_> = kernels.map(|k| row(k, Some(&format!("k{k}")), 1)).collect();
            LaunchTracker::after([series]).finish(&rows)
        };
        let (mut all, mut before) = (CudaKernelSeries::default(), HashMap::new());
        for process in 0..10 {
            let more = run(&all, 15 * process..15 * process + 20);
            all.add_run(&more);
            let now = values(&all);
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            before = now;
        }
        assert_eq!(before.values().sum::<u64>(), 200);
        assert!(before.len() <= most(200) + 1, "{}", before.len());
        assert_eq!(
            LaunchTracker::after([&all]).series().named().count(),
            0,
            "a reserved series is not shown"
        );
    }
}
