//! Many threads, and threads and processes that exit while they are sampled.

use std::thread;
use std::time::Duration;

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::number;
use gpuprobe_e2e::sampled::{FOR_EVER, Started, compiled, list, only_group, process, stacks};
use gpuprobe_e2e::{bpf_test, fixtures};
use gpuprobe_standin::Library;
use nix::sys::resource::{UsageWho, getrusage};

const THREADS: u64 = 1000;
/// Sampling takes about a second. This is for everything else.
const MOST_TIME: Duration = Duration::from_secs(2);
const SAMPLING: Duration = Duration::from_secs(1);

fn wait() -> String {
    format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}")
}

/// The CPU time of all children that have exited.
fn children_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let spent = [usage.user_time(), usage.system_time()];
    spent.iter().map(|t| Duration::from_micros((t.tv_sec() * 1_000_000 + t.tv_usec()).cast_unsigned())).sum()
}

#[bpf_test(alone)]
fn a_thousand_threads_in_one_call_are_one_group() {
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "many_waits.c", &["-O2"], Library::Driver));
    let program = Started::new(&[&program, &THREADS.to_string(), "0"], &[&wait()]);
    let pid = program.pid.to_string();
    for (samples, verdict) in [("5", "stuck"), ("1", "unknown")] {
        let before = children_time();
        let (report, finished) = stacks(&["-d", &pid, "--samples", samples]);
        let spent = children_time() - before;
        let shown = &list(&report["processes"])[0];
        let group = only_group(shown);
        let found = (&group["threads"], &group["function"], &group["verdict"], &shown["threads"]);
        let expected =
            (&THREADS.into(), &"cuStreamSynchronize".into(), &verdict.into(), &(THREADS + 1).into());
        assert_eq!(found, expected, "{group}");
        // the main thread is in no call
        assert_eq!((&shown["hidden_threads"], &group["main"]), (&1.into(), &false.into()));
        let limit = if samples == "1" { SAMPLING } else { SAMPLING + MOST_TIME };
        // other programs may keep the CPUs busy: then its own time counts
        assert!(finished.took < limit || spent < MOST_TIME, "{samples}: {:?}, CPU {spent:?}", finished.took);
        println!("{samples} samples: {:?}, CPU {spent:?}", finished.took);
    }
}

#[bpf_test]
fn threads_that_exit_between_samples_are_counted() {
    const EXITING: u64 = 4;
    const IN_CALL: u64 = 6;
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "many_waits.c", &["-O2"], Library::Driver));
    let arguments = [&*program, &IN_CALL.to_string(), &EXITING.to_string()];
    let mut program = Started::new(&arguments, &[&wait()]);
    let pid = program.pid;
    // far more time than it takes until the first sample
    let sampling = thread::spawn(move || process(pid, &["--samples", "24"]));
    thread::sleep(Duration::from_secs(3));
    program.talk.go_on();
    program.talk.rest();
    let shown = sampling.join().unwrap();
    let group = only_group(&shown);
    let found = (number(&group["threads"]), number(&shown["threads"]), number(&shown["exited_threads"]));
    assert_eq!(found, (IN_CALL, IN_CALL + 1, EXITING), "{shown}");
    assert_eq!(group["verdict"], "stuck");
}

#[bpf_test]
fn threads_and_processes_may_come_and_go_meanwhile() {
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "short_threads.c", &["-O2"], Library::Driver));
    let mut program = Started::new(&[&program], &["STANDIN_DELAY=cuStreamSynchronize:20000"]);
    let shown = process(program.pid, &["--samples", "20", "--all-threads"]);
    program.talk.go_on();
    let started: u64 = program.talk.line().parse().unwrap();
    let exited = number(&shown["exited_threads"]);
    // eight at a time live for a tenth of the time between two samples
    assert!((20..=started).contains(&exited), "{exited} of {started}: {shown}");
    assert_eq!(program.talk.end(), 0);
}

#[bpf_test]
fn a_process_that_exits_meanwhile_is_no_error() {
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "many_waits.c", &["-O2"], Library::Driver));
    let staying = Started::new(&[&program, "1", "0"], &[&wait()]);
    let leaving = Started::new(&[&program, "2", "0"], &[&wait()]);
    let (first, second) = (staying.pid.to_string(), leaving.pid.to_string());
    let options = ["-d", &first, "-d", &second, "--samples", "24"].map(str::to_owned);
    let sampling = thread::spawn(move || stacks(&options.each_ref().map(String::as_str)).0);
    thread::sleep(Duration::from_secs(3));
    let left = leaving.pid;
    drop(leaving);
    let report = sampling.join().unwrap();
    let of = |pid: u32| list(&report["processes"]).iter().find(|process| process["pid"] == pid).unwrap();
    let counts = |pid: u32| (number(&of(pid)["threads"]), number(&of(pid)["exited_threads"]));
    assert_eq!((counts(staying.pid), counts(left)), ((2, 0), (0, 3)), "{report}");

    let gone = finish(&mut gpuprobe(&["stacks", "-d", &left.to_string()]));
    assert_eq!((gone.status, gone.stderr), (1, format!("gpuprobe: there is no process {left}\n")));
}
