//! The clocks of several recordings.

use gpuprobe_event::trace::Meta;
use serde::Serialize;

/// Where and when a recording began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// The name of the trace.
    pub trace: String,
    pub host: String,
    /// The Unix time of its time 0, in nanoseconds.
    unix_ns: i64,
    /// The start of the host and the time since then, if they were recorded.
    monotonic: Option<(String, u64)>,
}

impl Origin {
    pub fn of(trace: &str, meta: &Meta) -> Self {
        Self {
            trace: trace.to_owned(),
            host: meta.host.clone(),
            // out of range is the nearest time that can be represented
            unix_ns: (meta.start_unix * 1e9) as i64,
            monotonic: meta.boot.clone().zip(meta.start_monotonic_ns),
        }
    }
}

/// What the time of a recording was derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// It is the first one, whose clock is the common one.
    First,
    /// It was made on the host of an earlier one, whose clock it shares.
    SameHost,
    /// Collectives that it has in common with others.
    Collectives,
    /// Only the Unix time of its start.
    UnixTime,
}

/// The clocks of recordings, before they are corrected.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    /// The clock of each recording, and the time of its beginning, counted from that of the first.
    recordings: Vec<(usize, i64)>,
    /// The first recording on each clock.
    first: Vec<usize>,
}

impl Clocks {
    pub(super) fn of(origins: &[Origin]) -> Self {
        let mut clocks = Self { recordings: Vec::with_capacity(origins.len()), first: Vec::new() };
        let reference_ns = origins.first().map_or(0, |first| first.unix_ns);
        for (number, origin) in origins.iter().enumerate() {
            let shared = clocks.first.iter().enumerate().find_map(|(clock, first)| {
                let (boot, first_ns) = origins.get(*first)?.monotonic.as_ref()?;
                let (own_boot, own_ns) = origin.monotonic.as_ref()?;
                let (_, base_ns) = clocks.recordings.get(*first)?;
                let later_ns = i64::try_from(*own_ns).ok()?.checked_sub(i64::try_from(*first_ns).ok()?)?;
                (own_boot == boot).then_some((clock, base_ns.saturating_add(later_ns)))
            });
            let own = (clocks.first.len(), origin.unix_ns.saturating_sub(reference_ns));
            if shared.is_none() {
                clocks.first.push(number);
            }
            clocks.recordings.push(shared.unwrap_or(own));
        }
        clocks
    }

    pub(super) fn count(&self) -> usize {
        self.first.len()
    }

    /// The clock of a recording, and a time of the recording on it.
    pub(super) fn at(&self, recording: usize, ns: u64) -> (usize, i64) {
        let (clock, base_ns) = self.recordings.get(recording).copied().unwrap_or_default();
        (clock, base_ns.saturating_add(i64::try_from(ns).unwrap_or(i64::MAX)))
    }

    /// Whether a recording is the first on its clock.
    pub(super) fn is_first(&self, recording: usize) -> bool {
        self.first.contains(&recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(start_unix: f64, boot: Option<(&str, u64)>) -> Origin {
        Origin::of(
            "t",
            &Meta {
                start_unix,
                boot: boot.map(|(boot, _)| boot.to_owned()),
                start_monotonic_ns: boot.map(|(_, ns)| ns),
                ..Meta::default()
            },
        )
    }

    #[test]
    fn recordings_of_one_start_of_a_host_share_a_clock_that_no_one_can_set() {
        let origins = [
            origin(1000.5, Some(("a", 7_000))),
            origin(1001.0, None),
            // the wall clock was set between the two
            origin(900.0, Some(("a", 9_000))),
            origin(1002.0, Some(("b", 1))),
        ];
        let clocks = Clocks::of(&origins);
        let at: Vec<_> = (0..4).map(|recording| clocks.at(recording, 5)).collect();
        assert_eq!(at, [(0, 5), (1, 500_000_005), (0, 2_005), (2, 1_500_000_005)]);
        assert_eq!((clocks.count(), clocks.is_first(2), clocks.is_first(3)), (3, false, true));
    }

    #[test]
    fn implausible_times_do_not_overflow() {
        let clocks = Clocks::of(&[origin(f64::MAX, None), origin(f64::NAN, None), origin(-1e300, None)]);
        assert_eq!(clocks.at(0, u64::MAX), (0, i64::MAX));
        assert_eq!(clocks.at(2, 7).1, i64::MIN + 7);
    }
}
