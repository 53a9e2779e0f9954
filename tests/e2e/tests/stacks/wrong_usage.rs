//! Wrong numbers and missing rights: one line that says what is wrong and what to do.

use std::fs;
use std::process::Command;

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::sampled::{FOR_EVER, Started, compiled, only_group, process};
use gpuprobe_e2e::{Finished, bpf_test, fixtures, needs};
use gpuprobe_standin::Library;

const DENIED: &str = "run as root or with CAP_SYS_PTRACE";

fn said(options: &[&str]) -> Finished {
    finish(gpuprobe(&["stacks"]).args(options))
}

/// Exactly this line on stderr, nothing on stdout, status 1.
fn assert_refused(finished: &Finished, line: &str) {
    assert_eq!(finished.stderr, format!("gpuprobe: {line}\n"));
    assert_eq!((finished.status, &*finished.stdout), (1, ""));
}

fn assert_usage(finished: &Finished, line: &str) {
    assert_eq!(finished.stderr.lines().next(), Some(&*format!("error: {line}")), "{}", finished.stderr);
    assert_eq!((finished.status, &*finished.stdout), (2, ""));
}

#[bpf_test]
fn processes_that_are_none_are_named() {
    for pid in ["0", "99999999", "4294967295"] {
        assert_refused(&said(&["-d", pid]), &format!("there is no process {pid}"));
    }
    // a thread of the Linux kernel
    let kernel = "no thread could be sampled: the processes have exited, or belong to the Linux kernel";
    assert_refused(&said(&["-d", "2"]), kernel);
    let word =
        "invalid value 'abc' for '--pid <PID>': give the number of a process; `pgrep -f abc` prints it";
    assert_usage(&said(&["-d", "abc"]), word);
    for samples in ["0", "1001"] {
        let bad = format!("invalid value '{samples}' for '--samples <N>': {samples} is not in 1..=1000");
        assert_usage(&said(&["--samples", samples]), &bad);
    }
}

#[bpf_test]
fn a_thread_is_not_taken_for_a_process() {
    let folder = fixtures::folder();
    let program = shown(compiled(folder.path(), "many_waits.c", &["-O2"], Library::Driver));
    let program =
        Started::new(&[&program, "1", "0"], &[&format!("STANDIN_WAIT=cuStreamSynchronize:{FOR_EVER}")]);
    let group = only_group(&process(program.pid, &["--samples", "1"])).clone();
    let (pid, tid) = (program.pid, &group["tids"][0]);
    let line = format!("{tid} is a thread of process {pid}: use -d {pid}");
    assert_refused(&said(&["-d", &tid.to_string()]), &line);
}

/// The capabilities to load BPF programs, but not to read the memory of others.
#[bpf_test(needs(program("setpriv")))]
fn without_the_right_to_read_memory_one_line_says_so() {
    let folder = fixtures::folder();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.path().join("gpuprobe");
    fs::copy(fixtures::gpuprobe(), &copy).unwrap();
    let program = Started::new(&["sh", "-c", "echo $$; exec sleep 600"], &[]);
    let pid = program.pid.to_string();
    let root = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let rights = ["--inh-caps=-all,+bpf,+perfmon", "--ambient-caps=-all,+bpf,+perfmon"];
    let restricted = |options: &[&str], before: &str| {
        let script =
            format!("{before} exec setpriv {} -- {} stacks -d {pid}", options.join(" "), copy.display());
        finish(Command::new("unshare").args(["-m", "sh", "-c", &script]))
    };
    if restricted(&root, "").stderr.contains("setpriv") {
        needs::missing("bpf", "setpriv cannot take rights away");
        return;
    }
    let denied = format!("the memory of process {pid} may not be read: {DENIED}");
    assert_refused(&restricted(&root, ""), &denied);
    assert_refused(&restricted(&[&user[..], &rights].concat(), ""), &denied);

    // a /proc of its own, because the options of the one that others use must not change
    let hidden = "mount -t proc -o hidepid=2 proc /proc &&";
    let not_shown = format!("/proc does not show process {pid} to this user: {DENIED}");
    assert_refused(&restricted(&[&user[..], &rights].concat(), hidden), &not_shown);
    assert_eq!(restricted(&["--no-new-privs"], hidden).status, 0, "root sees all");

    let needed = "tracing needs root, or the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE: try sudo";
    assert_refused(&restricted(&user, ""), needed);
}
