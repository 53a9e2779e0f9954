//! Live memory of each site over time, in a bounded number of points. When there are too many points, every two are
//! merged, so that a history covers its whole time, a second or a week.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use gpuprobe_event::SiteId;
use gpuprobe_event::counters::SiteMemory;
use serde::Serialize;

/// The most points of a history. At least half as many exist once enough samples were taken.
pub const MOST_POINTS: usize = 64;
/// Sites of one process with a history. Each takes 2.5 KiB.
pub(crate) const MOST_SITES: usize = 1024;

/// The memory of one site, or the sum of several, in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The fewest live bytes seen in the interval.
    pub low_bytes: u64,
    /// Live bytes at its end.
    pub last_bytes: u64,
    /// All allocations up to its end.
    pub allocations: u64,
    /// How many of `allocations` were freed by a call.
    pub frees: u64,
    /// How many of `allocations` were freed with their context.
    pub freed_with_context: u64,
}

impl Point {
    /// From one row of the BPF side.
    fn of(row: &SiteMemory) -> Self {
        Self {
            low_bytes: row.live.live_bytes,
            last_bytes: row.live.live_bytes,
            allocations: row.allocations,
            // the row changes while it is read, so the difference could be negative
            frees: row
                .allocations
                .saturating_sub(row.live.live_allocations)
                .saturating_sub(row.freed_with_context_allocations),
            freed_with_context: row.freed_with_context_allocations,
        }
    }

    /// The sum with another site in the same interval. The two minima may be at different times, so the sum of the
    /// minima is a lower bound for the minimum of the sum.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            low_bytes: self.low_bytes.saturating_add(other.low_bytes),
            last_bytes: self.last_bytes.saturating_add(other.last_bytes),
            allocations: self.allocations.saturating_add(other.allocations),
            frees: self.frees.saturating_add(other.frees),
            freed_with_context: self.freed_with_context.saturating_add(other.freed_with_context),
        }
    }

    /// Merged with the next interval of the same site.
    fn merged_with(self, next: Self) -> Self {
        Self { low_bytes: self.low_bytes.min(next.low_bytes), ..next }
    }

    /// The same site after its row was removed: it has no live memory any more.
    fn freed(self) -> Self {
        let frees = self.allocations.saturating_sub(self.freed_with_context);
        Self { low_bytes: 0, last_bytes: 0, frees, ..self }
    }
}

/// The sites of one process over time. All sites have the same intervals, so that they can be summed.
#[derive(Clone, Debug, Default)]
pub struct History {
    began_ns: u64,
    /// The time of the last sample in each point.
    ends_ns: Vec<u64>,
    /// Samples per point; the last point may have fewer.
    samples_each: u32,
    /// Samples in the last point.
    in_last: u32,
    series: HashMap<SiteId, Vec<Point>>,
    /// The latest point of sites without live memory that gave up their series.
    evicted: HashMap<SiteId, Point>,
    /// Sites with live memory for which there was no room.
    not_followed: HashSet<SiteId>,
}

impl History {
    /// A history that starts at this time, with nothing allocated.
    pub fn new(began_ns: u64) -> Self {
        Self { began_ns, samples_each: 1, ..Self::default() }
    }

    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// The end of each point.
    pub fn ends_ns(&self) -> &[u64] {
        &self.ends_ns
    }

    /// The points of a site; `None` if it has no series.
    pub fn of(&self, site: SiteId) -> Option<&[Point]> {
        self.series.get(&site).map(Vec::as_slice)
    }

    /// Whether a site has live memory but no history.
    pub fn is_not_followed(&self, site: SiteId) -> bool {
        self.not_followed.contains(&site)
    }

    /// The number of sites with live memory but no history.
    pub fn not_followed(&self) -> usize {
        self.not_followed.len()
    }

    /// The sum of the points of these sites.
    pub fn sum(&self, sites: impl Iterator<Item = SiteId>) -> Vec<Point> {
        let mut sum = vec![Point::default(); self.ends_ns.len()];
        for site in sites {
            if let Some(points) = self.series.get(&site) {
                sum.iter_mut().zip(points).for_each(|(sum, point)| *sum = sum.plus(*point));
            } else if let Some(point) = self.evicted.get(&site) {
                sum.iter_mut().for_each(|sum| *sum = sum.plus(*point));
            }
        }
        sum
    }

    /// Adds a sample of all sites. Rows of one site on several GPUs are summed.
    pub fn sample<'a>(&mut self, rows: impl Iterator<Item = &'a SiteMemory>, now_ns: u64) {
        let mut now: HashMap<SiteId, Point> = HashMap::new();
        for row in rows {
            let sum = now.entry(row.site).or_default();
            *sum = sum.plus(Point::of(row));
        }
        let is_new = self.ends_ns.is_empty() || self.in_last == self.samples_each;
        if is_new {
            self.make_room();
            self.ends_ns.push(now_ns);
            self.in_last = 0;
        } else if let Some(end) = self.ends_ns.last_mut() {
            *end = now_ns;
        }
        self.in_last += 1;
        for (site, points) in &mut self.series {
            let Some(&last) = points.last() else { continue };
            let next = now.remove(site).unwrap_or_else(|| last.freed());
            match points.last_mut() {
                Some(last) if !is_new => *last = last.merged_with(next),
                _ => points.push(next),
            }
        }
        self.start_series(now);
    }

    /// Starts series for sites without one, those with most live memory first. If there is no room, they replace the
    /// series of sites without live memory, which cannot leak.
    fn start_series(&mut self, without: HashMap<SiteId, Point>) {
        let mut without: Vec<(SiteId, Point)> = without.into_iter().collect();
        without.sort_unstable_by_key(|(site, point)| (Reverse(point.last_bytes), *site));
        let before = std::mem::take(&mut self.evicted);
        self.not_followed.clear();
        let mut idle = match self.series.len() + without.len() > MOST_SITES {
            true => self.idle(),
            false => Vec::new(),
        };
        for (site, point) in without {
            if self.series.len() >= MOST_SITES {
                if point.last_bytes == 0 {
                    self.evicted.insert(site, point);
                    continue;
                }
                let Some(victim) = idle.pop() else {
                    self.not_followed.insert(site);
                    continue;
                };
                if let Some(last) = self.series.remove(&victim).and_then(|points| points.last().copied()) {
                    self.evicted.insert(victim, last);
                }
            }
            self.begin(site, point, before.get(&site).copied().unwrap_or_default());
        }
    }

    /// Sites with a series and without live memory, in reverse order of eviction: the site that has been empty for
    /// longest comes last, and among equals the one with the lowest peak.
    fn idle(&self) -> Vec<SiteId> {
        let is_empty = |points: &[Point]| points.last().is_some_and(|last| last.last_bytes == 0);
        let mut idle: Vec<_> = self
            .series
            .iter()
            .filter(|(_, points)| is_empty(points))
            .map(|(site, points)| {
                let last_live = points.iter().rposition(|point| point.last_bytes > 0);
                (last_live, points.iter().map(|point| point.last_bytes).max(), *site)
            })
            .collect();
        idle.sort_unstable_by_key(|key| Reverse(*key));
        idle.into_iter().map(|(.., site)| site).collect()
    }

    /// Starts the series of a site. Until now it had no live memory; `before` has its counts.
    fn begin(&mut self, site: SiteId, point: Point, before: Point) {
        let mut points = vec![before; self.ends_ns.len()];
        if let Some(last) = points.last_mut() {
            *last = if self.in_last > 1 { last.merged_with(point) } else { point };
        }
        self.series.insert(site, points);
    }

    /// Merges every two points if there are too many.
    fn make_room(&mut self) {
        if self.ends_ns.len() < MOST_POINTS {
            return;
        }
        self.samples_each = self.samples_each.saturating_mul(2);
        self.ends_ns = self.ends_ns.chunks(2).filter_map(<[u64]>::last).copied().collect();
        for points in self.series.values_mut() {
            *points =
                points.chunks(2).filter_map(|pair| pair.iter().copied().reduce(Point::merged_with)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;
    use gpuprobe_event::counters::{LiveTotals, ProcessKey};

    use super::*;

    fn row(site: u32, gpu: u8, live_bytes: u64, allocations: u64) -> SiteMemory {
        SiteMemory {
            process: ProcessKey { tgid: Tgid(1), instance: 1 },
            site: SiteId(site),
            gpu: Some(gpu),
            live: LiveTotals { live_bytes, live_allocations: allocations.min(live_bytes) },
            allocations,
            allocated_bytes: live_bytes,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
        }
    }

    #[test]
    fn gpus_are_summed_and_a_late_site_had_nothing_before() {
        let mut history = History::new(5);
        history.sample([row(1, 0, 10, 1), row(1, 1, 20, 2)].iter(), 10);
        history.sample([row(1, 0, 10, 1), row(2, 0, 7, 3)].iter(), 20);
        let bytes = |site| history.of(SiteId(site)).unwrap().iter().map(|p| p.last_bytes).collect::<Vec<_>>();
        assert_eq!((bytes(1), bytes(2)), (vec![30, 10], vec![0, 7]));
        assert_eq!(
            history.of(SiteId(2)).unwrap()[1],
            Point { low_bytes: 7, last_bytes: 7, allocations: 3, ..Point::default() }
        );
        assert_eq!((history.began_ns(), history.ends_ns()), (5, &[10, 20][..]));
        assert_eq!(history.of(SiteId(3)), None);
    }

    #[test]
    fn a_site_whose_row_was_removed_has_freed_everything() {
        let mut history = History::new(0);
        history.sample([row(1, 0, 10, 4)].iter(), 1);
        history.sample([].iter(), 2);
        assert_eq!(history.of(SiteId(1)).unwrap()[1], Point { allocations: 4, frees: 4, ..Point::default() });
    }

    /// For any number of samples the points are bounded, cover the whole time, and keep the minimum.
    #[test]
    fn any_number_of_samples_fits_into_the_points() {
        for count in 1..700_u64 {
            let mut history = History::new(0);
            let dip = count / 3;
            for i in 0..count {
                let live = if i == dip { 1 } else { 1000 + i };
                history.sample([row(1, 0, live, i + 1)].iter(), i + 1);
            }
            let points = history.of(SiteId(1)).unwrap();
            assert!(points.len() <= MOST_POINTS && points.len() as u64 >= count.min(MOST_POINTS as u64 / 2));
            assert_eq!(points.len(), history.ends_ns().len());
            assert!(history.ends_ns().is_sorted());
            assert_eq!(history.ends_ns().last(), Some(&count));
            assert_eq!(points.iter().map(|p| p.low_bytes).min(), Some(1), "{count}");
            assert_eq!(points.last().unwrap().allocations, count);
        }
    }

    #[test]
    fn a_site_that_starts_within_a_point_had_nothing_at_the_start_of_the_point() {
        let mut history = History::new(0);
        for i in 0..=MOST_POINTS as u64 {
            history.sample([].iter(), i);
        }
        history.sample([row(1, 0, 9, 1)].iter(), 100);
        let last = *history.of(SiteId(1)).unwrap().last().unwrap();
        assert_eq!((last.low_bytes, last.last_bytes), (0, 9));
    }

    #[test]
    fn memory_freed_with_its_context_is_not_counted_as_a_free() {
        let freed_with_context = SiteMemory { freed_with_context_allocations: 5, ..row(1, 0, 2, 9) };
        let mut history = History::new(0);
        history.sample([freed_with_context].iter(), 1);
        history.sample([].iter(), 2);
        let points = history.of(SiteId(1)).unwrap();
        assert_eq!(
            points.iter().map(|p| (p.frees, p.freed_with_context)).collect::<Vec<_>>(),
            [(2, 5), (4, 5)]
        );
    }

    #[test]
    fn sites_beyond_the_bound_are_not_followed_and_the_others_keep_theirs() {
        let mut history = History::new(0);
        let rows: Vec<_> = (0..2 * MOST_SITES as u32).map(|site| row(site, 0, 1, 1)).collect();
        history.sample(rows.iter(), 1);
        history.sample(rows.iter(), 2);
        let followed = rows.iter().filter_map(|row| history.of(row.site)).collect::<Vec<_>>();
        assert_eq!(followed.len(), MOST_SITES);
        assert!(followed.iter().all(|points| points.len() == 2));
        assert_eq!(history.not_followed(), MOST_SITES);
        assert!(rows.iter().all(|row| history.is_not_followed(row.site) == history.of(row.site).is_none()));

        // half of the followed sites free everything, and as many others take their series
        let freed = |site: u32| site < MOST_SITES as u32 / 2;
        let rows: Vec<_> = rows.iter().map(|r| row(r.site.0, 0, u64::from(!freed(r.site.0)), 1)).collect();
        history.sample(rows.iter(), 3);
        assert_eq!(history.not_followed(), MOST_SITES / 2);
        assert!(rows.iter().all(|row| history.of(row.site).is_some()
            || freed(row.site.0)
            || history.is_not_followed(row.site)));
    }

    #[test]
    fn the_site_that_is_empty_for_longest_is_evicted_first_and_keeps_its_counts() {
        let most = MOST_SITES as u32;
        let sites = |live: &dyn Fn(u32) -> u64| {
            (0..=most).map(|site| row(site, 0, live(site), 7)).collect::<Vec<_>>()
        };
        let mut history = History::new(0);
        // site 3 is empty from the second sample on, site 2 from the third, when the last site appears
        history.sample(sites(&|_| 9)[..most as usize].iter(), 1);
        history.sample(sites(&|site| if site == 3 { 0 } else { 9 })[..most as usize].iter(), 2);
        history.sample(sites(&|site| if matches!(site, 2 | 3) { 0 } else { 9 }).iter(), 3);
        assert!(history.of(SiteId(3)).is_none() && history.of(SiteId(2)).is_some());
        assert!(history.of(SiteId(most)).is_some());
        assert_eq!(history.not_followed(), 0, "a site without live memory needs no history");
        let freed = Point { allocations: 7, frees: 7, ..Point::default() };
        assert_eq!(history.sum([SiteId(3)].into_iter()), [freed; 3]);

        history.sample(sites(&|site| if site == 2 { 0 } else { 9 }).iter(), 4);
        assert!(history.of(SiteId(2)).is_none());
        assert_eq!(history.of(SiteId(3)).unwrap()[..3], [freed; 3]);
        assert_eq!(history.of(SiteId(3)).unwrap()[3].last_bytes, 9);
    }
}
