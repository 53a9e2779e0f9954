//! Launches by kernel as counters that only rise: a kernel that has a series keeps it, and what was once counted with others
//! stays with them. Rows are read again and again, and what is new in each is added where its kernel belongs by now.
//!
//! A series that is there stays, so places are given out sparingly: a few at first, and two more each time that all launches
//! together have doubled, to kernels that are among the most launched by then. So the kernels of a warm-up cannot take those
//! of the work that follows it, and there is a bound all the same: numbers do not double for ever.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::counters::LaunchCounts;

use crate::gpu_ops::launches::UNKNOWN_KERNEL;

/// Kernels that have series of their own from the beginning.
const MOST_AT_FIRST: usize = 20;
/// Places that each doubling of all launches brings, for kernels that are among so many most launched ones.
const MORE_PER_DOUBLING: usize = 2;
/// Kernels without a series whose launches are remembered where nobody has rows of them.
const MOST_WAITING: usize = 64;
/// How long a kernel may be without a name until it is taken for one that never gets any.
pub const NAME_COMES_WITHIN_NS: u64 = 2_000_000_000;

/// Launches by kernel, and of all others together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSeries {
    /// By name. One that was not launched yet keeps its place for a series of an earlier run.
    named: Vec<(Arc<str>, u64)>,
    other: u64,
    /// Of sums over processes: kernels among the others, with at most so many launches.
    waiting: Vec<(Arc<str>, u64)>,
}

impl KernelSeries {
    /// Those with series of their own.
    pub fn named(&self) -> impl Iterator<Item = (&str, u64)> {
        self.named.iter().filter(|(_, n)| *n > 0).map(|(name, launches)| (&**name, *launches))
    }

    /// What all others come to.
    pub fn other(&self) -> u64 {
        self.other
    }

    /// Everything.
    fn all(&self) -> u64 {
        self.named.iter().map(|(_, launches)| *launches).fold(self.other, u64::saturating_add)
    }

    /// Adds launches of a kernel, which may be among the most launched when there have been so many of all kernels.
    fn add_launches(&mut self, name: &Arc<str>, launches: u64, is_large: bool, all: u64) {
        let doublings = all.checked_ilog2().and_then(|power| usize::try_from(power).ok()).unwrap_or(0);
        let more = if is_large { MORE_PER_DOUBLING * doublings } else { 0 };
        // it is no kernel, and those who look for what has no name find it
        let most = if **name == *UNKNOWN_KERNEL { usize::MAX } else { MOST_AT_FIRST + more };
        self.add_to_named(name, launches, most);
    }

    /// Adds what another process launched.
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

    /// Notes launches of a kernel without a series, and tells how many it may have by now. Where there is no room it takes
    /// the place of the one that has fewest, and its number: one that is launched again and again is never overlooked.
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

    /// Adds what another run launched whose series these are too. All of them stay: a run leaves their places free, see
    /// [`Launched::after`], so they are not many more than those of one.
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

/// How far a row has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    launches: u64,
    /// When it was first looked at without a name.
    nameless_since_ns: Option<u64>,
}

/// What one process launched, as far as it has been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    series: KernelSeries,
    /// What others launched whose series these are too.
    earlier: u64,
    /// By handle and stream.
    counted: HashMap<(u64, u64), Counted>,
}

impl Launched {
    /// Nothing yet, by a process whose series others had before: their kernels have their places already.
    pub fn after<'a>(earlier: impl IntoIterator<Item = &'a KernelSeries>) -> Self {
        let mut launched = Self::default();
        for series in earlier {
            launched.earlier = launched.earlier.saturating_add(series.all());
            series.named.iter().for_each(|(name, _)| launched.series.add_to_named(name, 0, usize::MAX));
        }
        launched
    }

    /// The counters as they are.
    pub fn series(&self) -> &KernelSeries {
        &self.series
    }

    /// Looks at the rows of the process, at this time of a clock that is always the same.
    pub fn look<'a>(&mut self, rows: impl IntoIterator<Item = &'a LaunchCounts>, now_ns: u64) {
        self.take(rows, Some(now_ns));
    }

    /// Looks at them for the last time.
    pub(crate) fn finish<'a>(mut self, rows: impl IntoIterator<Item = &'a LaunchCounts>) -> KernelSeries {
        self.take(rows, None);
        self.series
    }

    /// Without a time it is the last look.
    fn take<'a>(&mut self, rows: impl IntoIterator<Item = &'a LaunchCounts>, now_ns: Option<u64>) {
        let unknown: Arc<str> = Arc::from(UNKNOWN_KERNEL);
        // by kernel, all launches and those that are new
        let mut kernels: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
        for row in rows {
            let counted = self.counted.entry((row.handle, row.stream)).or_default();
            if let (None, Some(now_ns)) = (&row.kernel, now_ns) {
                let since_ns = *counted.nameless_since_ns.get_or_insert(now_ns);
                // its name is on its way
                if now_ns.saturating_sub(since_ns) < NAME_COMES_WITHIN_NS {
                    continue;
                }
            }
            let (all, new) = kernels.entry(row.kernel.as_ref().unwrap_or(&unknown)).or_default();
            *all += row.totals.launches;
            *new += row.totals.launches.saturating_sub(counted.launches);
            counted.launches = row.totals.launches;
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

    fn values(series: &KernelSeries) -> HashMap<String, u64> {
        let named = series.named().map(|(name, n)| (name.to_owned(), n));
        named.chain([("other".to_owned(), series.other())]).collect()
    }

    /// The most series when there have been so many launches.
    fn most(all: u64) -> usize {
        MOST_AT_FIRST + MORE_PER_DOUBLING * all.ilog2() as usize
    }

    /// Every kernel in its turn is launched more than all before it.
    #[test]
    fn no_series_falls_whichever_kernels_are_launched_most_and_none_is_missing_from_the_sum() {
        let (mut launched, mut rows) = (Launched::default(), Vec::new());
        let mut before = HashMap::new();
        for kernel in 0..100_u64 {
            rows.push(row(kernel, Some(&format!("k{kernel}")), 1));
            launched.look(&rows, 0);
            rows[kernel as usize].totals.launches += 10 * (kernel + 1);
            launched.look(&rows, 0);
            let now = values(launched.series());
            for (name, n) in &before {
                assert!(now[name] >= *n, "{name}: {n}, then {}", now[name]);
            }
            let all: u64 = rows.iter().map(|row| row.totals.launches).sum();
            assert_eq!(now.values().sum::<u64>(), all);
            assert!(now.len() <= most(all) + 1, "{}", now.len());
            before = now;
        }
        assert!((70..100).any(|k| before.contains_key(&format!("k{k}"))), "there is always room for some");
    }

    /// A hundred kernels take turns at being launched most, and then comes what the process is there for.
    #[test]
    fn a_warm_up_does_not_take_the_places_of_the_work_that_follows() {
        let mut launched = Launched::default();
        let mut rows: Vec<_> = (0..100).map(|k| row(k, Some(&format!("warm{k:02}")), 1)).collect();
        for turn in 0..100 {
            rows.iter_mut().skip(turn).take(20).for_each(|row| row.totals.launches += 3);
            launched.look(&rows, 0);
        }
        rows.push(row(101, None, 1));
        (0..2).for_each(|look| launched.look(&rows, look * NAME_COMES_WITHIN_NS));
        assert_eq!(values(launched.series())["unknown"], 1, "what has no name has a series all the same");
        let warm: u64 = rows.iter().map(|row| row.totals.launches).sum();
        rows.push(row(100, Some("train_step"), 0));
        let mut before = values(launched.series());
        for _ in 0..200 {
            rows[101].totals.launches += 1000;
            launched.look(&rows, NAME_COMES_WITHIN_NS);
            let now = values(launched.series());
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            assert_eq!(now.values().sum::<u64>(), warm + rows[101].totals.launches);
            before = now;
        }
        assert!(before["train_step"] > 200_000 - warm, "{} of {warm}", before["train_step"]);
        assert!(before["other"] <= 2 * warm && before.len() <= most(200_000 + warm) + 2);
    }

    /// No process launches it often, but all of them do.
    #[test]
    fn a_kernel_that_many_short_processes_launch_has_a_series_in_their_sums() {
        let of = |kernels: &[(String, u64)]| {
            let rows = kernels.iter().zip(0..).map(|((name, n), handle)| row(handle, Some(name), *n));
            Launched::default().finish(&rows.collect::<Vec<_>>())
        };
        let (mut sum, mut before) = (KernelSeries::default(), HashMap::new());
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
    fn a_name_that_comes_late_takes_nothing_from_the_nameless() {
        let mut launched = Launched::default();
        launched.look(&[row(1, None, 5)], 7);
        assert_eq!(values(launched.series()), HashMap::from([("other".to_owned(), 0)]), "it is on its way");
        launched.look(&[row(1, Some("add"), 6), row(2, None, 3)], 8);
        assert_eq!(values(launched.series())["add"], 6);
        let rows = [row(1, Some("add"), 6), row(2, None, 3)];
        // however many looks there are in that time
        (9..20).for_each(|at| launched.look(&rows, at));
        launched.look(&rows, NAME_COMES_WITHIN_NS + 7);
        assert!(!values(launched.series()).contains_key("unknown"));
        launched.look(&rows, NAME_COMES_WITHIN_NS + 8);
        assert_eq!(values(launched.series())["unknown"], 3);
        launched.look(&[row(2, None, 4)], NAME_COMES_WITHIN_NS + 9);
        assert_eq!(values(launched.series())["unknown"], 4, "it is not waited for again");
        launched.look(&[row(2, Some("scale"), 6)], NAME_COMES_WITHIN_NS + 10);
        let last = launched.finish(&[row(1, Some("add"), 6), row(2, Some("scale"), 6), row(3, None, 7)]);
        let now = values(&last);
        assert_eq!((now["unknown"], now["scale"], now["add"], now["other"]), (11, 2, 6, 0));
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
        assert_eq!(before.values().sum::<u64>(), all);
        assert!(before.len() <= most(all) + 1);
    }

    #[test]
    fn runs_that_share_their_series_have_the_places_of_one() {
        let run = |series: &KernelSeries, kernels: std::ops::Range<u64>| {
            let rows: Vec<_> = kernels.map(|k| row(k, Some(&format!("k{k}")), 1)).collect();
            Launched::after([series]).finish(&rows)
        };
        let (mut all, mut before) = (KernelSeries::default(), HashMap::new());
        for process in 0..10 {
            let more = run(&all, 15 * process..15 * process + 20);
            all.add_run(&more);
            let now = values(&all);
            assert!(before.iter().all(|(name, n)| now[name] >= *n));
            before = now;
        }
        assert_eq!(before.values().sum::<u64>(), 200);
        assert!(before.len() <= most(200) + 1, "{}", before.len());
        assert_eq!(Launched::after([&all]).series().named().count(), 0, "places are no series");
    }
}
