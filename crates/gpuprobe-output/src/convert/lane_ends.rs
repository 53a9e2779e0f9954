//! Places intervals that may overlap on as few lanes as possible, in which they do not.

use std::collections::HashMap;
use std::hash::Hash;

/// The ends of the lanes of each track.
#[derive(Debug)]
pub(super) struct LaneEnds<K>(HashMap<K, Vec<u64>>);

impl<K> Default for LaneEnds<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> LaneEnds<K> {
    /// Lanes of one track. What overlaps all of them is in the last one nevertheless.
    const MOST_LANES: usize = 8;
    /// Beyond so many tracks, all are forgotten.
    const MOST_TRACKS: usize = 1 << 16;

    /// The lane of an interval.
    pub(super) fn place(&mut self, track: K, start_ns: u64, end_ns: u64) -> usize {
        if self.0.len() >= Self::MOST_TRACKS && !self.0.contains_key(&track) {
            self.0.clear();
        }
        let ends = self.0.entry(track).or_default();
        if let Some(lane) = ends.iter().position(|end| *end <= start_ns) {
            ends[lane] = end_ns.max(start_ns);
            return lane;
        }
        if ends.len() < Self::MOST_LANES {
            ends.push(end_ns.max(start_ns));
        }
        ends.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_has_a_lane_of_its_own() {
        let mut lanes = LaneEnds::default();
        let placed = [(0, 10), (10, 20), (5, 30), (20, 25), (26, 28), (27, 40)]
            .map(|(start_ns, end_ns)| lanes.place("stream", start_ns, end_ns));
        assert_eq!(placed, [0, 0, 1, 0, 0, 2]);
        assert_eq!(lanes.place("another", 0, 1), 0);
        let many: Vec<_> = (0..20).map(|_| lanes.place("crowd", 0, 5)).collect();
        assert_eq!(many.iter().max(), Some(&(LaneEnds::<&str>::MOST_LANES - 1)));
    }
}
