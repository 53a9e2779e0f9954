//! The number of a process in its job.

use std::path::Path;

use gpuprobe_discover::rank_of;
use gpuprobe_event::{Rank, Tgid};

/// From the environment, which has it from the start or exec of the process on.
pub(crate) fn rank(tgid: Tgid) -> Option<Rank> {
    let rank = rank_of(Path::new("/proc"), tgid.0);
    rank.map(|(variable, number)| Rank { variable: variable.to_owned(), number })
}
