//! Activities with one correlation id: what one submission executed.

use std::sync::Arc;

use gpuprobe_event::agent::{Activity, ActivityKind};
use gpuprobe_event::counters::CopyDirection;

use crate::executions::submission::{Submission, SubmittedOp};

/// GPU and host have different clocks. An execution that seems to start by no more than this before its submission may
/// belong to it.
pub(super) const CLOCK_ERROR_NS: u64 = 5_000;

/// Activities of one submission, as far as they have arrived.
#[derive(Clone, Debug, Default)]
pub struct Correlated {
    /// The correlation id, with the bits that 32 bits do not have.
    pub id: u64,
    pub activities: Vec<(Activity, Option<Arc<str>>)>,
}

impl Correlated {
    /// The earliest start; `None` if no times are known.
    pub(super) fn start_ns(&self) -> Option<u64> {
        self.activities.iter().map(|(activity, _)| activity.start_ns).filter(|start_ns| *start_ns > 0).min()
    }

    /// Whether it can be what a call submitted: by its order in time, and by what is known about both.
    pub(super) fn fits(&self, submission: &Submission, clock_error_ns: u64) -> bool {
        let is_after = |start_ns: u64| start_ns.saturating_add(clock_error_ns) >= submission.start_ns;
        self.start_ns().is_none_or(is_after) && self.is_of(&submission.op)
    }

    fn is_of(&self, op: &SubmittedOp) -> bool {
        let is_graph = self.activities.iter().any(|(activity, _)| is_in_graph(activity));
        match op {
            SubmittedOp::Graph { .. } if is_graph => true,
            SubmittedOp::Graph { contents } => {
                // an old CUPTI does not say which graph a node belongs to
                let names = contents.iter().flat_map(|contents| &contents.kernels);
                let names: Vec<_> = names.filter_map(|(name, _)| name.as_deref()).collect();
                let is_named =
                    |name: &Option<Arc<str>>| name.as_deref().is_some_and(|it| names.contains(&it));
                self.activities.len() > 1 || self.activities.iter().any(|(_, name)| is_named(name))
            }
            _ if is_graph => false,
            SubmittedOp::Kernel { name, grid, block, kernels } => {
                self.activities.len() as u64 <= (*kernels).max(1)
                    && self.all(|activity, executed| {
                        activity.kind == ActivityKind::Kernel
                            && grid.is_none_or(|grid| grid == activity.grid)
                            && block.is_none_or(|block| block == activity.block)
                            && is_same_name(name.as_deref(), executed)
                    })
            }
            SubmittedOp::Copy { direction, bytes } => {
                self.all(|activity, _| {
                    activity.kind == ActivityKind::Copy && is_same_direction(*direction, activity.copy_kind)
                }) && self.has_bytes(*bytes)
            }
            SubmittedOp::Memset { bytes } => {
                self.all(|activity, _| activity.kind == ActivityKind::Memset) && self.has_bytes(*bytes)
            }
        }
    }

    fn all(&self, is: impl Fn(&Activity, Option<&str>) -> bool) -> bool {
        self.activities.iter().all(|(activity, name)| is(activity, name.as_deref()))
    }

    fn has_bytes(&self, bytes: Option<u64>) -> bool {
        let sum = self.activities.iter().fold(0_u64, |sum, (activity, _)| sum.saturating_add(activity.bytes));
        // of several copies, some may not have arrived yet
        bytes.is_none_or(|bytes| sum == bytes || (self.activities.len() > 1 && sum < bytes))
    }
}

fn is_in_graph(activity: &Activity) -> bool {
    activity.kind == ActivityKind::Graph || activity.graph != 0
}

/// Whether two names can be of one CUDA kernel. Long names are cut at different places, and a name that could not be
/// demangled cannot be compared with one that could.
fn is_same_name(submitted: Option<&str>, executed: Option<&str>) -> bool {
    const CUT: usize = 3500;
    let (Some(submitted), Some(executed)) = (submitted, executed) else { return true };
    let is_mangled = |name: &str| name.starts_with("_Z");
    let bytes = |name: &str| name.as_bytes().get(..CUT).map(<[u8]>::to_vec);
    submitted == executed
        || is_mangled(submitted) != is_mangled(executed)
        || bytes(submitted).is_some_and(|begin| Some(begin) == bytes(executed))
}

/// Managed memory can be at either end of a copy, so only a copy to the host is surely none to the device.
fn is_same_direction(submitted: CopyDirection, executed: u8) -> bool {
    let ends = [CopyDirection::HostToDevice, CopyDirection::DeviceToHost];
    let executed = direction(executed);
    submitted == executed || !ends.contains(&submitted) || !ends.contains(&executed)
}

/// The direction by CUPTI's number (`CUpti_ActivityMemcpyKind`). Arrays are memory of a device.
pub fn direction(copy_kind: u8) -> CopyDirection {
    match copy_kind {
        1 | 3 => CopyDirection::HostToDevice,
        2 | 4 => CopyDirection::DeviceToHost,
        5..=8 => CopyDirection::DeviceToDevice,
        9 => CopyDirection::HostToHost,
        10 => CopyDirection::Peer,
        _ => CopyDirection::Unknown,
    }
}
