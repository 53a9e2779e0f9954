//! Sampled functions: their probes are attached for turns, and removed between them.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuprobe_event::{FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags};

use super::detachable_probes::{DetachableProbes, is_detachable};
use super::library::{AttachOptions, Attached, attach_group};
use super::uprobe_attacher::UprobeAttacher;
use crate::attach::helper::helper_client::{HelperClient, Patience};
use crate::error::CaptureError;
use crate::host::clock::monotonic_ns;
use crate::host::support::Tier;
use crate::wire::object_handles::map_of;
use crate::wire::{MapName, as_bytes, from_bytes, gp_function, gp_turn, number};

/// How long before it begins a turn is announced: all CPUs must see it by then.
const TURN_AHEAD_NS: u64 = 200_000;

/// A turn, on the clock of `bpf_ktime_get_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub from_ns: u64,
    pub until_ns: u64,
}

impl UprobeAttacher {
    /// How often the probes of sampled functions could not be attached for a turn, up to [`Self::set_open_paths`].
    pub(crate) fn missed_turns(&self) -> u64 {
        self.detachable.missed_turns
    }

    /// Samples these functions from now on, and observes all calls of the others. To be called between turns. Those of
    /// `in_turns` are attached only in turns. The others are hardly called: their probes stay, and cost nothing. The
    /// probes of functions that are new among `in_turns` are removed by [`Self::end_turn`], so that open calls can return
    /// first.
    pub(crate) fn set_sampled(
        &mut self,
        sampled: &BTreeSet<FunctionId>,
        in_turns: &BTreeSet<FunctionId>,
    ) -> Result<(), CaptureError> {
        let mut result = Ok(());
        let attached_before = std::mem::replace(&mut self.detachable.in_turns, in_turns.clone());
        for id in attached_before.difference(in_turns) {
            result = result.and(self.attach_always(*id));
        }
        let before = std::mem::replace(&mut self.detachable.sampled, sampled.clone());
        let changed = sampled.symmetric_difference(&before);
        let changed = changed.chain(in_turns.symmetric_difference(&attached_before));
        let mut changed: BTreeSet<_> = changed.copied().collect();
        if sampled.is_empty() != before.is_empty() {
            changed.extend(&self.detachable.failures);
        }
        changed.into_iter().try_for_each(|id| self.write_flags(id))?;
        result
    }

    /// Samples the failures of functions of which only these are counted, whenever others are sampled.
    pub(super) fn sample_failures(
        &mut self,
        functions: impl Iterator<Item = FunctionId>,
    ) -> Result<(), CaptureError> {
        let functions: Vec<_> =
            functions.filter(|id| catalogue().get(*id).is_some_and(is_detachable)).collect();
        self.detachable.failures.extend(&functions);
        if self.detachable.sampled.is_empty() {
            return Ok(());
        }
        functions.into_iter().try_for_each(|id| self.write_flags(id))
    }

    /// Attaches the probes of the sampled functions, and begins a turn in which each of their calls stands for `weight`
    /// calls. If the probes cannot be attached to some file, the others have their turn.
    pub(crate) fn begin_turn(&mut self, weight: u16, length: Duration) -> (Turn, Result<(), CaptureError>) {
        self.detachable.turn = self.detachable.turn.checked_add(1).unwrap_or(1);
        let mut result = Ok(());
        for attached in self.attached.values_mut() {
            let attaching = attach_for_turn(&mut self.helper, attached, &self.detachable);
            if let Err(error) = attaching {
                attached.has_missed_turn = true;
                result = Err(error);
            }
        }
        let from_ns = monotonic_ns() + TURN_AHEAD_NS;
        let turn = Turn { from_ns, until_ns: from_ns + length.as_nanos() as u64 };
        let row = gp_turn {
            from_ns: turn.from_ns,
            until_ns: turn.until_ns,
            number: u64::from(self.detachable.turn),
            open: 0,
            weight: u64::from(weight),
        };
        let written = map_of(&self.object, MapName::DataTurn).and_then(|map| {
            map.update(&0u32.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
                .map_err(CaptureError::bpf("begin a turn"))
        });
        (turn, result.and(written))
    }

    /// How many calls that began in the last turn have not returned.
    pub(crate) fn open_in_turn(&self) -> Result<i64, CaptureError> {
        let row = map_of(&self.object, MapName::DataTurn)?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("read the turn"))?;
        Ok(row.map_or(0, |bytes| from_bytes::<gp_turn>(&bytes).open))
    }

    /// Removes the probes of the sampled functions, without waiting for it.
    pub(crate) fn end_turn(&mut self) {
        let in_turns = &self.detachable.in_turns;
        let mut links = Vec::new();
        for attached in self.attached.values_mut() {
            links.append(&mut attached.turn_links);
            let functions = attached.detachable.iter_mut().filter(|f| in_turns.contains(&f.planned.function));
            functions.for_each(|f| links.append(&mut f.links));
        }
        self.helper.detach_later(links);
    }

    /// Writes whether a function is sampled.
    fn write_flags(&self, id: FunctionId) -> Result<(), CaptureError> {
        let mut row = self.function_row(id)?;
        row.flags &= !(number::FUNCTION_SAMPLED | number::FUNCTION_IN_TURNS);
        row.flags |= self.detachable.flags(id);
        let map = map_of(&self.object, MapName::Functions)?;
        map.update(&id.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))
    }

    fn function_row(&self, id: FunctionId) -> Result<gp_function, CaptureError> {
        let row = map_of(&self.object, MapName::Functions)?.lookup(&id.0.to_ne_bytes(), MapFlags::ANY);
        let row = row.map_err(CaptureError::bpf("read the table of functions"))?;
        row.map(|bytes| from_bytes(&bytes)).ok_or(CaptureError::Missing("row of a function"))
    }

    /// Attaches the probes of a function that is not sampled any more, in every file.
    fn attach_always(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        let mut result = Ok(());
        for attached in self.attached.values_mut() {
            let (options, file) = (attached.options, &attached.file);
            let mut patience = Patience::new(attached.may_stall, options.tier);
            let functions = attached.detachable.iter_mut();
            for function in functions.filter(|f| f.planned.function == id && f.links.is_empty()) {
                match function.attach(&mut self.helper, options, file, &mut patience) {
                    Ok(links) => function.links = links,
                    Err(error) => {
                        attached.has_missed_turn = true;
                        result = Err(error);
                    }
                }
            }
        }
        result
    }
}

/// Attaches the functions of one library that have no probes between turns, with as few links as possible. Probes that
/// they still have from before are ignored.
fn attach_for_turn(
    helper: &mut HelperClient,
    attached: &mut Attached,
    sampling: &DetachableProbes,
) -> Result<(), CaptureError> {
    let Attached { options, ref file, ref detachable, .. } = *attached;
    let options = AttachOptions { turn: sampling.turn, ..options };
    let most = if options.tier == Tier::Perf { 1 } else { usize::MAX };
    let mut groups: Vec<(&[_], Vec<_>)> = Vec::new();
    for function in detachable.iter().filter(|f| sampling.in_turns.contains(&f.planned.function)) {
        let programs = function.programs(options);
        match groups.iter_mut().find(|(others, group)| *others == programs && group.len() < most) {
            Some((_, group)) => group.push(&function.planned),
            None => groups.push((programs, vec![&function.planned])),
        }
    }
    let mut patience = Patience::new(attached.may_stall, options.tier);
    for (programs, group) in groups {
        let links = attach_group(helper, options, file, (programs, &group), &mut patience)?;
        attached.turn_links.extend(links);
    }
    Ok(())
}
