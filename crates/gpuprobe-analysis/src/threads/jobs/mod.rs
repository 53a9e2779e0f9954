//! Processes of one job, and those of them that do something else than most.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::{Api, Tgid};
use serde::Serialize;

use super::gpu_call::outside;
use super::judged::JudgedThread;
use super::sample::{Rank, SampledProcess};
use super::verdict::ThreadVerdict;
use crate::leaks::call_sites::CallSite;

/// Processes that run one program together, one for each rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// The command line of its first process.
    pub command: String,
    /// By rank.
    pub processes: Vec<Tgid>,
    /// What most of them do.
    pub common: Activity,
    /// How many of them do it.
    pub common_count: usize,
    /// The others, by rank.
    pub differing: Vec<DifferingProcess>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DifferingProcess {
    pub tgid: Tgid,
    pub rank: Rank,
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
    let is_in_call = thread.function().is_some();
    let is_nvml = thread.call.is_some_and(|call| call.api == Api::Nvml);
    match thread.verdict {
        ThreadVerdict::Stuck => 0,
        ThreadVerdict::Unknown if is_in_call && !is_nvml => 1,
        ThreadVerdict::Moving if is_in_call && !is_nvml => 2,
        _ if thread.is_main => 3,
        _ => 4,
    }
}

/// A process that has a rank.
#[derive(Debug)]
pub(super) struct Candidate<'p> {
    process: &'p SampledProcess,
    rank: &'p Rank,
    activity: Activity,
    is_in_call: bool,
}

impl<'p> Candidate<'p> {
    pub(super) fn of(process: &'p SampledProcess, threads: &[JudgedThread<'_>]) -> Option<Self> {
        let is_in_call = threads.iter().any(|thread| thread.function().is_some());
        let rank = process.rank.as_ref()?;
        Some(Self { process, rank, activity: Activity::of(threads), is_in_call })
    }
}

/// The jobs of processes that are sorted by their numbers.
pub(super) fn find(candidates: Vec<Candidate<'_>>) -> Vec<Job> {
    let related = related(candidates);
    let mut jobs: Vec<Job> = related.into_iter().flat_map(instances).filter_map(job).collect();
    jobs.sort_by_key(|job| job.differing.is_empty());
    jobs
}

/// Sets of processes with the same command or in the same container.
fn related(candidates: Vec<Candidate<'_>>) -> Vec<Vec<Candidate<'_>>> {
    let mut set_of: Vec<usize> = (0..candidates.len()).collect();
    let commands = candidates.iter().map(|candidate| Some(command_of_all_ranks(&candidate.process.command)));
    join(&mut set_of, commands);
    join(&mut set_of, candidates.iter().map(|candidate| candidate.process.container.clone()));
    let mut sets: Vec<Vec<Candidate<'_>>> = candidates.iter().map(|_| Vec::new()).collect();
    for (index, candidate) in candidates.into_iter().enumerate() {
        sets[first_of(&set_of, index)].push(candidate);
    }
    sets.retain(|set| set.len() > 1);
    sets
}

/// Joins the sets of elements that have the same value. An element points to an earlier one of its set, or to itself.
fn join(set_of: &mut [usize], values: impl Iterator<Item = Option<String>>) {
    let mut with_value: HashMap<String, usize> = HashMap::new();
    for (index, value) in values.enumerate() {
        let Some(value) = value else { continue };
        let other = *with_value.entry(value).or_insert(index);
        let (a, b) = (first_of(set_of, index), first_of(set_of, other));
        set_of[a.max(b)] = a.min(b);
        // short ways
        set_of[index] = a.min(b);
    }
}

fn first_of(set_of: &[usize], mut index: usize) -> usize {
    while set_of[index] != index {
        index = set_of[index];
    }
    index
}

/// Separates the runs of one command. Each rank occurs once in a run. Processes that a rank has forked, such as those
/// that load data, have its rank, too, and larger numbers: they are left out unless they call the GPU.
fn instances(mut set: Vec<Candidate<'_>>) -> Vec<Vec<Candidate<'_>>> {
    set.sort_by(|a, b| (&a.process.container, a.process.tgid).cmp(&(&b.process.container, b.process.tgid)));
    let mut seen: HashMap<(&str, u32), usize> = HashMap::new();
    let mut instances: Vec<Vec<Candidate<'_>>> = Vec::new();
    for candidate in set {
        let occurrence = seen.entry((&candidate.rank.variable, candidate.rank.number)).or_default();
        if instances.len() == *occurrence {
            instances.push(Vec::new());
        }
        if let Some(instance) = instances.get_mut(*occurrence) {
            instance.push(candidate);
        }
        *occurrence += 1;
    }
    let is_run = |(index, instance): &(usize, Vec<Candidate<'_>>)| {
        *index == 0 || instance.iter().any(|candidate| candidate.is_in_call)
    };
    instances.into_iter().enumerate().filter(is_run).map(|(_, instance)| instance).collect()
}

/// Compares the processes of a job; `None` if there is only one.
fn job(mut members: Vec<Candidate<'_>>) -> Option<Job> {
    members.sort_by_key(|member| (member.rank.number, member.process.tgid));
    if members.len() < 2 {
        return None;
    }
    let mut counts: HashMap<_, usize> = HashMap::new();
    for member in &members {
        *counts.entry(member.activity.compared()).or_default() += 1;
    }
    let count = |member: &Candidate<'_>| counts.get(&member.activity.compared()).copied().unwrap_or(0);
    // of as many, those in a collective wait for the others; then the lowest rank, which `min` returns of equals
    let is_collective = |member: &Candidate<'_>| member.activity.api == Some(Api::Nccl);
    let common = members.iter().min_by_key(|member| (Reverse(count(member)), !is_collective(member)))?;
    let differs = |member: &&Candidate<'_>| member.activity.compared() != common.activity.compared();
    let differing = |member: &Candidate<'_>| DifferingProcess {
        tgid: member.process.tgid,
        rank: member.rank.clone(),
        activity: member.activity.clone(),
    };
    Some(Job {
        command: members.first()?.process.command.clone(),
        processes: members.iter().map(|member| member.process.tgid).collect(),
        common: common.activity.clone(),
        common_count: count(common),
        differing: members.iter().filter(differs).map(differing).collect(),
    })
}

/// Options whose value is another one for each process of a job, without the word `rank`.
const NUMBERED_OPTIONS: [&str; 6] = ["device", "device_id", "gpu", "gpu_id", "process_id", "worker_id"];

/// A command line without the values of options that number the processes of a job: `--local_rank=3`, `--gpu 3`.
fn command_of_all_ranks(command: &str) -> String {
    let mut words = Vec::new();
    let mut is_number_next = false;
    for word in command.split_whitespace() {
        let is_value = is_number_next && !word.starts_with('-');
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let is_option = name.starts_with('-') || value.is_some();
        let plain = name.trim_start_matches('-').replace('-', "_").to_ascii_lowercase();
        let is_numbered = is_option && (plain.contains("rank") || NUMBERED_OPTIONS.contains(&plain.as_str()));
        if !is_value {
            words.push(if is_numbered { name } else { word });
        }
        is_number_next = is_numbered && value.is_none();
    }
    words.join(" ")
}

#[cfg(test)]
mod tests;
