//! `kill -9` of gpuprobe at any moment: the command goes on, nobody stays stopped or waiting, no probe stays behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuprobe_e2e::process::{shown, until};
use gpuprobe_e2e::{Run, Talk, needs, places};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

const KILLS: usize = 15;
/// After this nobody may be stopped or wait any more.
const LET_GO: Duration = Duration::from_secs(3);
/// After this the guard must be gone as well, and every probe.
const ALL_GONE: Duration = Duration::from_secs(5);
/// The programs of one round take a small part of this, even on a busy machine.
const SHELL_ENDS: Duration = Duration::from_secs(10);

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The state of a process; nothing where it has ended, whether somebody has waited for it or not.
fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = text.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Every process that runs the binary under test, with the word behind its name.
fn of_our_binary() -> Vec<(u32, String)> {
    let ours = places::gpuprobe().canonicalize().unwrap_or_else(|e| panic!("the binary: {e}"));
    let entries = fs::read_dir("/proc").unwrap_or_else(|e| panic!("/proc: {e}"));
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (fs::read_link(entry.path().join("exe")).ok()? == ours).then_some(())?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(words.split(|b| *b == 0).nth(1)?).into_owned()))
    };
    entries.filter_map(|entry| of(entry.ok()?)).collect()
}

/// gpuprobe that was killed, and what it had started.
struct Round {
    folder: tempfile::TempDir,
    talk: Talk,
    delay: Duration,
    killed: Instant,
    /// The links it had in that moment.
    links: BTreeSet<u64>,
}

impl Round {
    /// Lets a shell start programs under gpuprobe, and kills gpuprobe after a time.
    fn new(delay: Duration) -> Self {
        let folder = places::folder();
        let at = |name: &str| shown(folder.path().join(name));
        let built = places::standins(Cuda::Cuda12);
        let [late, driver] = ["late_dlopen", "driver_only"].map(|name| shown(built.workload(name)));
        let (pids, done) = (at("pids"), at("done"));
        let script = format!(
            "echo $$ >>{pids}; for i in 1 2 3; do {late} 10 & late=$!; echo $late >>{pids}; \
             {driver} & echo $! >>{pids}; wait $!; echo $? >>{done}; wait $late; echo $? >>{done}; done"
        );
        let run = Run::new("sh").args(&["-c", &script]);
        let mut talk = Talk::start(&mut run.command(&folder.path().join("trace")));
        sleep(delay);
        let links = links_of(talk.pid());
        talk.signal(Signal::SIGKILL);
        let killed = Instant::now();
        talk.end();
        Self { folder, talk, delay, killed, links }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What is left of a limit that began with the kill.
    fn left(&self, limit: Duration) -> Duration {
        limit.saturating_sub(self.killed.elapsed())
    }

    /// The shell and what it started, as far as they run, with their states.
    fn running(&self) -> Vec<(u32, char)> {
        let text = fs::read_to_string(self.at("pids")).unwrap_or_default();
        let pids = text.lines().filter_map(|l| l.parse().ok());
        pids.filter_map(|pid| Some((pid, state(pid)?))).collect()
    }

    /// That everything which had begun goes on to its end. Whether anything had begun.
    fn assert_gone_on(&self) -> bool {
        let when = format!("killed after {:?}: {}", self.delay, self.talk.stderr());
        sleep(self.left(LET_GO));
        let stopped: Vec<_> = self.running().into_iter().filter(|(_, state)| *state == 'T').collect();
        assert_eq!(stopped, [], "stopped; {when}");
        if !self.at("pids").exists() {
            return false;
        }
        let ended = || self.running().is_empty().then_some(());
        until(self.left(SHELL_ENDS), &format!("the shell and its programs end; {when}"), ended);
        let statuses = fs::read_to_string(self.at("done")).unwrap_or_default();
        assert_eq!(statuses, "0\n".repeat(6), "what the shell saw of its programs; {when}");
        true
    }
}

/// The links that a process holds.
fn links_of(pid: u32) -> BTreeSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten();
    let link = |text: String| text.lines().find_map(|l| l.strip_prefix("link_id:")?.trim().parse().ok());
    entries.filter_map(|entry| link(fs::read_to_string(entry.ok()?.path()).ok()?)).collect()
}

/// The links that the kernel has, by its own tool; nothing where that is not there.
fn links() -> Option<BTreeSet<u64>> {
    let output = Command::new("bpftool").args(["-j", "link"]).output().ok()?;
    let links: Vec<Value> = serde_json::from_slice(&output.stdout).ok()?;
    Some(links.iter().filter_map(|l| l["id"].as_u64()).collect())
}

#[test]
fn whenever_gpuprobe_is_killed_its_command_goes_on_and_nothing_is_left_behind() {
    if !needs::bpf() {
        return;
    }
    let mut numbers = Numbers(3);
    let delays = (0..KILLS).map(|_| Duration::from_millis(20 + numbers.below(481)));
    let rounds: Vec<Round> = delays.map(Round::new).collect();
    let begun = rounds.iter().filter(|round| round.assert_gone_on()).count();
    assert!(begun > KILLS / 2, "only {begun} shells had begun");

    let last = rounds.iter().map(|r| r.killed).max().unwrap_or_else(Instant::now);
    let limit = ALL_GONE.saturating_sub(last.elapsed());
    until(limit, "no guard and no waiting copy of gpuprobe is left", || {
        of_our_binary().is_empty().then_some(())
    });
    let ours: BTreeSet<u64> = rounds.iter().flat_map(|r| &r.links).copied().collect();
    assert!(ours.len() > KILLS, "links were seen: {ours:?}");
    if links().is_none() {
        needs::missing("bpftool", "there is no bpftool to look for links with");
        return;
    }
    until(ALL_GONE, "no link is left behind", || links()?.is_disjoint(&ours).then_some(()));
}
