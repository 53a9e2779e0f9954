//! Processes of one job, and those of them that do something else than most.

mod command;
mod ranked;
mod related;
mod unranked;

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::{Api, Tgid};
use serde::Serialize;

use super::gpu_call::outside;
use super::judged::JudgedThread;
use super::sample::{Rank, SampledProcess};
use super::verdict::ThreadVerdict;
use crate::leaks::call_sites::CallSite;

/// Processes that run one program together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// The command line of its first process.
    pub command: String,
    /// By rank, or else by number.
    pub processes: Vec<Tgid>,
    /// What most of them do.
    pub common: Activity,
    /// How many of them do it.
    pub common_count: usize,
    /// The others, in the same order.
    pub differing: Vec<DifferingProcess>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DifferingProcess {
    pub tgid: Tgid,
    pub rank: Option<Rank>,
    pub activity: Activity,
}

/// What a process does, by the thread that shows it best: the one that is stuck in a GPU call for the longest time,
/// or else its main thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Activity {
    pub verdict: ThreadVerdict,
    /// The library of the GPU call.
    pub api: Option<Api>,
    /// The GPU call; `None` outside of GPU calls.
    pub function: Option<String>,
    /// Where the user's own code made it, or is: `train.py:88`.
    pub place: Option<String>,
}

impl Activity {
    /// The activity of a process. A process without threads is at no known place.
    fn of(threads: &[JudgedThread<'_>]) -> Self {
        let Some(thread) = threads.iter().min_by_key(|thread| (class(thread), thread.oldest_first())) else {
            return Self { verdict: ThreadVerdict::Unknown, api: None, function: None, place: None };
        };
        let stack = &thread.sample.stack;
        let frames = thread.call.map_or(stack.frames.as_slice(), |call| outside(stack, call));
        let opened = || thread.open_call.map(|open| open.api);
        Self {
            verdict: thread.verdict,
            api: thread.call.map(|call| call.api).or_else(opened),
            function: thread.function().map(str::to_owned),
            place: CallSite::of(frames.to_vec()).place(),
        }
    }

    /// What two processes must have in common to do the same. Those that move pass many places.
    fn compared(&self) -> Option<(ThreadVerdict, Option<&str>, Option<&str>)> {
        let is_moving = self.verdict == ThreadVerdict::Moving;
        (!is_moving).then_some((self.verdict, self.function.as_deref(), self.place.as_deref()))
    }
}

/// How well a thread shows what its process does; the smallest shows it best. Threads that ask NVML for figures now
/// and then show nothing.
fn class(thread: &JudgedThread<'_>) -> u8 {
    let is_in_call = thread.function().is_some() && !is_nvml(thread);
    match thread.verdict {
        ThreadVerdict::Stuck => 0,
        ThreadVerdict::Unknown if is_in_call => 1,
        ThreadVerdict::Moving if is_in_call => 2,
        _ if thread.is_main => 3,
        _ => 4,
    }
}

fn is_nvml(thread: &JudgedThread<'_>) -> bool {
    thread.call.is_some_and(|call| call.api == Api::Nvml)
}

/// A process that may belong to a job.
#[derive(Debug)]
pub(super) struct Candidate<'p> {
    process: &'p SampledProcess,
    activity: Activity,
    /// A thread is in a call of CUDA or NCCL.
    is_in_call: bool,
}

impl<'p> Candidate<'p> {
    pub(super) fn of(process: &'p SampledProcess, threads: &[JudgedThread<'_>]) -> Self {
        let is_in_call = threads.iter().any(|thread| thread.function().is_some() && !is_nvml(thread));
        Self { process, activity: Activity::of(threads), is_in_call }
    }

    fn tgid(&self) -> Tgid {
        self.process.tgid
    }
}

/// The jobs of processes that are sorted by their numbers.
pub(super) fn find(candidates: Vec<Candidate<'_>>) -> Vec<Job> {
    let (ranked, others): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.process.rank.is_some());
    let members = ranked::jobs(ranked).into_iter().chain(unranked::jobs(others));
    let mut jobs: Vec<Job> = members.filter_map(job).collect();
    jobs.sort_by_key(|job| job.differing.is_empty());
    jobs
}

/// Compares the processes of a job; `None` if there is only one.
fn job(mut members: Vec<Candidate<'_>>) -> Option<Job> {
    let rank = |member: &Candidate<'_>| member.process.rank.as_ref().map(|rank| rank.number);
    members.sort_by_key(|member| (rank(member), member.tgid()));
    if members.len() < 2 {
        return None;
    }
    let mut counts: HashMap<_, usize> = HashMap::new();
    for member in &members {
        *counts.entry(member.activity.compared()).or_default() += 1;
    }
    let count = |member: &Candidate<'_>| counts.get(&member.activity.compared()).copied().unwrap_or(0);
    // of as many, those in a collective wait for the others; then the first one, which `min` returns of equals
    let is_collective = |member: &Candidate<'_>| member.activity.api == Some(Api::Nccl);
    let common = members.iter().min_by_key(|member| (Reverse(count(member)), !is_collective(member)))?;
    let differs = |member: &&Candidate<'_>| member.activity.compared() != common.activity.compared();
    let differing = |member: &Candidate<'_>| DifferingProcess {
        tgid: member.tgid(),
        rank: member.process.rank.clone(),
        activity: member.activity.clone(),
    };
    Some(Job {
        command: members.first()?.process.command.clone(),
        processes: members.iter().map(Candidate::tgid).collect(),
        common: common.activity.clone(),
        common_count: count(common),
        differing: members.iter().filter(differs).map(differing).collect(),
    })
}

#[cfg(test)]
mod tests;
