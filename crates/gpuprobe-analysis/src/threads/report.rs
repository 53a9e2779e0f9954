//! The threads of all processes, grouped, with the jobs that the processes belong to.

use std::collections::HashMap;

use gpuprobe_event::Tgid;

use super::groups::{GroupPlace, Grouped, ThreadGroup, group};
use super::jobs::{self, Candidate, Job};
use super::judged::JudgedThread;
use super::nccl_status::NcclStatus;
use super::recent_xids::RecentXids;
use super::sample::{LastOperation, Rank, SampledProcess};

/// The threads of processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StacksReport {
    /// Jobs with a process that differs come first.
    pub jobs: Vec<Job>,
    /// Processes that differ from others of their job first, then the others of jobs.
    pub processes: Vec<ProcessThreads>,
    /// What NCCL says about the jobs.
    pub nccl: Vec<NcclStatus>,
    /// What the kernel log says about the GPUs.
    pub xids: RecentXids,
}

/// The threads of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessThreads {
    pub tgid: Tgid,
    pub name: String,
    pub command: String,
    pub container: Option<String>,
    pub rank: Option<Rank>,
    /// The time since its start.
    pub age_ns: Option<u64>,
    /// The GPUs that it uses, by their numbers on the host.
    pub gpus: Vec<u32>,
    /// Threads in GPU calls first, stuck before moving.
    pub groups: Vec<ThreadGroup>,
    /// An earlier process of its job whose threads are at the same places.
    pub same_as: Option<Tgid>,
    /// Threads that were sampled.
    pub threads: u64,
    /// Those outside of GPU calls that are left out.
    pub hidden_threads: u64,
    /// Those in more groups than a report has.
    pub other_threads: u64,
    /// Threads that exited while the process was sampled.
    pub exited_threads: u64,
    pub python_problem: Option<String>,
    pub problem: Option<String>,
    /// The latest operation first.
    pub streams: Vec<LastOperation>,
}

impl StacksReport {
    /// Threads outside of GPU calls are left out unless `all_threads` is set. Of a process without a thread in a GPU
    /// call, the main thread is shown.
    pub fn build(mut sampled: Vec<SampledProcess>, all_threads: bool) -> Self {
        sampled.sort_by_key(|process| process.tgid);
        let mut candidates = Vec::new();
        let mut processes = Vec::with_capacity(sampled.len());
        for process in &sampled {
            let judge = |thread| JudgedThread::of(thread, process.tgid);
            let threads: Vec<JudgedThread<'_>> = process.threads.iter().filter_map(judge).collect();
            candidates.push(Candidate::of(process, &threads));
            processes.push(process_threads(process, threads, all_threads));
        }
        let jobs = jobs::find(candidates);
        let order = order(&jobs);
        // the sort is stable: other processes stay in the order of their numbers
        processes.sort_by_key(|process| order.get(&process.tgid).copied().unwrap_or(usize::MAX));
        if !all_threads {
            find_same(&mut processes, &jobs);
        }
        Self { jobs, processes, ..Self::default() }
    }
}

/// Finds the processes of a job that have their threads at the same places, so that these need not be read again and
/// again.
fn find_same(processes: &mut [ProcessThreads], jobs: &[Job]) {
    let job_of = |(index, job): (usize, &Job)| job.processes.iter().map(move |tgid| (*tgid, index)).collect();
    let job_of: HashMap<Tgid, usize> = jobs.iter().enumerate().flat_map::<Vec<_>, _>(job_of).collect();
    let mut first: HashMap<(usize, Vec<GroupPlace>), Tgid> = HashMap::new();
    for process in processes {
        let Some(job) = job_of.get(&process.tgid).filter(|_| !process.groups.is_empty()) else { continue };
        let places = process.groups.iter().map(ThreadGroup::place).collect();
        let earlier = *first.entry((*job, places)).or_insert(process.tgid);
        process.same_as = Some(earlier).filter(|tgid| *tgid != process.tgid);
    }
}

/// The places of the processes of jobs: those that differ first.
fn order(jobs: &[Job]) -> HashMap<Tgid, usize> {
    let differing = jobs.iter().flat_map(|job| job.differing.iter().map(|process| process.tgid));
    let others = jobs.iter().flat_map(|job| job.processes.iter().copied());
    let mut places = HashMap::new();
    for tgid in differing.chain(others) {
        let next = places.len();
        places.entry(tgid).or_insert(next);
    }
    places
}

fn process_threads(
    process: &SampledProcess,
    mut threads: Vec<JudgedThread<'_>>,
    all_threads: bool,
) -> ProcessThreads {
    let sampled = threads.len();
    let has_call = threads.iter().any(|thread| thread.function().is_some());
    let is_shown = |thread: &JudgedThread<'_>| {
        all_threads || if has_call { thread.function().is_some() } else { thread.is_main }
    };
    threads.retain(is_shown);
    let shown = threads.len();
    let Grouped { groups, other_threads } = group(threads);
    let mut streams = process.streams.clone();
    streams.sort_by_key(|operation| operation.age_ns);
    let without_samples = process.threads.len() - sampled;
    ProcessThreads {
        tgid: process.tgid,
        name: process.name.clone(),
        command: process.command.clone(),
        container: process.container.clone(),
        rank: process.rank.clone(),
        age_ns: process.age_ns,
        gpus: process.gpus.clone(),
        groups,
        same_as: None,
        threads: sampled as u64,
        hidden_threads: (sampled - shown) as u64,
        other_threads,
        exited_threads: process.exited_threads.saturating_add(without_samples as u64),
        python_problem: process.python_problem.clone(),
        problem: process.problem.clone(),
        streams,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample_threads::{asleep, ranked, stack_in, stack_outside, thread, waiting};
    use super::*;

    fn one(process: SampledProcess, all_threads: bool) -> ProcessThreads {
        StacksReport::build(vec![process], all_threads).processes.remove(0)
    }

    #[test]
    fn threads_outside_of_calls_are_counted_but_not_shown() {
        let sync = stack_in("cuStreamSynchronize", 1, 0x7f00);
        let outside = (2..=9).map(|tid| waiting(tid, &stack_outside(tid)));
        let process = ranked(1, 0, outside.chain([waiting(10, &sync)]).collect());
        let few = one(process.clone(), false);
        assert_eq!((few.groups.len(), few.hidden_threads, few.threads), (1, 8, 9));
        assert_eq!(few.groups[0].function.as_deref(), Some("cuStreamSynchronize"));
        let all = one(process, true);
        assert_eq!((all.groups.len(), all.hidden_threads), (9, 0));
        assert!(all.groups[0].function.is_some(), "those in calls come first");
    }

    #[test]
    fn the_main_thread_is_shown_if_no_thread_is_in_a_call() {
        let process = ranked(1, 0, (1..=3).map(|tid| waiting(tid, &stack_outside(7))).collect());
        let shown = one(process, false);
        assert_eq!((shown.groups.len(), shown.hidden_threads), (1, 2));
        assert!(shown.groups[0].is_main);
        let without_main = ranked(1, 0, vec![waiting(2, &stack_outside(7))]);
        assert_eq!(one(without_main, false).hidden_threads, 1);
    }

    #[test]
    fn a_thread_that_was_in_a_call_once_is_shown_there() {
        let sync = stack_in("cuStreamSynchronize", 1, 0x7f00);
        let samples = vec![asleep(0, &stack_outside(1)), asleep(1, &sync), asleep(2, &stack_outside(3))];
        let shown = one(ranked(1, 0, vec![thread(1, samples)]), false);
        assert_eq!(shown.groups[0].function.as_deref(), Some("cuStreamSynchronize"));
        assert_eq!(shown.groups[0].verdict, super::super::ThreadVerdict::Moving);
    }

    #[test]
    fn a_thread_without_samples_counts_as_exited() {
        let mut process = ranked(1, 0, vec![thread(1, vec![]), waiting(2, &stack_outside(1))]);
        process.exited_threads = u64::MAX - 1;
        let shown = one(process, true);
        assert_eq!((shown.threads, shown.exited_threads), (1, u64::MAX));
    }

    #[test]
    fn processes_of_a_job_with_threads_at_the_same_places_refer_to_the_first() {
        let stack = |slot| {
            let mut stack = stack_in("ncclAllReduce", 1, slot);
            stack.frames[0].offset = slot;
            stack.frames[2].address = slot;
            stack
        };
        let mut processes: Vec<_> = (0..4)
            .map(|rank| ranked(10 + rank, rank, vec![waiting(10 + rank, &stack(rank.into()))]))
            .collect();
        processes[0].threads = vec![waiting(10, &stack_in("cuInit", 1, 0))];
        processes.push(SampledProcess { rank: None, ..ranked(20, 0, vec![waiting(20, &stack(0))]) });
        let same = |all_threads| -> Vec<(u32, Option<u32>)> {
            let report = StacksReport::build(processes.clone(), all_threads);
            report.processes.iter().map(|process| (process.tgid.0, process.same_as.map(|of| of.0))).collect()
        };
        let expected = [(10, None), (11, None), (12, Some(11)), (13, Some(11)), (20, None)];
        assert_eq!(same(false), expected);
        assert_eq!(same(true), expected.map(|(pid, _)| (pid, None)));
    }

    #[test]
    fn the_latest_operation_comes_first() {
        let operation = |stream, age_ns| LastOperation { stream, operation: "copy".to_owned(), age_ns };
        let streams = vec![operation(1, 9), operation(2, 3)];
        let shown = one(SampledProcess { streams, ..ranked(1, 0, vec![]) }, false);
        assert_eq!(shown.streams[0].stream, 2);
    }
}
