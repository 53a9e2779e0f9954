//! What other users of the host can do to a gpuprobe that runs as root: files that they plant, settings and libraries
//! that they can write, and code that they get into the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::linux::children_of;
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, pid_of};
use gpuprobe_e2e::site_ledger::{SITE, SITE_LIVE_BYTES};
use gpuprobe_e2e::{Finished, Recording, Run, Talk, bpf_test, fixtures};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

const OTHER_USER: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A directory that all users can write, without the sticky bit, so that the Linux kernel itself prevents nothing.
fn shared() -> tempfile::TempDir {
    let folder = fixtures::folder();
    set_mode(folder.path(), 0o777);
    folder
}

/// A symbolic link that another user has made.
fn plant(target: &Path, link: &Path) {
    symlink(target, link).unwrap();
    lchown(link, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
}

fn assert_refused(finished: &Finished, words: &[&str]) {
    assert_eq!(finished.status, 1, "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    for word in words {
        assert!(finished.stderr.contains(word), "no {word}: {}", finished.stderr);
    }
}

#[bpf_test]
fn a_planted_segment_is_neither_followed_nor_overwritten_and_no_call_is_lost() {
    let (folder, own) = (shared(), fixtures::folder());
    let (trace, victim) = (folder.path().join("t.jsonl"), own.path().join("victim"));
    fs::write(&victim, "root's").unwrap();
    plant(&victim, &folder.path().join("t.2.jsonl"));
    let ledger = Run::new(fixtures::standins(Cuda::Cuda12).workload("ledger"));
    let ledger = ledger.options(&["-e", "*", "--segment-size", "64K"]).args(&["--calls", "2000"]);
    let finished = finish(&mut ledger.command(&trace));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(fs::read_to_string(&victim).unwrap() == "root's");
    assert!(
        finished.stderr.contains("t.2.jsonl belongs to another user: the trace continues in "),
        "{}",
        finished.stderr
    );
    let (printed, mut next) = (finished.json().remove(0), Some(trace));
    let (mut calls, mut files) = (Counts::new(), 0);
    while let Some(path) = next.take() {
        assert_eq!(mode_of(&path), 0o600, "{}", path.display());
        let segment = Recording::read(&path);
        for (name, count) in segment.counts(pid_of(&printed), Api::Runtime) {
            *calls.entry(name).or_default() += count;
        }
        files += 1;
        next = segment.end.unwrap().next.map(|name| folder.path().join(name));
    }
    assert!(files > 2, "{files}");
    assert_eq!(calls, counts_of(&printed["calls"]));
}

#[bpf_test]
fn planted_output_files_are_refused_with_a_reason() {
    let (folder, own) = (shared(), fixtures::folder());
    let (victim, trace) = (own.path().join("victim"), own.path().join("trace.jsonl"));
    fs::write(&victim, "root's").unwrap();
    plant(&victim, &folder.path().join("link"));
    fs::write(folder.path().join("file"), "untouched").unwrap();
    chown(folder.path().join("file"), Some(OTHER_USER), None).unwrap();
    assert_eq!(finish(&mut gpuprobe(&["run", "-o", &shown(&trace), "--", "true"])).status, 0);
    for (name, why) in [("link", "symbolic link of another user"), ("file", "belongs to another user")] {
        let (path, trace) = (shown(folder.path().join(name)), shown(&trace));
        for args in [
            &["run", "-q", "-o", &path, "--", "true"][..],
            &["memory", "-o", &path, "--", "true"],
            &["report", &trace, "--html", &path],
            &["convert", &trace, "--to", "chrome", "-o", &path],
        ] {
            assert_refused(&finish(&mut gpuprobe(args)), &[&path, why]);
        }
    }
    assert!(fs::read_to_string(&victim).unwrap() == "root's");
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "untouched");
}

#[bpf_test]
fn a_trace_is_readable_only_by_its_owner_unless_changed() {
    let folder = fixtures::folder();
    let at = |name: &str| folder.path().join(name);
    let run = |options: &[&str], environment: &[(&str, &str)]| {
        let mut command = gpuprobe(&[&["run", "-q"], options, &["--", "true"]].concat());
        let finished = finish(command.current_dir(folder.path()).envs(environment.iter().copied()));
        assert_eq!(finished.status, 0, "{}", finished.stderr);
    };
    run(&["-o", "a.jsonl"], &[]);
    assert_eq!(mode_of(&at("a.jsonl")), 0o600);
    run(&["-o", "b.jsonl", "--mode", "0664"], &[]);
    assert_eq!(mode_of(&at("b.jsonl")), 0o664);
    // an earlier trace of the same user is overwritten, and keeps the mode that its owner has set
    set_mode(&at("a.jsonl"), 0o640);
    run(&["-o", "a.jsonl"], &[]);
    assert_eq!(mode_of(&at("a.jsonl")), 0o640);
    Recording::read(&at("a.jsonl")).assert_ended();
    // files made from it have the same mode
    for args in [
        &["report", "a.jsonl", "--html", "a.html"][..],
        &["convert", "a.jsonl", "--to", "chrome", "-o", "a.json"],
    ] {
        assert_eq!(finish(gpuprobe(args).current_dir(folder.path())).status, 0);
    }
    assert_eq!((mode_of(&at("a.html")), mode_of(&at("a.json"))), (0o640, 0o640));
    // the user who ran sudo can read it without sudo
    run(&[], &[("SUDO_UID", "65534"), ("SUDO_GID", "65534")]);
    let latest = fs::canonicalize(at("traces/trace_latest.jsonl")).unwrap();
    let about = fs::metadata(&latest).unwrap();
    assert_eq!((about.uid(), about.gid(), mode_of(&latest)), (OTHER_USER, OTHER_USER, 0o600));
    // and overwrite it
    let again = shown(&latest);
    run(&["-o", &again], &[("SUDO_UID", "65534"), ("SUDO_GID", "65534")]);
}

#[bpf_test]
fn settings_and_libraries_that_others_can_write_are_refused() {
    let folder = fixtures::folder();
    let file = folder.path().join("gpuprobe.toml");
    fs::write(&file, "").unwrap();
    let web = folder.path().join("web.yml");
    fs::write(&web, "").unwrap();
    let hooks = folder.path().join("hooks.toml");
    fs::write(&hooks, "").unwrap();
    let nvml = folder.path().join("libnvidia-ml.so.1");
    fs::write(&nvml, "").unwrap();
    for (option, path) in
        [("--config", &file), ("--web-config", &web), ("--hooks", &hooks), ("--nvml", &nvml)]
    {
        let started =
            || finish(&mut gpuprobe(&["daemon", "--metrics-addr", "127.0.0.1:0", option, &shown(path)]));
        set_mode(path, 0o646);
        assert_refused(&started(), &[&shown(path), "other users can write", "mode 0646"]);
        set_mode(path, 0o644);
        set_mode(folder.path(), 0o777);
        assert_refused(&started(), &[&shown(path), &shown(folder.path()), "mode 0777"]);
        set_mode(folder.path(), 0o755);
        chown(path, Some(OTHER_USER), None).unwrap();
        assert_refused(&started(), &[&shown(path), "belongs to another user (uid 65534)"]);
        chown(path, Some(0), None).unwrap();
    }
}

#[bpf_test]
fn without_proc_it_says_so_and_not_that_root_is_needed() {
    let binary = shown(fixtures::gpuprobe());
    let folder = fixtures::folder();
    let trace = shown(folder.path().join("t.jsonl"));
    for args in [
        format!("run -q -o {trace} -- true"),
        "record --all --duration 1 -o /dev/null".to_owned(),
        "memory --duration 1".to_owned(),
        "daemon --metrics-addr 127.0.0.1:0".to_owned(),
    ] {
        let script = format!("umount -l /proc && exec {binary} {args}");
        let finished = finish(Command::new("unshare").args(["-m", "sh", "-c", &script]));
        assert_refused(&finished, &["/proc is not mounted", "mount -t proc proc /proc"]);
        assert!(!finished.stderr.contains("root"), "{args}: {}", finished.stderr);
    }
    let script = format!("umount -l /proc && exec {binary} doctor");
    let doctor = finish(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    assert!(
        doctor.stdout.contains("BAD     /proc: is not mounted: mount -t proc proc /proc"),
        "{}",
        doctor.stdout
    );
}

/// A program that allocates in a function of this name and waits. All have the same code, addresses and build id.
fn allocating(folder: &Path, function: &str) -> PathBuf {
    let (source, program) = (folder.join("source.c"), folder.join(function));
    let text = format!(
        "#include <stdio.h>\n#include <unistd.h>\nint cuMemAlloc_v2(unsigned long *, unsigned long);\n\
         int cuInit(unsigned);\n\
         __attribute__((noinline)) int {function}(void) {{ unsigned long p; return cuMemAlloc_v2(&p, 4096) + 1; }}\n\
         int main(void) {{ cuInit(0); getchar(); int done = {function}(); getchar(); return done - 1; }}\n"
    );
    fs::write(&source, text).unwrap();
    let library = folder.join("libcuda.so.1");
    let built = Command::new("cc")
        .args([
            "-O1",
            "-Wl,--build-id=0x0123456789abcdef0123456789abcdef01234567",
            "-Wl,-rpath,$ORIGIN",
            "-o",
        ])
        .args([&program, &source, &library])
        .status();
    assert!(built.unwrap().success());
    program
}

#[bpf_test]
fn a_program_with_the_build_id_of_another_does_not_name_its_functions() {
    let folder = fixtures::folder();
    set_mode(folder.path(), 0o755);
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1"]);
    let (forged, genuine) =
        (allocating(folder.path(), "forged_name"), allocating(folder.path(), "honest_name"));
    chown(&forged, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&["--memleak", "-p", &library]);
    let mut by_other_user = Command::new("setpriv");
    by_other_user.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(&forged);
    for (command, function) in
        [(&mut by_other_user, "forged_name"), (&mut Command::new(&genuine), "honest_name")]
    {
        let mut program = Talk::start(command);
        program.go_on();
        let pid = program.pid();
        let metrics = daemon.until(PATIENCE, function, |m| {
            let sites = m.by(SITE_LIVE_BYTES, pid, SITE);
            sites.keys().any(|site| site.contains("_name"))
        });
        let sites = metrics.by(SITE_LIVE_BYTES, pid, SITE);
        let with_live_bytes: Vec<_> = sites.iter().filter(|(_, bytes)| **bytes > 0).collect();
        let [(site, 4096)] = with_live_bytes.as_slice() else { panic!("{function}: {sites:?}") };
        assert!(site.starts_with(&format!("{function}+")), "{function}: {site}");
        program.go_on();
        assert_eq!(program.end(), 0, "{}", program.stderr());
    }
}

/// The seccomp mode of every thread of a process.
fn filters(pid: u32) -> Vec<String> {
    let of = |folder: PathBuf| {
        let status = fs::read_to_string(folder.join("status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Seccomp:\t")).unwrap().to_owned()
    };
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| of(task.unwrap().path())).collect()
}

fn hostile_nvml(folder: &Path) -> PathBuf {
    let (source, library) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("c/hostile_nvml.c"), folder.join("libhostile.so"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success());
    library
}

#[bpf_test]
fn code_in_the_daemon_is_limited_to_what_a_daemon_needs() {
    let folder = fixtures::folder();
    let library = hostile_nvml(folder.path());
    let (results, library) = (folder.path().join("results"), shown(library));
    let always = ["daemon", "--metrics-addr", "127.0.0.1:0", "--display-interval=0", "--nvml", &library];
    let daemon = Daemon::of(gpuprobe(&always).env("HOSTILE_RESULTS", &results));
    let said = until(PATIENCE, "the library has tried everything", || {
        fs::read_to_string(&results).ok().filter(|text| text.contains("end 0\n"))
    });
    let said: BTreeMap<_, i32> = said
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, n)| (name, n.parse().unwrap()))
        .collect();
    let refused = [
        "execve",
        "unshare",
        "ptrace",
        "kill",
        "personality",
        "add_key",
        "setuid",
        "socket",
        "bpf",
        "mmap",
        "mprotect",
    ];
    for name in refused {
        assert_eq!(said[name], nix::errno::Errno::EPERM as i32, "{name}: {said:?}");
    }
    assert_eq!((said["open"], said["unix"]), (0, 0), "{said:?}");
    drop(daemon);
}

#[bpf_test(tiers)]
fn every_thread_of_a_daemon_has_a_filter_and_the_daemon_still_works(tier: &str) {
    let folder = fixtures::folder();
    let config = folder.path().join("gpuprobe.toml");
    fs::write(&config, "metrics_addr = \"127.0.0.1:0\"\ndisplay_interval = 1\n").unwrap();
    let mut daemon = Daemon::of(gpuprobe(&["daemon", "--config", &shown(&config)]).args([
        "--refresh=0.2",
        "--memleak",
        "--attach",
        tier,
    ]));
    let pid = daemon.talk.pid();
    // one child is the attach helper, the other only starts the processes that read files
    let (starters, helpers): (Vec<_>, Vec<_>) = children_of(pid).into_iter().partition(|child| {
        fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.contains("--starter"))
    });
    assert_eq!((starters.len(), helpers.len()), (1, 1));
    let readers = until(PATIENCE, "files are read", || {
        Some(children_of(starters[0])).filter(|readers| !readers.is_empty())
    });
    let filtered = [vec![pid], helpers, readers].concat();
    let all: Vec<_> = filtered.into_iter().flat_map(filters).collect();
    assert!(all.len() > 3 && all.iter().all(|mode| mode == "2"), "{tier}: {all:?}");
    // a library that did not exist when the daemon started: its calls, call sites and names
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let library = shown(folder.path().join("libcuda.so.1"));
    let mut ledger =
        Talk::start(Command::new(folder.path().join("ledger")).args(["--calls", "500", "--pauses", "1"]));
    let program = pid_of(&ledger.json());
    daemon.until(PATIENCE, &format!("{library} is probed by {tier}"), |m| m.text.contains(&library));
    assert_eq!(ledger.finish().0, 0);
    daemon
        .until(PATIENCE, "its memory", |m| m.of("gpuprobe_memory_allocated_bytes_total", program) > Some(0));
    // new settings, with another address
    fs::write(&config, "metrics_addr = \"localhost:0\"\ndisplay_interval = 0\n").unwrap();
    daemon.talk.signal(Signal::SIGHUP);
    until(PATIENCE, "settings are read again", || {
        daemon.talk.stderr().contains("settings read again").then_some(())
    });
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    let said = daemon.talk.stderr();
    assert!(!said.contains("not permitted"), "{tier}: {said}");
}
