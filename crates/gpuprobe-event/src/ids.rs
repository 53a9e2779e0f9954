//! Newtypes for numbers that must not be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);
    };
}

macro_rules! shown_as {
    ($name:ident, $number:expr) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let number: fn(u32) -> u32 = $number;
                number(self.0).fmt(f)
            }
        }
    };
}

id! {
    /// A process: the Linux kernel's thread group id, which user space calls pid. See [`Tgid::of_recording`].
    Tgid
}
id! {
    /// A thread: the Linux kernel's pid. See [`Tid::of_recording`].
    Tid
}
id! {
    /// A row of the catalogue: one signature of one function of one library.
    FunctionId
}

id! {
    /// A call site: a distinct call stack. Unique in its recording.
    SiteId
}

shown_as!(Tgid, |number| number % OF_RECORDING);
shown_as!(Tid, |number| number % OF_RECORDING);
shown_as!(FunctionId, |number| number);
shown_as!(SiteId, |number| number);

/// Linux gives smaller pids (at most 2^22). What is above is the number of the recording, where several are analysed
/// together: two hosts may have the same pid. Texts show the pid only.
const OF_RECORDING: u32 = 10_000_000;

/// Recordings that can be analysed together.
pub const MOST_RECORDINGS: usize = 400;

macro_rules! in_several_recordings {
    ($name:ident) => {
        impl $name {
            /// The same number in one of several recordings, which are numbered from 0.
            #[must_use]
            pub fn of_recording(self, recording: usize) -> Self {
                let recording = u32::try_from(recording.min(MOST_RECORDINGS)).unwrap_or(0);
                Self(recording * OF_RECORDING + self.0 % OF_RECORDING)
            }

            /// The number of the recording.
            pub fn recording(self) -> usize {
                (self.0 / OF_RECORDING) as usize
            }
        }
    };
}

in_several_recordings!(Tgid);
in_several_recordings!(Tid);

impl SiteId {
    /// The call site is not known.
    pub const UNKNOWN: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pids_of_several_recordings_differ_and_look_the_same() {
        let pids = [0, 1, 399].map(|recording| Tgid(4711).of_recording(recording));
        assert_eq!(pids, [4711, 10_004_711, 3_990_004_711].map(Tgid));
        assert_eq!(pids.map(Tgid::recording), [0, 1, 399]);
        assert_eq!(pids.map(|pid| pid.to_string()), ["4711", "4711", "4711"]);
        assert_eq!(pids.map(|pid| pid.of_recording(2)), [Tgid(20_004_711); 3]);
        assert_eq!(Tid(u32::MAX).of_recording(usize::MAX).recording(), MOST_RECORDINGS);
        assert_eq!(SiteId(20_000_001).to_string(), "20000001");
    }
}
