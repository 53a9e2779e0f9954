//! What the processes of a job do, in one sentence.

use gpuprobe_analysis::{Activity, DifferingProcess, Job, Rank, ThreadVerdict};

use crate::units::{count, printable};

/// Processes that are named in a sentence; the others are counted.
const MOST_NAMED: usize = 5;

/// `7 of 8 wait in ncclAllReduce; rank 3 (pid 31) is in cudaStreamSynchronize, train.py:88`
pub(super) fn sentence(job: &Job) -> String {
    let named = job.differing.iter().take(MOST_NAMED).map(differing);
    let others = job.differing.len().saturating_sub(MOST_NAMED) as u64;
    let rest = (others > 0).then(|| count(others, "other differs", "others differ"));
    std::iter::once(common(job)).chain(named).chain(rest).collect::<Vec<_>>().join("; ")
}

fn common(job: &Job) -> String {
    let number = job.common_count;
    let is_one = number == 1;
    let common = &job.common;
    let doing = match (common.verdict, &common.function) {
        (ThreadVerdict::Stuck, Some(function)) => {
            format!("{} in {}", if is_one { "waits" } else { "wait" }, printable(function))
        }
        (ThreadVerdict::Moving, _) => format!("{} moving", if is_one { "is" } else { "are" }),
        _ => format!("{} {}", if is_one { "is" } else { "are" }, doing(common)),
    };
    // the place says more if others are in the same call elsewhere, or if there are no others; those that move have none
    let mut functions = job.differing.iter().map(|process| &process.activity.function);
    let has_place = job.differing.is_empty() || functions.any(|function| *function == common.function);
    let has_place = has_place && common.verdict != ThreadVerdict::Moving;
    let place = place(common).filter(|_| has_place).unwrap_or_default();
    format!("{number} of {} {doing}{place}", job.processes.len())
}

fn differing(process: &DifferingProcess) -> String {
    let activity = &process.activity;
    let place = place(activity).unwrap_or_default();
    let who = match &process.rank {
        Some(number) => format!("{} (pid {})", rank(number), process.tgid),
        None => format!("pid {}", process.tgid),
    };
    format!("{who} is {}{place}", doing(activity))
}

/// `rank 3`; `local rank 3` if only its number on the host is known.
pub(super) fn rank(rank: &Rank) -> String {
    let local = if rank.is_local() { "local " } else { "" };
    format!("{local}rank {}", rank.number)
}

/// What comes after `is`.
fn doing(activity: &Activity) -> String {
    match (activity.verdict, &activity.function) {
        (ThreadVerdict::Moving, Some(function)) => format!("moving, last seen in {}", printable(function)),
        (ThreadVerdict::Moving, None) => "moving".to_owned(),
        (_, Some(function)) => format!("in {}", printable(function)),
        (_, None) if activity.place.is_none() => "at an unknown place".to_owned(),
        (_, None) => "outside of GPU calls".to_owned(),
    }
}

/// `, train.py:88`
fn place(activity: &Activity) -> Option<String> {
    activity.place.as_ref().map(|place| format!(", {}", printable(place)))
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Tgid};

    use super::*;

    fn activity(verdict: ThreadVerdict, function: Option<&str>, place: Option<&str>) -> Activity {
        let api = function.map(|_| Api::Runtime);
        Activity { verdict, api, function: function.map(str::to_owned), place: place.map(str::to_owned) }
    }

    fn collective() -> Activity {
        activity(ThreadVerdict::Stuck, Some("ncclAllReduce"), Some("train.py:90"))
    }

    fn job(common: Activity, common_count: usize, differing: Vec<Activity>) -> Job {
        let all = (common_count + differing.len()) as u32;
        let differing = differing.into_iter().zip(3..).map(|(activity, number)| DifferingProcess {
            tgid: Tgid(28 + number),
            rank: Some(Rank { variable: "RANK".to_owned(), number }),
            activity,
        });
        Job {
            command: "python train.py".to_owned(),
            processes: (0..all).map(Tgid).collect(),
            common,
            common_count,
            differing: differing.collect(),
        }
    }

    #[test]
    fn a_rank_that_differs_is_named_with_its_place() {
        let sync = activity(ThreadVerdict::Stuck, Some("cudaStreamSynchronize"), Some("train.py:88"));
        assert_eq!(
            sentence(&job(collective(), 7, vec![sync.clone()])),
            "7 of 8 wait in ncclAllReduce; rank 3 (pid 31) is in cudaStreamSynchronize, train.py:88"
        );
        assert_eq!(
            sentence(&job(collective(), 1, vec![sync])),
            "1 of 2 waits in ncclAllReduce; rank 3 (pid 31) is in cudaStreamSynchronize, train.py:88"
        );
    }

    #[test]
    fn a_process_without_a_rank_is_named_by_its_pid() {
        let sync = activity(ThreadVerdict::Stuck, Some("cudaStreamSynchronize"), Some("train.py:88"));
        let mut job = job(collective(), 7, vec![sync]);
        job.differing[0].rank = None;
        assert_eq!(
            sentence(&job),
            "7 of 8 wait in ncclAllReduce; pid 31 is in cudaStreamSynchronize, train.py:88"
        );
    }

    #[test]
    fn places_are_shown_where_they_are_the_difference() {
        let elsewhere = Activity { place: Some("train.py:88".to_owned()), ..collective() };
        assert_eq!(
            sentence(&job(collective(), 7, vec![elsewhere.clone()])),
            "7 of 8 wait in ncclAllReduce, train.py:90; rank 3 (pid 31) is in ncclAllReduce, train.py:88"
        );
        let other = activity(ThreadVerdict::Stuck, Some("cudaFree"), None);
        let both = sentence(&job(collective(), 6, vec![elsewhere, other]));
        assert!(both.starts_with("6 of 8 wait in ncclAllReduce, train.py:90; "), "{both}");
        assert_eq!(sentence(&job(collective(), 8, vec![])), "8 of 8 wait in ncclAllReduce, train.py:90");
    }

    #[test]
    fn processes_outside_of_calls_have_a_place() {
        let moving = activity(ThreadVerdict::Moving, None, Some("data.py:3"));
        let launching = activity(ThreadVerdict::Moving, Some("cudaLaunchKernel"), None);
        let idle = activity(ThreadVerdict::Idle, None, Some("data.py:4"));
        let unknown = activity(ThreadVerdict::Unknown, None, None);
        assert_eq!(
            sentence(&job(moving, 2, vec![idle.clone(), unknown, launching.clone()])),
            "2 of 5 are moving; rank 3 (pid 31) is outside of GPU calls, data.py:4; rank 4 (pid 32) is at an unknown \
             place; rank 5 (pid 33) is moving, last seen in cudaLaunchKernel"
        );
        assert_eq!(sentence(&job(launching, 2, vec![])), "2 of 2 are moving");
        assert_eq!(sentence(&job(idle, 2, vec![])), "2 of 2 are outside of GPU calls, data.py:4");
        let once = activity(ThreadVerdict::Unknown, Some("cudaFree"), None);
        assert_eq!(sentence(&job(once, 2, vec![])), "2 of 2 are in cudaFree");
    }

    #[test]
    fn only_some_of_many_are_named() {
        let sync = |n: u32| activity(ThreadVerdict::Stuck, Some(&format!("f{n}\n")), None);
        let six = sentence(&job(collective(), 8, (0..6).map(sync).collect()));
        assert!(six.ends_with("rank 7 (pid 35) is in f4\\n; 1 other differs"), "{six}");
        let many = sentence(&job(collective(), 8, (0..100).map(sync).collect()));
        assert!(many.ends_with("; 95 others differ"), "{many}");
    }

    #[test]
    fn a_rank_says_what_it_counts() {
        let of = |variable: &str| rank(&Rank { variable: variable.to_owned(), number: 7 });
        assert_eq!(
            ["RANK", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK"].map(of),
            ["rank 7", "rank 7", "local rank 7"]
        );
    }
}
