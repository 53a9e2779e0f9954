use std::sync::Arc;

use super::super::report::StacksReport;
use super::super::sample::ThreadStack;
use super::super::sample_threads::{SECOND, asleep, ranked, stack_in, stack_outside, thread, waiting};
use super::*;

fn collective() -> ThreadStack {
    stack_in("ncclAllReduce", 1, 0x7f00)
}

fn sync() -> ThreadStack {
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
    assert_eq!(
        (job.differing.len(), differing.tgid, differing.rank.as_ref().map(|rank| rank.number)),
        (1, Tgid(103), Some(3))
    );
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
    assert_eq!(pair(&sync(), &stack_outside(3)), [2], "or the first");
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

/// A process without a rank, of this command and session.
fn unranked(tgid: u32, command: &str, stack: &ThreadStack) -> SampledProcess {
    SampledProcess {
        rank: None,
        command: command.to_owned(),
        session: Some(9),
        parent: Some(Tgid(1)),
        ..ranked(tgid, 0, vec![waiting(tgid, stack)])
    }
}

fn in_container(process: SampledProcess, container: &str) -> SampledProcess {
    SampledProcess { container: Some(container.to_owned()), session: None, ..process }
}

fn child_of(process: SampledProcess, parent: u32) -> SampledProcess {
    SampledProcess { parent: Some(Tgid(parent)), ..process }
}

/// The pids of each job.
fn members(processes: Vec<SampledProcess>) -> Vec<Vec<u32>> {
    let all = |job: Job| job.processes.iter().map(|tgid| tgid.0).collect();
    jobs(processes).into_iter().map(all).collect()
}

#[test]
fn processes_of_the_same_command_are_a_job_without_ranks() {
    let processes: Vec<_> = (1..=4).map(|pid| unranked(pid, "python t.py", &collective())).collect();
    let mut differing = processes.clone();
    differing[2].threads = vec![waiting(3, &stack_outside(3))];
    let job = jobs(differing).remove(0);
    assert_eq!((job.common_count, pids(&job)), (3, vec![3]));
    assert_eq!(
        (&job.differing[0].rank, job.differing[0].activity.place.as_deref()),
        (&None, Some("data.py:3"))
    );

    let mut elsewhere = processes.clone();
    elsewhere[0].session = Some(8);
    elsewhere[1].command = "python u.py".to_owned();
    assert_eq!(members(elsewhere), [[3, 4]], "another terminal, another command");
    let unknown = processes.into_iter().map(|process| SampledProcess { session: None, ..process });
    assert!(members(unknown.collect()).is_empty(), "nothing says where they come from");
}

#[test]
fn numbers_of_ranks_in_commands_may_differ() {
    let command = |pid, command: &str| unranked(pid, command, &sync());
    assert_eq!(members(vec![command(1, "t --gpu 0"), command(2, "t --gpu 1")]), [[1, 2]]);
    assert_eq!(members(vec![command(1, "VLLM::Worker_TP0"), command(2, "VLLM::Worker_TP1")]), [[1, 2]]);
    assert!(members(vec![command(1, "t --seed 0"), command(2, "t --seed 1")]).is_empty(), "two experiments");
}

#[test]
fn processes_of_one_program_in_a_container_are_a_job_if_they_use_nccl() {
    let pair = |command: [&str; 2], containers: [&str; 2], stack: &_| {
        let process = |at: usize| in_container(unranked(1 + at as u32, command[at], stack), containers[at]);
        members(vec![process(0), process(1)])
    };
    let (ports, here) = (["server --port 1", "server --port 2"], ["c", "c"]);
    assert_eq!(pair(ports, here, &collective()), [[1, 2]]);
    assert!(pair(ports, here, &sync()).is_empty(), "two servers");
    assert!(pair(ports, ["c", "d"], &collective()).is_empty());
    assert!(pair(["python a.py", "python b.py"], here, &collective()).is_empty(), "two scripts");
    assert_eq!(pair(["python a.py", "python a.py"], here, &sync()), [[1, 2]]);
    assert!(pair(["python a.py", "python a.py"], ["c", "d"], &sync()).is_empty(), "two replicas");
}

#[test]
fn processes_that_python_started_belong_to_their_parent() {
    let command = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7) \
                   --multiprocessing-fork";
    let process = |pid, parent| child_of(in_container(unranked(pid, command, &collective()), "c"), parent);
    assert_eq!(
        members(vec![process(11, 1), process(12, 1), process(21, 2), process(22, 2)]),
        [[11, 12], [21, 22]]
    );
}

#[test]
fn programs_that_hardly_use_the_gpu_are_no_job() {
    let process = |pid, stack: &_| unranked(pid, "server", stack);
    let idle = stack_outside(3);
    assert!(members(vec![process(1, &idle), process(2, &idle)]).is_empty());
    assert!(members(vec![process(1, &sync()), process(2, &idle)]).is_empty());
    assert_eq!(members(vec![process(1, &collective()), process(2, &idle)]), [[1, 2]]);
    assert_eq!(members(vec![process(1, &sync()), process(2, &sync()), process(3, &idle)]), [[1, 2, 3]]);
    let mut asking = sync();
    asking.gpu_call.as_mut().unwrap().api = Api::Nvml;
    assert!(members(vec![process(1, &asking), process(2, &asking)]).is_empty(), "monitoring");
}

#[test]
fn forked_processes_that_serve_others_are_not_compared() {
    let (idle, command) = (stack_outside(3), "python t.py");
    let process = |pid, parent, stack: &_| child_of(unranked(pid, command, stack), parent);
    // one process and those that load its data
    let loaders = (0..4).map(|n| process(20 + n, 10, &idle));
    assert!(members([process(10, 1, &collective())].into_iter().chain(loaders).collect()).is_empty());
    // one that forked a job, of which a process waits for those that load its data
    let all = vec![
        process(10, 1, &idle),
        process(11, 10, &collective()),
        process(12, 10, &collective()),
        process(13, 10, &idle),
        process(23, 13, &idle),
        process(24, 13, &idle),
    ];
    assert_eq!(members(all), [[11, 12, 13]]);
}
