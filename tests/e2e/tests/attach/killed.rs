//! `kill -9` of gpuprobe at any moment: the command continues, no process stays stopped or waiting, no probe stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuprobe_e2e::linux::{Code, Log, any_user_probes, children_of, links, links_of};
use gpuprobe_e2e::process::{PATIENCE, gpuprobe, shown, until};
use gpuprobe_e2e::{Run, Talk, bpf_test, fixtures, needs};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

const KILLS: usize = 15;
/// A shell that has not started after this time never will.
const BEGUN: Duration = Duration::from_secs(3);
/// Another user's daemon probes every library on the host; the test waits until it has exited.
const OTHER_DAEMONS: Duration = Duration::from_secs(20);

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The state of a process; `None` if it has exited, even if it is still a zombie.
fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = text.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Every process that runs the binary under test, with its first argument.
fn our_processes() -> Vec<(u32, String)> {
    let ours = fixtures::gpuprobe().canonicalize().unwrap_or_else(|e| panic!("the binary: {e}"));
    let entries = fs::read_dir("/proc").unwrap_or_else(|e| panic!("/proc: {e}"));
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (fs::read_link(entry.path().join("exe")).ok()? == ours).then_some(())?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(words.split(|b| *b == 0).nth(1)?).into_owned()))
    };
    entries.filter_map(|entry| of(entry.ok()?)).collect()
}

/// How long gpuprobe takes until its command runs.
fn time_to_begin() -> Duration {
    let folder = fixtures::folder();
    let begun = folder.path().join("begun");
    let run = Run::new("sh").args(&["-c", &format!("echo >{}", shown(&begun))]);
    let started = Instant::now();
    let mut talk = Talk::start(&mut run.command(&folder.path().join("trace")));
    until(PATIENCE, "the command", || begun.exists().then_some(()));
    let took = started.elapsed();
    talk.end();
    took
}

/// A killed gpuprobe and the processes that it had started.
struct Round {
    folder: tempfile::TempDir,
    talk: Talk,
    delay: Duration,
    killed: Instant,
    /// Its links at that moment.
    links: BTreeSet<u64>,
    threads: BTreeSet<u32>,
}

impl Round {
    /// Starts a shell that runs programs under gpuprobe with these options, and kills gpuprobe after a time.
    fn new(delay: Duration, options: &[&str]) -> Self {
        let folder = fixtures::folder();
        let at = |name: &str| shown(folder.path().join(name));
        let built = fixtures::standins(Cuda::Cuda12);
        let [late, driver] = ["late_dlopen", "driver_only"].map(|name| shown(built.workload(name)));
        let (pids, done) = (at("pids"), at("done"));
        // The Linux kernel sends SIGHUP to a process group whose last parent exits while one of its processes is
        // stopped, as on perf.
        let before = if options.is_empty() { "" } else { "trap '' HUP; " };
        let script = format!(
            "{before}echo $$ >>{pids}; for i in 1 2 3; do {late} 120 & late=$!; echo $late >>{pids}; \
             {driver} & echo $! >>{pids}; wait $!; echo $? >>{done}; wait $late; echo $? >>{done}; done"
        );
        let run = Run::new("sh").options(options).args(&["-c", &script]);
        let mut talk = Talk::start(&mut run.command(&folder.path().join("trace")));
        sleep(delay);
        let (links, threads) = (links_of(talk.pid()), threads_of(talk.pid()));
        talk.signal(Signal::SIGKILL);
        let killed = Instant::now();
        talk.end();
        Self { folder, talk, delay, killed, links, threads }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The running processes of the shell, with their states.
    fn running(&self) -> Vec<(u32, char)> {
        let text = fs::read_to_string(self.at("pids")).unwrap_or_default();
        let pids = text.lines().filter_map(|l| l.parse().ok());
        pids.filter_map(|pid| Some((pid, state(pid)?))).collect()
    }

    /// Checks that every process that had started runs to its end. Returns whether any had started.
    fn assert_continued(&self) -> bool {
        let when = format!("killed after {:?}: {}", self.delay, self.talk.stderr());
        let pids = self.at("pids");
        if !until(PATIENCE, "a shell", || {
            (pids.exists() || self.killed.elapsed() > BEGUN).then(|| pids.exists())
        }) {
            return false;
        }
        // a process that stays stopped or waits forever does not exit
        while !self.running().is_empty() {
            assert!(self.killed.elapsed() < PATIENCE, "{:?} do not end; {when}", self.running());
            sleep(Duration::from_millis(10));
        }
        let statuses = fs::read_to_string(self.at("done")).unwrap_or_default();
        assert_eq!(statuses, "0\n".repeat(6), "what the shell saw of its programs; {when}");
        true
    }
}

/// Processes that have libcuda mapped all the time, and the log of the Linux kernel since then.
struct Witness {
    library: PathBuf,
    _holders: Vec<Talk>,
    code: Code,
    log: Log,
}

impl Witness {
    /// Each function is probed in every process before the next one, so many processes make attaching slower.
    fn new(processes: usize) -> Self {
        let built = fixtures::standins(Cuda::Cuda12);
        let library = built.dir.join("libcuda.so.1");
        let start = |_| {
            let mut holder = Talk::start(Command::new(built.workload("hoarder")).arg("1"));
            holder.line();
            holder
        };
        let processes: Vec<_> = (0..processes).map(start).collect();
        let code = Code::of(processes[0].pid(), &library);
        Self { library, _holders: processes, code, log: Log::from_now() }
    }

    fn changed_bytes(&self) -> usize {
        self.code.changed_bytes()
    }

    /// Waits for the first probe.
    fn until_probed(&self) {
        let begun = Instant::now();
        while self.changed_bytes() == 0 {
            assert!(begun.elapsed() < PATIENCE, "no probe was put in");
        }
    }

    /// Checks that the code is unchanged, and that none of these threads left a probe behind.
    fn assert_clean(&mut self, threads: &BTreeSet<u32>) {
        let begun = Instant::now();
        let mut alone_since = begun;
        loop {
            let changed = self.changed_bytes();
            if changed == 0 {
                break;
            }
            if any_user_probes() {
                alone_since = Instant::now();
                if begun.elapsed() > OTHER_DAEMONS {
                    eprintln!("not tested: another daemon has probes in every library of this host");
                    break;
                }
            }
            assert!(alone_since.elapsed() < PATIENCE, "{changed} probes stayed behind");
            sleep(Duration::from_millis(10));
        }
        let mut leaked = self.log.leaked_by();
        leaked.retain(|(thread, _)| threads.contains(thread));
        assert_eq!(leaked, []);
    }
}

/// The threads of gpuprobe and of its helper processes.
fn threads_of(pid: u32) -> BTreeSet<u32> {
    let entries = |folder: String| fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut processes = vec![pid];
    processes.extend(children_of(pid));
    processes.iter().flat_map(|pid| entries(format!("/proc/{pid}/task"))).filter_map(number).collect()
}

#[bpf_test(alone)]
fn a_killed_gpuprobe_leaves_its_command_running_and_no_probe() {
    let mut witness = Witness::new(1);
    // about two of three kills hit after the start of the command, however slow the machine is
    let latest = u64::try_from(time_to_begin().as_millis()).unwrap_or(u64::MAX).saturating_mul(3);
    let mut numbers = Numbers(3);
    let round = |number: usize| {
        // on perf processes are stopped by a signal; only a few functions, because removing the probes of each takes
        // long
        let options: &[&str] =
            if number % 3 == 2 { &["--attach", "perf", "-e", "cuMemAlloc_v2"] } else { &[] };
        Round::new(Duration::from_millis(20 + numbers.below(latest)), options)
    };
    let rounds: Vec<Round> = (0..KILLS).map(round).collect();
    let begun = rounds.iter().filter(|round| round.assert_continued()).count();
    assert!(begun > KILLS / 3, "only {begun} shells had begun");
    witness.assert_clean(&rounds.iter().flat_map(|r| &r.threads).copied().collect());

    // on perf the Linux kernel removes probes one after the other, those of all users of the machine
    until(PATIENCE, "no guard and no waiting copy of gpuprobe is left", || {
        our_processes().is_empty().then_some(())
    });
    let ours: BTreeSet<u64> = rounds.iter().flat_map(|r| &r.links).copied().collect();
    assert!(ours.len() > KILLS, "links were seen: {ours:?}");
    if links().is_none() {
        needs::missing("bpf", "there is no bpftool to look for links with");
        return;
    }
    until(PATIENCE, "no link is left behind", || links()?.is_disjoint(&ours).then_some(()));
}

#[bpf_test(alone)]
fn a_killed_daemon_leaves_no_probe() {
    let mut witness = Witness::new(64);
    let library = shown(&witness.library);
    let mut numbers = Numbers(5);
    let mut probed = 0;
    for round in 0..KILLS {
        let tier = if round % 3 == 0 { "multi" } else { "session" };
        let mut daemon =
            Talk::start(&mut gpuprobe(&["--metrics-addr=127.0.0.1:0", "--attach", tier, "-p", &library]));
        let mut threads = BTreeSet::from([daemon.pid()]);
        if round % 2 == 0 {
            // in the middle of attaching: there are hundreds of functions, probed one after the other
            witness.until_probed();
        } else {
            sleep(Duration::from_millis(20 + numbers.below(1481)));
            threads.extend(threads_of(daemon.pid()));
            probed += usize::from(witness.changed_bytes() > 0);
        }
        daemon.signal(Signal::SIGKILL);
        daemon.end();
        witness.assert_clean(&threads);
    }
    assert!(probed > 0 && probed <= KILLS / 2, "{probed} of {KILLS} had probes in");
}
