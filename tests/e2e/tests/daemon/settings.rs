//! The daemon's settings: a file, reloading it, the privileges that it drops after its start, and how soon it exits.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gpuprobe_e2e::linux::{children_of, links, links_of};
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, TIME_TO_END, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE.
const KEPT: u64 = 1 << 2 | 1 << 19 | 1 << 38 | 1 << 39 | 1 << 40;
const SYS_NICE: u64 = 1 << 23;
const SYS_RESOURCE: u64 = 1 << 24;

/// The effective capabilities of every thread of a process.
fn capabilities(pid: u32) -> Vec<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |folder: &Path| {
        let status = fs::read_to_string(folder.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap().to_owned();
        u64::from_str_radix(&line, 16).unwrap()
    };
    tasks.map(|task| of(&task.unwrap().path())).collect()
}

#[bpf_test(tiers, alone)]
fn a_daemon_drops_capabilities_and_still_probes_later_libraries(tier: &str) {
    let daemon = Daemon::with(&["--memleak", "--attach", tier]);
    let pid = daemon.talk.pid();
    let mut all = capabilities(pid);
    assert!(all.len() > 1, "it has threads");
    // the attach helper, and the process that starts the readers of other processes' files
    let mut helpers = children_of(pid);
    assert_eq!(helpers.len(), 2);
    helpers.extend(helpers.clone().into_iter().flat_map(children_of));
    // a process that may not raise its limit of priorities keeps CAP_SYS_NICE
    let may_raise = capabilities(std::process::id()).iter().all(|bits| bits & SYS_RESOURCE != 0);
    let kept = if may_raise { KEPT } else { KEPT | SYS_NICE };
    // perf events on functions need CAP_SYS_ADMIN, and the attach helper makes them
    let more = if tier == "perf" { 1 << 21 } else { 0 };
    all.extend(helpers.iter().flat_map(|helper| capabilities(*helper)).map(|bits| bits & !more));
    assert!(all.iter().all(|bits| bits & !kept == 0 && *bits != 0), "{all:x?}");
    // a library that did not exist when the daemon started
    let folder = fixtures::folder();
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let library = shown(folder.path().join("libcuda.so.1"));
    let mut ledger =
        Talk::start(Command::new(folder.path().join("ledger")).args(["--calls", "500", "--pauses", "1"]));
    ledger.json();
    daemon.until(PATIENCE, &format!("{library} is probed by {tier}"), |m| m.text.contains(&library));
    ledger.finish();

    let (mut talk, links_before) = (daemon.talk, links_of(pid));
    assert!(!links_before.is_empty());
    let begun = Instant::now();
    talk.signal(Signal::SIGTERM);
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    if tier != "perf" {
        assert!(begun.elapsed() < TIME_TO_END, "{tier}: {:?}", begun.elapsed());
    }
    until(PATIENCE, "its probes are removed", || {
        links().is_none_or(|now| now.is_disjoint(&links_before)).then_some(())
    });
}

#[bpf_test(alone)]
fn a_settings_file_is_reloaded_and_an_invalid_one_changes_nothing() {
    let folder = fixtures::folder();
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let library = shown(folder.path().join("libcuda.so.1"));
    let config = folder.path().join("gpuprobe.toml");
    let address = "metrics_addr = \"127.0.0.1:0\"\n";
    fs::write(&config, format!("display_interval = 0\nmemleak = true\n{address}")).unwrap();
    let mut daemon = Daemon::of(gpuprobe(&["daemon", "--config", &shown(&config)]).arg("--refresh=0.2"));
    let said = |daemon: &Daemon, text: &str| {
        until(PATIENCE, text, || daemon.talk.stderr().contains(text).then_some(()));
    };
    let mut ledger =
        Talk::start(Command::new(folder.path().join("ledger")).args(["--calls", "2000", "--pauses", "1"]));
    let pid = pid_of(&ledger.json());
    daemon.until(PATIENCE, "the driver is probed", |m| m.text.contains(&library));
    assert_eq!(ledger.finish().0, 0);
    let before =
        daemon.until(PATIENCE, "its calls", |m| m.of("gpuprobe_memory_allocated_bytes_total", pid) > Some(0));
    assert!(before.samples("gpuprobe_copies_total").next().is_none(), "memory alone was asked for");
    assert_eq!(daemon.talk.printed(), [""; 0], "nothing is to be displayed");

    fs::write(&config, "display_interval = 1\nmemleak = true\nbandwidth-utl = true\n").unwrap();
    daemon.talk.signal(Signal::SIGHUP);
    said(&daemon, "the settings are unchanged: in ");
    said(&daemon, "line 3: `bandwidth-utl` is not a setting");

    let second = folder.path().join("second.so");
    fs::copy(&library, &second).unwrap();
    let path = format!("path = [{second:?}]");
    fs::write(&config, format!("display_interval = 1\nmemleak = true\nmax_kernels = 7\n{address}{path}\n"))
        .unwrap();
    daemon.talk.signal(Signal::SIGHUP);
    said(&daemon, "settings read again; after a restart: max_kernels");
    until(PATIENCE, "it displays", || (!daemon.talk.printed().is_empty()).then_some(()));
    let after = daemon.until(PATIENCE, "the library", |m| m.text.contains(&shown(&second)));
    let allocated = "gpuprobe_memory_allocated_bytes_total";
    assert_eq!(after.of(allocated, pid), before.of(allocated, pid), "nothing that was counted is lost");
    assert_other_settings_apply(&mut daemon, &config, Path::new(&library));
}

/// Loading the BPF programs takes a while; the maps are created first.
fn has_maps(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|to| shown(to).contains("bpf-map"))
}

#[bpf_test(alone)]
fn settings_can_be_reloaded_during_start() {
    let folder = fixtures::folder();
    let config = folder.path().join("gpuprobe.toml");
    fs::write(&config, "metrics_addr = \"127.0.0.1:0\"\ndisplay_interval = 0\n").unwrap();
    let mut talk = Talk::start(&mut gpuprobe(&["daemon", "--config", &shown(&config)]));
    let pid = talk.pid();
    until(PATIENCE, "it loads", || has_maps(pid).then_some(()));
    talk.signal(Signal::SIGHUP);
    until(PATIENCE, "settings read again", || talk.stderr().contains("settings read again").then_some(()));
    talk.signal(Signal::SIGTERM);
    assert_eq!(talk.end(), 0);
}

/// What cannot be applied is reported in the line about the reload, and everything else is applied.
fn assert_other_settings_apply(daemon: &mut Daemon, config: &Path, library: &Path) {
    let later = config.with_file_name("later.so");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let mut read = |address: &str, path: &str, expected: &[&str]| {
        let reported = daemon.talk.stderr().lines().count();
        fs::write(config, format!("memleak = true\nmetrics_addr = \"{address}\"\npath = [{path}]\n"))
            .unwrap();
        daemon.talk.signal(Signal::SIGHUP);
        let line = until(PATIENCE, "the settings are read", || {
            let said = daemon.talk.stderr();
            said.lines().skip(reported).find(|line| line.contains("settings read again")).map(str::to_owned)
        });
        expected.iter().for_each(|word| assert!(line.contains(word), "{word}: {line}"));
        line
    };
    let (second, wanted) = (config.with_file_name("second.so"), format!("{later:?}"));
    let both = format!("{second:?}, {later:?}");
    let line = read("127.0.0.1:0", &both, &["unchanged: path (cannot open ", "later.so"]);
    assert!(!line.contains("metrics_addr"), "{line}");
    fs::copy(library, &later).unwrap();
    // a port in use, and a file that could not be probed before
    let busy = [&format!("unchanged: metrics_addr (cannot listen on {taken}: ")[..], "in use"];
    assert!(!read(&taken.to_string(), &both, &busy).contains("path"));
    drop(holder);
    // a setting that needs privileges which the daemon has dropped, and a file that is no longer named
    let line = read("127.0.0.1:1", &wanted, &["; after a restart: path"]);
    let open_ports = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let kept = ["unchanged: metrics_addr (cannot listen on 127.0.0.1:1: ", "restart gpuprobe"];
    if open_ports.trim() == "1024" {
        kept.iter().for_each(|word| assert!(line.contains(word), "{word}: {line}"));
        daemon.until(PATIENCE, "the file", |m| m.text.contains(&shown(&later)));
    }
}

/// The time of the last snapshot.
fn snapshot_time(daemon: &Daemon) -> f64 {
    let text = daemon.scrape().text;
    let value = text.lines().find_map(|line| line.strip_prefix("gpuprobe_snapshot_timestamp_seconds "));
    value.unwrap().parse().unwrap()
}

/// Waits until there are snapshots this many seconds newer.
fn goes_on(daemon: &Daemon, seconds: f64) {
    let begun = snapshot_time(daemon);
    until(PATIENCE, "it goes on", || (snapshot_time(daemon) > begun + seconds).then_some(()));
}

/// Fills a pipe.
fn fill(pipe: &mut File) {
    while pipe.write(&[b'\n'; 512]).is_ok() {}
    while pipe.write(b"\n").is_ok() {}
}

#[bpf_test(alone)]
fn a_blocked_display_delays_neither_metrics_nor_the_end() {
    let folder = fixtures::folder();
    let path = folder.path().join("display");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let flags = OFlag::O_NONBLOCK.bits();
    let mut pipe = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    fill(&mut pipe);
    let daemon = gpuprobe(&["daemon", "--memleak", "--metrics-addr=127.0.0.1:0", "--refresh=0.2"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "display=$1; shift; exec \"$@\" > \"$display\"", "sh"]).arg(&path);
    shell.arg(daemon.get_program()).args(daemon.get_args()).arg("--display-interval=1");
    let mut daemon = Daemon::of(&mut shell);
    // one display is being written, one waits, and others are dropped
    goes_on(&daemon, 4.5);
    let mut read = Vec::new();
    until(PATIENCE, "those left out are counted", || {
        pipe.read_to_end(&mut read).unwrap_err();
        let text = String::from_utf8_lossy(&read);
        let left_out =
            text.lines().find_map(|line| line.split_once(" suppressed because the output was not read"));
        let (count, _) = left_out?.0.split_once(" display").unwrap();
        assert!((1..=60).contains(&count.parse::<u32>().unwrap()), "{count}");
        Some(())
    });
    fill(&mut pipe);
    goes_on(&daemon, 1.5);
    let begun = Instant::now();
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    assert!(begun.elapsed() < TIME_TO_END, "{:?}", begun.elapsed());
}

#[test]
fn wrong_settings_are_reported_in_one_line() {
    let folder = fixtures::folder();
    let config = folder.path().join("gpuprobe.toml");
    fs::write(&config, "# settings\nrefresh = \"soon\"\n").unwrap();
    let finished = finish(&mut gpuprobe(&["daemon", "--config", &shown(&config)]));
    let expected = format!(
        "gpuprobe: in {}: line 2: invalid value 'soon' for '--refresh <TIME>': give a time, such as 10, 10s, 500ms or 2m\n",
        shown(&config)
    );
    assert_eq!((finished.status, finished.stderr), (1, expected));
    let missing = finish(&mut gpuprobe(&["--config", "/nowhere.toml"]));
    assert_eq!(missing.status, 1);
    assert!(
        missing.stderr.starts_with("gpuprobe: cannot read /nowhere.toml: name another"),
        "{}",
        missing.stderr
    );
}
