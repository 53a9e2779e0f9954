//! The instructions of one x86-64 function, found along its branches, and which of them lead to which. Stripped
//! libraries do not say where their inner functions end, so the walk ends at returns and at jumps through pointers.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};

use super::code_chunks::{Budget, CodeChunks};

/// A longer function is not examined. The longest that calls the CUDA driver for an export of libcudart has about
/// 1,500.
const MOST_INSTRUCTIONS: usize = 4096;

/// One instruction, and the file offsets of those that lead to it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) instruction: Instruction,
    /// Most instructions have only one before them.
    first_before: Option<u64>,
    others_before: Vec<u64>,
}

impl Node {
    /// The instructions that lead to this one.
    pub(super) fn before(&self) -> impl Iterator<Item = u64> {
        self.first_before.into_iter().chain(self.others_before.iter().copied())
    }

    /// The instruction before this one, if there is only one.
    pub(super) fn only_before(&self) -> Option<u64> {
        self.first_before.filter(|_| self.others_before.is_empty())
    }
}

/// All instructions that a function reaches without calls, by file offset.
#[derive(Debug)]
pub(super) struct FunctionFlow {
    pub(super) entry: u64,
    nodes: Vec<Node>,
    /// Where each is in `nodes`.
    index: BTreeMap<u64, u32>,
    /// The targets of its direct calls, sorted.
    pub(super) calls: Vec<u64>,
}

impl FunctionFlow {
    /// Follows a function from its entry, or says why it cannot be followed to its end.
    pub(super) fn walk(
        entry: u64,
        code: &mut CodeChunks<'_>,
        budget: &mut Budget,
    ) -> Result<Self, &'static str> {
        let mut flow =
            Self { entry, nodes: Vec::with_capacity(128), index: BTreeMap::new(), calls: Vec::new() };
        let mut open = vec![(entry, None)];
        while let Some((at, origin)) = open.pop() {
            flow.follow(at, origin, code, budget, &mut open)?;
        }
        flow.calls.sort_unstable();
        flow.calls.dedup();
        Ok(flow)
    }

    /// Follows code to the next instruction that is known or has no successor, and collects the targets of branches.
    fn follow(
        &mut self,
        mut at: u64,
        mut origin: Option<u64>,
        code: &mut CodeChunks<'_>,
        budget: &mut Budget,
        open: &mut Vec<(u64, Option<u64>)>,
    ) -> Result<(), &'static str> {
        loop {
            let bytes = code.at(at).ok_or("its code cannot be read")?;
            let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
            while decoder.can_decode() && decoder.position() < CodeChunks::STEP {
                let next_index = self.nodes.len() as u32;
                let index = *self.index.entry(at).or_insert(next_index);
                if let Some(known) = self.nodes.get_mut(index as usize) {
                    // the entry has none before it, and is no point either
                    known.others_before.extend(origin);
                    return Ok(());
                }
                let instruction = decoder.decode();
                if instruction.is_invalid() || self.nodes.len() >= MOST_INSTRUCTIONS || !budget.take() {
                    return Err("its code is not understood");
                }
                self.nodes.push(Node { instruction, first_before: origin, others_before: Vec::new() });
                match instruction.flow_control() {
                    FlowControl::Next | FlowControl::IndirectCall => {}
                    FlowControl::Call if instruction.code() == Code::Call_rel32_64 => {
                        self.calls.push(instruction.near_branch_target());
                    }
                    FlowControl::ConditionalBranch => {
                        open.push((instruction.near_branch_target(), Some(at)));
                    }
                    FlowControl::UnconditionalBranch => {
                        open.push((instruction.near_branch_target(), Some(at)));
                        return Ok(());
                    }
                    FlowControl::Return | FlowControl::Exception => return Ok(()),
                    FlowControl::IndirectBranch => return Err("it has a jump through a table or a pointer"),
                    _ => return Err("its code is not understood"),
                }
                origin = Some(at);
                at = instruction.next_ip();
            }
        }
    }

    /// Whether it jumps to one of these functions.
    pub(super) fn jumps_to(&self, entries: &BTreeSet<u64>) -> bool {
        let (Some((&first, _)), Some((&last, _))) =
            (self.index.first_key_value(), self.index.last_key_value())
        else {
            return false;
        };
        entries.range(first..=last).any(|at| *at != self.entry && self.index.contains_key(at))
    }

    pub(super) fn get(&self, at: u64) -> Option<&Node> {
        self.nodes.get(*self.index.get(&at)? as usize)
    }

    pub(super) fn instructions(&self) -> impl Iterator<Item = &Instruction> {
        self.nodes.iter().map(|node| &node.instruction)
    }

    /// The instructions after this one in the order of the code, over branches that are not taken.
    pub(super) fn straight_after(&self, at: u64) -> impl Iterator<Item = &Instruction> {
        let next = |instruction: &&Instruction| {
            let falls_through = !matches!(
                instruction.flow_control(),
                FlowControl::Return | FlowControl::Exception | FlowControl::UnconditionalBranch
            );
            self.get(instruction.next_ip()).map(|node| &node.instruction).filter(|_| falls_through)
        };
        std::iter::successors(self.get(at).map(|node| &node.instruction), move |last| next(last)).skip(1)
    }

    /// Whether any of these instructions can run after this one.
    pub(super) fn leads_to(&self, from: u64, targets: &[u64]) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            let Some(node) = self.get(at) else { continue };
            let instruction = &node.instruction;
            let mut after = Vec::new();
            match instruction.flow_control() {
                FlowControl::Return | FlowControl::Exception => {}
                FlowControl::UnconditionalBranch => after.push(instruction.near_branch_target()),
                FlowControl::ConditionalBranch => {
                    after.extend([instruction.near_branch_target(), instruction.next_ip()]);
                }
                _ => after.push(instruction.next_ip()),
            }
            for next in after {
                if targets.contains(&next) {
                    return true;
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    }
}
