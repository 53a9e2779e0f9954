use std::sync::Arc;

use super::super::report::StacksReport;
use super::super::sample_threads::{SECOND, asleep, ranked, stack_in, stack_outside, thread, waiting};
use super::*;

fn collective() -> super::super::sample::ThreadStack {
    stack_in("ncclAllReduce", 1, 0x7f00)
}

fn sync() -> super::super::sample::ThreadStack {
    stack_in("cuStreamSynchronize", 1, 0x7f00)
}

fn jobs(processes: Vec<SampledProcess>) -> Vec<Job> {
    StacksReport::build(processes, false).jobs
}

/// Eight ranks from pid 100 on, in a collective.
fn eight() -> Vec<SampledProcess> {
    (0..8).map(|rank| ranked(100 + rank, rank, vec![waiting(100 + rank, &collective())])).collect()
}

fn pids(job: &Job) -> Vec<u32> {
    job.differing.iter().map(|process| process.tgid.0).collect()
}

#[test]
fn the_rank_that_is_elsewhere_differs() {
    let mut processes = eight();
    processes[3].threads = vec![waiting(103, &sync())];
    let report = StacksReport::build(processes, false);
    let [job] = &report.jobs[..] else { panic!("{:?}", report.jobs) };
    assert_eq!((job.common_count, job.processes.len()), (7, 8));
    assert_eq!(job.common.function.as_deref(), Some("ncclAllReduce"));
    let differing = &job.differing[0];
    assert_eq!((job.differing.len(), differing.tgid, differing.rank.number), (1, Tgid(103), 3));
    assert_eq!(differing.activity.function.as_deref(), Some("cuStreamSynchronize"));
    assert_eq!(differing.activity.place.as_deref(), Some("train.py:88"));
    let order: Vec<u32> = report.processes.iter().map(|process| process.tgid.0).collect();
    assert_eq!(order, [103, 100, 101, 102, 104, 105, 106, 107]);
}

#[test]
fn ranks_that_do_the_same_do_not_differ() {
    let all = jobs(eight());
    assert_eq!((all.len(), all[0].common_count, all[0].differing.len()), (1, 8, 0));
    assert_eq!(all[0].common.place.as_deref(), Some("train.py:88"));
    assert!(jobs(eight().drain(..1).collect()).is_empty(), "one process is no job");
    let unranked = eight().into_iter().map(|process| SampledProcess { rank: None, ..process });
    assert!(jobs(unranked.collect()).is_empty());
}

#[test]
fn another_line_of_the_same_call_differs() {
    let mut processes = eight();
    let mut other = collective();
    other.frames[2].line = Some(90);
    processes[5].threads = vec![waiting(105, &other)];
    assert_eq!(pids(&jobs(processes)[0]), [105]);
}

#[test]
fn ranks_that_move_pass_many_places() {
    let mut processes = eight();
    for (index, line) in [(1, 10), (2, 20)] {
        let tid = processes[index].tgid.0;
        let mut last = asleep(SECOND, &stack_outside(line));
        last.cpu_ns = SECOND;
        processes[index].threads = vec![thread(tid, vec![asleep(0, &sync()), last])];
    }
    let job = jobs(processes).remove(0);
    assert_eq!(pids(&job), [101, 102]);
    assert_eq!(job.differing[0].activity.compared(), job.differing[1].activity.compared());
}

#[test]
fn of_as_many_the_collective_is_common() {
    let pair = |first: &_, second: &_| {
        let processes = vec![ranked(1, 0, vec![waiting(1, first)]), ranked(2, 1, vec![waiting(2, second)])];
        pids(&jobs(processes)[0])
    };
    assert_eq!(pair(&collective(), &sync()), [2]);
    assert_eq!(pair(&sync(), &collective()), [1]);
    assert_eq!(pair(&sync(), &stack_outside(3)), [2], "or the lowest rank");
}

#[test]
fn a_stuck_thread_shows_best_what_a_process_does() {
    let idle = stack_outside(3);
    let mut processes = eight();
    // the main thread waits for a thread of its own
    for process in &mut processes {
        let tgid = process.tgid.0;
        process.threads = vec![waiting(tgid, &idle), waiting(tgid + 1000, &collective())];
    }
    processes[6].threads.pop();
    let job = jobs(processes).remove(0);
    assert_eq!((job.common_count, pids(&job)), (7, vec![106]));
    assert_eq!(job.differing[0].activity.function, None);
    assert_eq!(job.differing[0].activity.place.as_deref(), Some("data.py:3"));
}

#[test]
fn a_process_without_threads_differs() {
    let mut processes = eight();
    processes[0].threads.clear();
    let job = jobs(processes).remove(0);
    assert_eq!(pids(&job), [100]);
    assert_eq!(job.differing[0].activity.place, None);
}

#[test]
fn processes_belong_together_by_command_or_container() {
    let with = |tgid, rank, command: &str, container: Option<&str>| SampledProcess {
        command: command.to_owned(),
        container: container.map(str::to_owned),
        ..ranked(tgid, rank, vec![waiting(tgid, &sync())])
    };
    let found = |processes: Vec<SampledProcess>| -> Vec<Vec<u32>> {
        let all = |job: Job| job.processes.iter().map(|tgid| tgid.0).collect();
        jobs(processes).into_iter().map(all).collect()
    };
    let ranks = vec![with(1, 0, "t --local_rank=0 -v", None), with(2, 1, "t --local_rank=1 -v", None)];
    assert_eq!(found(ranks), [[1, 2]]);
    let container = vec![with(1, 0, "a", Some("c")), with(2, 1, "b", Some("c")), with(3, 2, "b", None)];
    assert_eq!(found(container), [[1, 2, 3]], "the command joins the third");
    assert!(found(vec![with(1, 0, "a", None), with(2, 1, "b", Some("c"))]).is_empty());
    let twice = vec![
        with(1, 0, "t", Some("a")),
        with(2, 0, "t", Some("b")),
        with(3, 1, "t", Some("b")),
        with(4, 1, "t", Some("a")),
    ];
    assert_eq!(found(twice), [[1, 4], [2, 3]], "two runs of one command");
}

#[test]
fn forked_processes_of_a_rank_are_not_compared() {
    let mut processes = eight();
    for rank in 0..8 {
        processes.push(ranked(200 + rank, rank, vec![waiting(200 + rank, &stack_outside(3))]));
    }
    let all = jobs(processes);
    assert_eq!((all.len(), all[0].processes.len(), all[0].differing.len()), (1, 8, 0));
}

#[test]
fn values_of_options_that_number_processes_are_ignored() {
    for (command, same) in [
        ("python t.py --local_rank=3 --lr 0.1", "python t.py --local_rank --lr 0.1"),
        ("python t.py --local-rank 3 -x", "python t.py --local-rank -x"),
        ("t --gpu 3 --rank -1", "t --gpu --rank -1"),
        ("t --Device=cuda:3 node_rank=2", "t --Device node_rank"),
        ("t --epochs 3 rank", "t --epochs 3 rank"),
        ("", ""),
    ] {
        assert_eq!(command_of_all_ranks(command), same);
    }
}

#[test]
fn thousands_of_processes_are_compared() {
    let stack = Arc::new(collective());
    let process = |pid: u32| SampledProcess {
        container: Some(format!("c{}", pid / 2)),
        command: format!("run{}", pid.div_ceil(2)),
        ..ranked(pid, pid, vec![waiting(pid, &stack)])
    };
    // every process has its container in common with one neighbour and its command with the other
    let all = jobs((1..=5000).rev().map(process).collect());
    assert_eq!((all.len(), all[0].processes.len(), all[0].common_count), (1, 5000, 5000));
}
