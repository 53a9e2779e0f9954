//! A daemon on a busy host: very many allocations, very many short processes, small tables; and its command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, resident_kilobytes, run_many, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_event::{Api, Class, catalogue};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

/// The most processes of one name with series of their own, by default: running ones and exited ones.
const MOST_SERIES: usize = 50 + 128;
const CALLS: &str = "gpuprobe_calls_total";
const LIVE: &str = "gpuprobe_memory_live_allocations";

/// Stand-ins that no other test uses, and a daemon with these arguments that watches them.
fn watched(workload: &str, args: &[&str]) -> (tempfile::TempDir, Daemon) {
    watched_every(1, workload, args)
}

/// The same, with this display interval.
fn watched_every(seconds: u32, workload: &str, args: &[&str]) -> (tempfile::TempDir, Daemon) {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", workload]);
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::displaying(seconds, &[&["-p", &library], args].concat());
    (folder, daemon)
}

/// CPU time in clock ticks: hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}

#[bpf_test(alone)]
fn thousands_of_short_processes_lose_nothing() {
    const TIMES: usize = 2000;
    let (folder, mut daemon) = watched("driver_only", &[]);
    // a unique name: a daemon watches the whole host, and others may run the same program
    let name = format!("short{}", std::process::id());
    let program = folder.path().join(&name);
    fs::rename(folder.path().join("driver_only"), &program).unwrap();
    let printed = finish(&mut Command::new(&program)).json().remove(0);
    // every process that is seen has its name
    let nameless = thread::scope(|scope| {
        let runs = scope.spawn(|| run_many(&program, TIMES - 1));
        let mut nameless = 0;
        while !runs.is_finished() {
            nameless += daemon.scrape().text.matches("process=\"unknown\"").count();
        }
        nameless
    });
    assert_eq!(nameless, 0, "series of processes that nothing is known of");
    let mut expected = counts_of(&printed["calls"]);
    expected.retain(|name, _| {
        let f = catalogue().lookup(Api::Driver, None, name).unwrap();
        !f.hot && counted(f.class)
    });
    expected.values_mut().for_each(|n| *n *= TIMES as u64);
    let metrics = daemon.until_equal(PATIENCE, |metrics, found| {
        found.compare("calls", &metrics.calls_of_name(&name), &expected);
        found.compare(LIVE, &metrics.of_name(LIVE, &name, "kind"), &Counts::new());
    });
    assert!(metrics.processes_of_name(&name) <= MOST_SERIES, "{}", metrics.processes_of_name(&name));
    for cause in ["counters_full", "processes_full", "live_full", "ring_full"] {
        assert_eq!(metrics.lost(cause), 0, "{cause}");
    }
    let allocations = TIMES as u64 * counts_of(&printed["calls"])["cuMemAlloc_v2"];
    until(PATIENCE, "the total of all", || {
        let lines = daemon.talk.printed();
        let total = |l: &String| l.strip_prefix("num_successful_mallocs:")?.trim().parse::<u64>().ok();
        lines.iter().rev().find_map(total).filter(|total| *total >= allocations)
    });
}

#[bpf_test(alone)]
fn exited_processes_leave_only_their_sums() {
    const TIMES: usize = 500;
    let (folder, daemon) = watched("driver_only", &["--keep-exited", "2"]);
    let name = format!("brief{}", std::process::id());
    let program = folder.path().join(&name);
    fs::rename(folder.path().join("driver_only"), &program).unwrap();
    let printed = finish(&mut Command::new(&program)).json().remove(0);
    let launches = counts_of(&printed["calls"])["cuLaunchKernel"];
    let (mut resident, pid) = (Vec::new(), daemon.talk.pid());
    for round in 1..=3 {
        run_many(&program, if round == 1 { TIMES - 1 } else { TIMES });
        let all = (round * TIMES) as u64;
        // counters are exact, and removed after their time: only the sum by name stays
        daemon.until_equal(PATIENCE, |metrics, found| {
            found.compare(
                "processes",
                &metrics.of_name("gpuprobe_exited_processes_total", &name, "process").get(&name),
                &Some(&all),
            );
            let calls = metrics.calls_of_name(&name);
            found.compare("launches", &calls.get("cuLaunchKernel").copied(), &Some(launches * all));
            found.compare("series of processes", &metrics.processes_of_name(&name), &0);
            found.compare(LIVE, &metrics.of_name(LIVE, &name, "pid"), &Counts::new());
        });
        resident.push(resident_kilobytes(pid));
    }
    println!("resident: {resident:?} kB");
    assert!(resident.iter().all(|kilobytes| *kilobytes < 60 << 10), "{resident:?}");
    // the memory of the first round is enough for the next ones
    assert!(resident[2] < resident[0] + (4 << 10), "{resident:?}");
}

/// A cgroup with the name of a container's cgroup. Dropping this removes it.
struct Cgroup(PathBuf);

impl Cgroup {
    /// `None` if there is no writable cgroup v2 hierarchy.
    fn of_container(id: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let found = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = found.into_iter().find(|words| words.get(2) == Some(&"cgroup2"))?;
        let path = Path::new(root[1]).join(format!("docker-{id}.scope"));
        fs::create_dir(&path).ok().map(|()| Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).ok();
    }
}

#[bpf_test(alone)]
fn very_short_processes_are_in_their_container() {
    const TIMES: usize = 100;
    let id = format!("{:064x}", std::process::id());
    let Some(cgroup) = Cgroup::of_container(&id) else {
        println!("not tested: no cgroup can be made here");
        return;
    };
    let (folder, daemon) = watched("driver_only", &[]);
    let name = format!("inside{}", std::process::id());
    let program = folder.path().join(&name);
    fs::rename(folder.path().join("driver_only"), &program).unwrap();
    let (procs, program) = (shown(cgroup.0.join("cgroup.procs")), shown(program));
    let script = format!("echo $$ > {procs}; for n in $(seq {TIMES}); do {program} > /dev/null; done");
    let ran = finish(Command::new("sh").args(["-c", &script]));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let metrics = daemon.until(PATIENCE, "all of them", |m| m.of_name(CALLS, &name, "pid").len() == TIMES);
    let containers: Vec<_> = metrics.of_name(CALLS, &name, "container_id").into_keys().collect();
    assert_eq!(containers, [id]);
}

/// Whether a daemon counts a class by default.
fn counted(class: Class) -> bool {
    use Class::{Alloc, Context, Free, Launch, Memcpy, Memset, Module, Sync};
    matches!(class, Alloc | Free | Memcpy | Memset | Launch | Sync | Context | Module)
}

#[bpf_test(alone)]
fn very_many_allocations_are_cheap_and_freed_quickly_at_exit() {
    const MANY: &str = "400000";
    let (folder, mut daemon) = watched_every(5, "hoarder", &["--addresses"]);
    let mut hoarder = Talk::start(Command::new(folder.path().join("hoarder")).arg(MANY));
    let pid = pid_of(&hoarder.json());
    let is_live = |m: &Metrics| m.by(LIVE, pid, "kind").get("device").is_some_and(|n| n.to_string() == MANY);
    daemon.until(PATIENCE, "its live memory", is_live);
    let (begun, before) = (Instant::now(), ticks(daemon.talk.pid()));
    thread::sleep(Duration::from_secs(5));
    let share = (ticks(daemon.talk.pid()) - before) as f64 / begun.elapsed().as_secs_f64();
    println!("{MANY} allocations: {share:.1} % of a core");
    // a twentieth on an idle machine
    assert!(share < 30.0, "{share:.1} % of a core");
    let rest = "\tand 399000 more: 204288000 Bytes".to_owned();
    until(PATIENCE, "the display of all of them", || daemon.talk.printed().contains(&rest).then_some(()));
    hoarder.go_on();
    assert_eq!(hoarder.end(), 0);
    daemon.until(PATIENCE, "its gauges are removed", |m| m.by(LIVE, pid, "kind").is_empty());
    let start = Instant::now();
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?} to end", start.elapsed());
}

#[bpf_test(alone)]
fn the_tables_have_the_given_size() {
    // only these processes: those of other programs would fill so small a table
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", "hoarder"]);
    let at = |name: &str| shown(folder.path().join(name));
    let script = format!("read line; {0} 250; read line; {0} 90", at("hoarder"));
    let mut shell = Talk::start(Command::new("sh").args(["-c", &script]));
    let (pid, library) = (shell.pid().to_string(), at("libcuda.so.1"));
    let sizes = ["--max-allocations", "100", "--max-processes", "64"];
    let daemon = Daemon::with(&[&["-d", &pid, "-p", &library], &sizes[..]].concat());
    shell.go_on();
    let printed = shell.json();
    let pid = pid_of(&printed);
    let metrics = daemon.until(PATIENCE, "the table is full, and no more was lost", |m| {
        m.by(LIVE, pid, "kind").get("device") == Some(&100) && m.lost("live_full") == 150
    });
    assert_eq!(
        metrics.of("gpuprobe_memory_allocated_bytes_total", pid),
        Some(number(&printed["live_bytes"]))
    );
    let kinds: Vec<_> = metrics.by(LIVE, pid, "kind").into_keys().collect();
    assert_eq!(kinds, ["array", "device", "managed", "pinned", "pool", "vmm"]);
    for name in ["gpuprobe_memory_replaced_total", "gpuprobe_memory_unknown_frees_total"] {
        assert_eq!(metrics.of(name, pid), Some(0), "{name}");
    }
    shell.go_on();
    daemon.until(PATIENCE, "its gauges are removed", |m| m.by(LIVE, pid, "kind").is_empty());
    // its allocations are removed from the table within a second, and then there is room for the next
    thread::sleep(Duration::from_millis(1500));
    shell.go_on();
    let pid = pid_of(&shell.json());
    let metrics = daemon.until(PATIENCE, "the next", |m| m.by(LIVE, pid, "kind").get("device") == Some(&90));
    assert_eq!(metrics.lost("live_full"), 150);
    shell.go_on();
    assert_eq!(shell.end(), 0);
}

#[bpf_test(alone)]
fn several_features_attach_what_each_of_them_needs() {
    let (folder, daemon) = watched("driver_only", &["--memleak", "--cudatrace"]);
    let printed = finish(&mut Command::new(folder.path().join("driver_only"))).json().remove(0);
    let pid = pid_of(&printed);
    daemon.until(PATIENCE, "its calls", |m| {
        m.by(CALLS, pid, "function").into_keys().eq(["cuLaunchKernel", "cuMemAlloc_v2", "cuMemFree_v2"])
    });
}

#[bpf_test]
fn default_flags_start_a_daemon_and_no_flags_print_help() {
    let bare = finish(&mut gpuprobe(&[]));
    assert_eq!(bare.status, 2);
    assert!(bare.stdout.contains("Usage:"), "{}", bare.stdout);
    let mut daemon = Talk::start(&mut gpuprobe(&["--metrics-addr", "localhost:0", "-v"]));
    until(PATIENCE, "the daemon listens", || {
        assert!(!daemon.has_exited(), "{}", daemon.stderr());
        daemon.stderr().contains("metrics on http://").then_some(())
    });
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end(), 0);
}
