//! Containers, made with mount and pid namespaces, with libraries on overlays; and processes that are too short or
//! too odd to probe.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::linux::descendant;
use gpuprobe_e2e::metrics::{Daemon, Metrics, RESCAN_OPTIONS, RESCANNED};
use gpuprobe_e2e::process::{PATIENCE, finish, shown, until};
use gpuprobe_e2e::recording::{counts_of, pid_of};
use gpuprobe_e2e::{Run, Talk, bpf_test, fixtures};
use gpuprobe_event::{Api, Class, catalogue};
use gpuprobe_standin::Cuda;
use serde_json::Value;

const CALLS: &str = "gpuprobe_calls_total";

/// The CUDA driver calls that a daemon counts.
fn counted(printed: &Value, field: &str) -> BTreeMap<String, u64> {
    use Class::{Alloc, Context, Free, Launch, Memcpy, Memset, Module, Sync};
    let mut calls = counts_of(&printed[field]);
    calls.retain(|name, _| {
        let f = catalogue().lookup(Api::Driver, None, name).unwrap_or_else(|| panic!("{name}"));
        !f.hot && matches!(f.class, Alloc | Free | Memcpy | Memset | Launch | Sync | Context | Module)
    });
    calls
}

/// The overlay layer that containers of one image share.
fn layer(folder: &Path) -> PathBuf {
    let lower = folder.join("lower");
    fs::create_dir(&lower).unwrap_or_else(|e| panic!("{e}"));
    fixtures::copies(
        &fixtures::standins(Cuda::Cuda12),
        &lower,
        &["libcuda.so.1", "libcudart.so.12", "ledger"],
    );
    lower
}

/// A container: an overlay over `lower` at `merged`, seen only by the ledger that waits in it. The ledger loads
/// libcuda with its first call, unless it is mapped from the start.
fn container(folder: &Path, name: &str, calls: u32, mapped: bool) -> Talk {
    let lower = shown(folder.join("lower"));
    let own = folder.join(name);
    for part in ["own", "merged"] {
        fs::create_dir_all(own.join(part)).unwrap_or_else(|e| panic!("{part}: {e}"));
    }
    let (own, merged) = (shown(own.join("own")), shown(own.join("merged")));
    let preload = if mapped { format!("LD_PRELOAD={merged}/libcuda.so.1") } else { String::new() };
    let script = format!(
        "mount -t tmpfs tmpfs {own} && mkdir {own}/upper {own}/work && \
         mount -t overlay overlay -o lowerdir={lower},upperdir={own}/upper,workdir={own}/work {merged} && \
         {preload} {merged}/ledger --wait --pauses 1 --threads 2 --calls {calls}; status=$?; \
         for n in $(seq 400); do umount {merged} 2>/dev/null && break; sleep 0.1; done; \
         umount {own} && echo unmounted; exit $status"
    );
    Talk::start(Command::new("unshare").args(["-mpf", "--mount-proc", "sh", "-c", &script]))
}

#[bpf_test(needs(overlay), alone)]
fn two_containers_over_the_same_layer_are_counted_separately_and_attached_once() {
    let folder = fixtures::folder();
    let lower = layer(folder.path());
    // the file of the lower layer: the Linux kernel probes it through any overlay
    let mut daemon = Daemon::start(&lower.join("libcuda.so.1"));
    let mut both: Vec<Talk> = [("one", 3000), ("two", 5000)]
        .map(|(name, calls)| container(folder.path(), name, calls, false))
        .into();
    both.iter_mut().for_each(|talk| assert_eq!(talk.json()["ready"], true));
    let pids: Vec<u32> = both.iter().map(|talk| descendant(talk.pid(), "ledger")).collect();
    both.iter_mut().for_each(Talk::go_on);
    let halves: Vec<Value> = both.iter_mut().map(Talk::json).collect();
    for (pid, half) in pids.iter().zip(&halves) {
        let expected = counted(half, "driver_calls");
        let all = |m: &Metrics| {
            m.by(CALLS, *pid, "function").values().sum::<u64>() >= expected.values().sum::<u64>()
        };
        let metrics = daemon.until(PATIENCE, "the calls of a container", all);
        assert_eq!(metrics.by(CALLS, *pid, "function"), expected, "calls of {pid}");
        // by a name that keeps no mount of a container busy
        assert_eq!(probed(&metrics, folder.path()), [shown(lower.join("libcuda.so.1"))]);
    }
    for (pid, half) in pids.iter().zip(&halves) {
        let head = format!("process {pid} [pid {} inside", pid_of(half));
        until(PATIENCE, &head, || daemon.talk.printed().iter().any(|l| l.starts_with(&head)).then_some(()));
    }
    both.iter_mut().for_each(Talk::go_on);
    let start = Instant::now();
    for talk in &mut both {
        talk.json();
        assert_eq!(talk.line(), "unmounted", "{}", talk.stderr());
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// The libcuda files below a folder that have probes, by the paths in the processes.
fn probed(metrics: &Metrics, folder: &Path) -> Vec<String> {
    let ours = |path: &String| Path::new(path).starts_with(folder) && path.ends_with("/libcuda.so.1");
    let attached = metrics.samples("gpuprobe_probes").filter(|(l, n)| *n > 0 && l["state"] == "attached");
    attached.map(|(mut labels, _)| labels.remove("library").unwrap_or_default()).filter(ours).collect()
}

#[bpf_test(needs(overlay), alone)]
fn an_overlay_that_no_option_names_is_found_by_its_mapping_and_attached_once() {
    let folder = fixtures::folder();
    layer(folder.path());
    let daemon = Daemon::rescanning(&[]);
    assert_eq!(probed(&daemon.scrape(), folder.path()), Vec::<String>::new(), "no process has mapped it yet");
    let mut both: Vec<Talk> = Vec::new();
    for (name, calls) in [("one", 3000), ("two", 5000)] {
        both.push(container(folder.path(), name, calls, true));
        assert_eq!(both.last_mut().map(|talk| talk.json()["ready"] == true), Some(true));
        daemon.until(PATIENCE, "it is probed", |m| !probed(m, folder.path()).is_empty());
    }
    // also after a rescan, which finds it under both names
    std::thread::sleep(RESCANNED);
    let first = [shown(folder.path().join("one/merged/libcuda.so.1"))];
    assert_eq!(probed(&daemon.scrape(), folder.path()), first);
    let pids: Vec<u32> = both.iter().map(|talk| descendant(talk.pid(), "ledger")).collect();
    both.iter_mut().for_each(Talk::go_on);
    for (talk, pid) in both.iter_mut().zip(&pids) {
        let expected = counted(&talk.json(), "driver_calls");
        daemon.until(PATIENCE, "its calls, each once", |m| m.by(CALLS, *pid, "function") == expected);
    }
    assert_eq!(probed(&daemon.scrape(), folder.path()), first);
}

#[bpf_test(needs(overlay), alone)]
fn the_mounts_of_an_exited_container_are_released() {
    let folder = fixtures::folder();
    let at = |name: &str| folder.path().join(name);
    for name in ["content", "lower", "upper", "work", "merged"] {
        fs::create_dir(at(name)).unwrap_or_else(|e| panic!("{e}"));
    }
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), &at("content"), &["libcuda.so.1", "hoarder"]);
    let image = shown(at("image"));
    let made = finish(Command::new("mkfs.ext4").args(["-q", "-d", &shown(at("content")), &image, "32M"]));
    assert_eq!(made.status, 0, "{}", made.stderr);
    let daemon = Daemon::rescanning(&[]);
    let script = format!(
        "cd {} && mount -o loop image lower && \
         mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged && \
         exec merged/hoarder 3",
        shown(folder.path())
    );
    let mut talk = Talk::start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    talk.json();
    let name = [shown(at("merged/libcuda.so.1"))];
    daemon.until(PATIENCE, "it is probed", |m| probed(m, folder.path()) == name);
    // the Linux kernel releases the device with the last use of the file system below the overlay
    let devices = || finish(Command::new("losetup").args(["-j", &image])).stdout.lines().count();
    assert_eq!(devices(), 1, "while the container is there");
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    let nothing = |m: &Metrics| probed(m, folder.path()).is_empty();
    daemon.until(PATIENCE, "no probe is left", nothing);
    until(PATIENCE, "the image below is free", || (devices() == 0).then_some(()));

    // the same file again: it is found as quickly as the first time
    let mut talk = Talk::start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    talk.json();
    daemon.until(PATIENCE, "it is probed again", |m| probed(m, folder.path()) == name);
}

#[bpf_test(alone)]
fn a_mount_of_our_own_namespace_is_used_only_while_a_process_maps_the_library() {
    let folder = fixtures::folder();
    let mount = shown(folder.path());
    let mut command = Command::new("unshare");
    command.arg("-m").arg(fixtures::gpuprobe());
    let daemon = Daemon::of(
        command.args(["--metrics-addr", "127.0.0.1:0", "--display-interval", "0"]).args(RESCAN_OPTIONS),
    );
    let inside = |words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &daemon.talk.pid().to_string()]).args(words);
        command
    };
    let built = fixtures::standins(Cuda::Cuda12);
    let script = format!(
        "mount -t tmpfs tmpfs {mount} && cp {dir}/libcuda.so.1 {dir}/hoarder {mount}",
        dir = shown(&built.dir)
    );
    assert_eq!(finish(&mut inside(&["sh", "-c", &script])).status, 0);
    // as an image builder does: everything is installed and nothing runs
    std::thread::sleep(RESCANNED);
    assert_eq!(probed(&daemon.scrape(), folder.path()), Vec::<String>::new());
    assert_eq!(finish(&mut inside(&["umount", &mount])).status, 0, "it is not in use");

    assert_eq!(finish(&mut inside(&["sh", "-c", &script])).status, 0);
    let mut talk = Talk::start(&mut inside(&[&shown(folder.path().join("hoarder")), "3"]));
    talk.json();
    daemon.until(PATIENCE, "it is probed", |m| probed(m, folder.path()).len() == 1);
    talk.go_on();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    daemon.until(PATIENCE, "no probe is left", |m| probed(m, folder.path()).is_empty());
    until(PATIENCE, "it can be unmounted", || {
        (finish(&mut inside(&["umount", &mount])).status == 0).then_some(())
    });
}

#[bpf_test(alone)]
fn a_short_process_is_seen_if_its_library_is_known_and_counted_as_missed_if_not() {
    let folder = fixtures::folder();
    let new = |name: &str| {
        let own = folder.path().join(name);
        fs::create_dir(&own).unwrap_or_else(|e| panic!("{e}"));
        fixtures::copies(&fixtures::standins(Cuda::Cuda12), &own, &["libcuda.so.1", "driver_only"]);
        own
    };
    let known = new("known");
    let daemon = Daemon::with(&["-v", "-p", &shown(known.join("libcuda.so.1"))]);
    let missed = |m: &Metrics| daemon.missed(m, folder.path());
    let before = missed(&daemon.scrape());
    let finished = finish(&mut Command::new(known.join("driver_only")));
    let printed = &finished.json()[0];
    let expected = counted(printed, "calls");
    daemon.until(PATIENCE, "its calls", |m| m.by(CALLS, pid_of(printed), "function") == expected);
    daemon.until(PATIENCE, "nothing was missed", |m| missed(m) == before);

    for n in 1..=3_i64 {
        let unknown = new(&format!("unknown{n}"));
        assert_eq!(finish(&mut Command::new(unknown.join("driver_only"))).status, 0);
        daemon.until(PATIENCE, "it is counted as missed, once", |m| missed(m) == before + n);
    }
}

#[bpf_test(alone)]
fn files_that_only_have_the_name_of_libcuda_block_no_process() {
    let daemon = Daemon::with(&[]);
    for make in ["mkfifo $f", "mkdir $f", "ln -s libcuda.so.1 $f", "truncate -s 10G $f"] {
        let folder = fixtures::folder();
        let lib = shown(folder.path());
        let script =
            format!("mount -t tmpfs tmpfs {lib} && f={lib}/libcuda.so.1 && {make} && sleep 0.2; echo $?");
        let run = Run::new("unshare").args(&["-m", "sh", "-c", &script]).env("LD_LIBRARY_PATH", &lib);
        let outcome = run.outcome();
        assert_eq!((outcome.finished.status, &*outcome.finished.stdout), (0, "0\n"), "{make}: {outcome:?}");
        assert!(outcome.finished.took < Duration::from_secs(30), "{make}: {:?}", outcome.finished.took);
        outcome.trace.assert_whole();
    }
    let snapshot = |m: &Metrics| m.text.lines().count();
    assert!(snapshot(&daemon.scrape()) > 0, "the daemon answers");
}
