//! From settings to loaded programs: what the machine allows, what is loaded and how large.

use std::sync::Mutex;

use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::attach::{programs, tally};
use crate::clock::boottime_ns;
use crate::driver::first_row;
use crate::error::CaptureError;
use crate::functions::KernelHook;
use crate::handles::{open_maps, open_programs};
use crate::machine::{self, PROC, Verdict};
use crate::support::{Support, Tier, support, version_of};
use crate::tracepoints::{self, TracepointHook};
use crate::wire::{MapName, OBJECT, ProgramName, as_bytes, gp_config, number};

/// What to load, and how large.
#[derive(Clone, Debug)]
pub struct CaptureConfig {
    /// The attach tier; the best there is when `None`.
    pub tier: Option<Tier>,
    /// Watch only the processes named by [`crate::Capture::add_target`], and what they fork.
    pub only_targets: bool,
    /// What targets fork is watched too.
    pub follow_forks: bool,
    /// Of the calls that are streamed, only those that fail.
    pub errors_only: bool,
    /// Only those that are not made inside others.
    pub outermost_only: bool,
    /// Only those that take at least so long.
    pub min_duration_ns: u64,
    /// Tell when a call begins, as well as when it has returned.
    pub phases: bool,
    /// Tell only when a call begins: there are no return probes.
    pub entry_only: bool,
    /// Some functions are only counted, as their calls begin: see [`crate::Collect::Entries`].
    pub tallies: bool,
    /// The stack of every call that is streamed.
    pub stacks: bool,
    /// Learn where allocations come from.
    pub sites: bool,
    /// Learn what kernels are called.
    pub names: bool,
    /// Count launches, graphs and gaps in the kernel.
    pub launches: bool,
    /// Count copies in the kernel.
    pub copies: bool,
    /// Count these in rows of tables.
    pub rows: bool,
    /// Annotate the record of each call with what became of its work.
    pub told: bool,
    /// Look at calls of the kernel on the driver's devices.
    pub driver: bool,
    /// Functions of the kernel that are probed, by [`crate::Capture::attach_functions`].
    pub hooks: Vec<KernelHook>,
    /// Tracepoints that are told of, by [`crate::Capture::attach_tracepoints`].
    pub tracepoints: Vec<TracepointHook>,
    /// Probes that do nothing, to measure what the kernel itself takes for them.
    pub bare: bool,
    /// Probe functions that may be left out so that each of them can be taken out alone.
    pub apart: bool,
    /// Keep targets while libraries are mapped, until [`crate::Batch::holds`] has been answered.
    pub hold: bool,
    /// Size of the ring buffer for calls: a power of two times the page size.
    pub ring_bytes: u32,
    /// How many live allocations are kept.
    pub live_entries: u32,
    /// How many (process, function) pairs are counted.
    pub count_entries: u32,
    /// How many processes are kept.
    pub process_entries: u32,
    /// How many (process, kernel, stream) triples launches are counted for.
    pub launch_entries: u32,
    /// How many pairs of a site and a context are kept, and for each some comparisons of stacks.
    pub site_entries: u32,
}

impl CaptureConfig {
    /// Comparisons of stacks: some for each site, and the row that stands for none.
    pub(crate) fn site_nodes(&self) -> u32 {
        if self.sites { self.site_entries.saturating_mul(4).saturating_add(1) } else { 1 }
    }
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            tier: None,
            only_targets: false,
            hold: false,
            follow_forks: true,
            errors_only: false,
            outermost_only: false,
            min_duration_ns: 0,
            phases: false,
            entry_only: false,
            tallies: false,
            stacks: false,
            sites: false,
            names: false,
            launches: false,
            copies: false,
            rows: true,
            told: false,
            driver: false,
            hooks: Vec::new(),
            tracepoints: Vec::new(),
            bare: false,
            apart: false,
            ring_bytes: 64 << 20,
            live_entries: 1 << 20,
            count_entries: 10_240,
            process_entries: 8_192,
            launch_entries: 16_384,
            site_entries: 1 << 16,
        }
    }
}

/// Fails where nothing can be traced, with the reason.
pub fn check_machine(forced: Option<Tier>) -> Result<(), CaptureError> {
    check(&support(), forced).map(drop)
}

/// Privileges and kernel, in the order in which a person would have to mend them.
pub(crate) fn check(support: &Support, forced: Option<Tier>) -> Result<Tier, CaptureError> {
    // bpf_loop
    const OLDEST: (u32, u32) = (5, 17);
    if version_of(&support.kernel).is_some_and(|v| v < OLDEST) {
        return Err(CaptureError::KernelTooOld { found: support.kernel.clone(), needed: "5.17" });
    }
    if let Some(bad) = support.checks.iter().find(|c| c.verdict == Verdict::Bad) {
        return Err(match bad.name {
            PROC => CaptureError::NoProc,
            "capabilities" => CaptureError::NotPermitted,
            name => CaptureError::Forbidden { name, found: bad.found.clone() },
        });
    }
    if !support.has_btf() {
        return Err(CaptureError::NoBtf);
    }
    match forced {
        None => support.best_tier().ok_or(CaptureError::NoBtf),
        Some(tier) => match support.lacks(tier) {
            None => Ok(tier),
            Some(feature) => {
                Err(CaptureError::TierMissing { tier, missing: format!("it has no {}", feature.name) })
            }
        },
    }
}

/// A GPU or two, with a primary context each; whoever has more takes the room of those that have fewer.
const CONTEXTS_PER_PROCESS: u32 = 4;

/// Directions, modes and kinds of host memory that a process uses; whoever uses more takes the room of others. The table is
/// read as often as counters are, and that takes as long as it is large.
const COPIES_PER_PROCESS: u32 = 4;
/// Graphs, executable ones, captures and events in them, of all processes. Room is taken as they are made.
const GRAPHS: u32 = 1 << 16;
/// Nodes of graphs that were made one by one.
const NODES: u32 = 1 << 18;
/// Physical memory is made in pieces of megabytes, so there are fewer of them; and what is large takes time to make when
/// the daemon starts.
const ALLOCATIONS_PER_PHYSICAL: u32 = 8;
/// Parts that the range of an allocation is kept in.
const PARTS_PER_ALLOCATION: u32 = 8;

/// How large a table of work is; those that are not used are as small as it gets.
fn work_entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    let (launches, copies) = (config.launches && config.rows, config.copies && config.rows);
    let (wanted, entries) = match map {
        MapName::Launches | MapName::UnusedLaunches => (launches, config.launch_entries),
        MapName::Streams | MapName::UnusedStreams => {
            (config.launches || config.copies, config.process_entries)
        }
        // the first row is none
        MapName::LaunchRows => (launches, config.launch_entries.saturating_add(1)),
        MapName::StreamRows => (config.launches || config.copies, config.process_entries.saturating_add(1)),
        MapName::Captures | MapName::Recorded => (config.launches || config.copies, GRAPHS),
        MapName::Graphs | MapName::Execs => (config.launches, GRAPHS),
        MapName::Nodes => (config.launches, NODES),
        MapName::GraphCounts => (launches || copies, config.process_entries),
        MapName::Copies => (copies, config.process_entries.saturating_mul(COPIES_PER_PROCESS)),
        MapName::Ranges => (config.copies, config.live_entries.saturating_mul(PARTS_PER_ALLOCATION)),
        _ => return None,
    };
    Some(if wanted { entries } else { 1 })
}

/// A process may keep this part of the table of allocations for addresses that it has freed: a free that keeps its entry
/// costs a third of one that gives it back, and the next allocation there too.
const KEPT_PART: u32 = 256;
/// The part of the rows of launches that is kept for kernels on all streams together, when others have none left.
const ROWS_WITHOUT_STREAM: u32 = 4;

/// What libbpf said, kept so that a failure can tell its reason.
static LIBBPF_SAID: Mutex<String> = Mutex::new(String::new());

fn keep_what_libbpf_says(_level: PrintLevel, text: String) {
    const KEPT: usize = 1 << 20;
    if let Ok(mut said) = LIBBPF_SAID.lock()
        && said.len() < KEPT
    {
        said.push_str(&text);
    }
}

pub(crate) fn load(config: &CaptureConfig, tier: Tier) -> Result<Object, CaptureError> {
    let (loaded, said) = listening(|| open(config, tier).and_then(OpenObject::load));
    loaded.map_err(|source| CaptureError::Load { reason: reason(&said), source })
}

/// Does something with libbpf; what that said of it comes back.
fn listening<T>(load: impl FnOnce() -> T) -> (T, String) {
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep_what_libbpf_says)));
    let done = load();
    let said = LIBBPF_SAID.lock().map(|mut s| std::mem::take(&mut *s)).unwrap_or_default();
    (done, said)
}

/// Does something with libbpf that may fail.
pub(crate) fn quietly<T>(load: impl FnOnce() -> T) -> T {
    listening(load).0
}

fn open(config: &CaptureConfig, tier: Tier) -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("gpuprobe")?.open_memory(OBJECT)?;
    for (name, mut map) in open_maps(&mut object) {
        if let Some(entries) = work_entries(name, config).or_else(|| entries(name, config)) {
            map.set_max_entries(entries)?;
        }
        if name == MapName::RodataConfig {
            map.set_initial_value(as_bytes(&settings(config)))?;
        }
    }
    choose_programs(&mut object, config, tier);
    Ok(object)
}

/// How large any other map is; none for those whose size is no setting.
fn entries(map: MapName, config: &CaptureConfig) -> Option<u32> {
    let contexts = config.process_entries * CONTEXTS_PER_PROCESS;
    Some(match map {
        MapName::Calls => config.ring_bytes,
        MapName::Live => config.live_entries,
        MapName::Physical | MapName::Handles | MapName::Mapped => {
            config.live_entries.div_ceil(ALLOCATIONS_PER_PHYSICAL)
        }
        MapName::Contexts | MapName::UnusedContexts => contexts,
        MapName::Addresses | MapName::Primaries | MapName::Identities => contexts,
        MapName::Sites => config.site_entries,
        MapName::SiteNodes => config.site_nodes(),
        MapName::Commands | MapName::Unified if !config.driver => 1,
        MapName::Counts | MapName::UnusedCounts | MapName::Failures | MapName::Commands => {
            config.count_entries
        }
        MapName::Processes | MapName::UnusedMemory | MapName::Unified => config.process_entries,
        // the first row is nobody's
        MapName::CountRows => config.count_entries + 1,
        MapName::MemoryRows => config.process_entries + 1,
        MapName::ContextRows => contexts + 1,
        _ => return None,
    })
}

/// What the programs are told.
fn settings(config: &CaptureConfig) -> gp_config {
    gp_config {
        only_targets: config.only_targets.into(),
        hold: hold_mode(config.hold),
        wakeup_bytes: config.ring_bytes / 32,
        most_kept: config.live_entries / KEPT_PART,
        rows_by_stream: config.launch_entries - config.launch_entries / ROWS_WITHOUT_STREAM,
        follow_forks: config.follow_forks.into(),
        errors_only: config.errors_only.into(),
        outermost_only: config.outermost_only.into(),
        phases: config.phases.into(),
        entry_only: config.entry_only.into(),
        stacks: config.stacks.into(),
        names: config.names.into(),
        launches: config.launches.into(),
        copies: config.copies.into(),
        rows: config.rows.into(),
        told: config.told.into(),
        driver: config.driver.into(),
        driver_rows: first_row().map_or(u32::MAX, |row| row.0),
        tracepoint_rows: tracepoints::first_row(config),
        may_write: machine::may_write_back().into(),
        own_tgid: std::process::id(),
        sites: config.sites.into(),
        min_duration_ns: config.min_duration_ns,
        watched_since_ns: boottime_ns(),
    }
}

/// Leaves out the programs that are not needed here.
fn choose_programs(object: &mut OpenObject, config: &CaptureConfig, tier: Tier) {
    let wanted = programs(tier, config.entry_only, config.bare);
    for (name, mut program) in open_programs(object) {
        program.set_autoload(match name {
            ProgramName::OnFork | ProgramName::OnExec | ProgramName::OnExit => true,
            ProgramName::OnXid | ProgramName::OpenCalls => true,
            ProgramName::OnSyscall | ProgramName::OnSyscallEnd => config.driver,
            ProgramName::LoaderPerf => config.hold && tier == Tier::Perf,
            ProgramName::LoaderMulti => config.hold && tier != Tier::Perf,
            // a program that names what a kernel lacks must not be loaded there
            ProgramName::TallyMulti | ProgramName::TallyPerf => config.tallies && tally(tier).0 == name,
            // those on functions of the kernel and on tracepoints are loaded apart, see `functions.rs`
            _ => wanted.iter().any(|(wanted, _)| *wanted == name),
        });
    }
}

/// Waiting in the kernel takes a CPU, so that user space needs another one to answer from.
fn hold_mode(hold: bool) -> u8 {
    let alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    match (hold, alone) {
        (false, _) => number::HOLD_NOT,
        (true, false) => number::HOLD_BY_WAITING,
        (true, true) => number::HOLD_BY_STOPPING,
    }
}

/// The last lines that say something, out of a verifier log that may be very long.
fn reason(said: &str) -> String {
    let telling = |line: &&str| {
        let line = line.trim();
        !line.is_empty()
            && !line.contains("-- BEGIN")
            && !line.contains("-- END")
            && !line.starts_with("processed ")
    };
    let lines: Vec<_> = said.lines().filter(telling).collect();
    let tail = &lines[lines.len().saturating_sub(6)..];
    if tail.is_empty() { "no reason was given".to_owned() } else { tail.join("\n  ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Check;
    use crate::support::support;

    /// This machine, as if it were another.
    fn machine(kernel: &str, change: impl Fn(&mut Support)) -> Support {
        let mut support = support();
        support.kernel = kernel.to_owned();
        support.checks = vec![Check { name: "capabilities", verdict: Verdict::Good, found: String::new() }];
        support.features.iter_mut().for_each(|f| f.present = true);
        change(&mut support);
        support
    }

    fn refusal(support: &Support, forced: Option<Tier>) -> String {
        check(support, forced).unwrap_err().to_string()
    }

    #[test]
    fn a_kernel_that_is_too_old_or_has_no_btf_is_named_with_what_is_needed() {
        let old = refusal(&machine("5.10.0-28-amd64", |_| {}), None);
        assert_eq!(old, "the kernel is 5.10.0-28-amd64, gpuprobe needs 5.17 or newer");
        let no_btf = machine("6.1.0", |s| s.features.iter_mut().for_each(|f| f.present = false));
        assert!(refusal(&no_btf, None).contains("CONFIG_DEBUG_INFO_BTF=y"));
    }

    #[test]
    fn what_the_machine_forbids_is_told_before_anything_is_loaded() {
        let unprivileged = machine("6.1.0", |s| s.checks[0].verdict = Verdict::Bad);
        assert!(refusal(&unprivileged, None).contains("try sudo"));
        let no_proc = machine("", |s| {
            let proc = Check { name: PROC, verdict: Verdict::Bad, found: String::new() };
            s.checks.insert(0, proc);
            s.checks[1].verdict = Verdict::Bad;
        });
        let said = refusal(&no_proc, None);
        assert!(
            said.starts_with("/proc is not mounted") && said.contains("mount -t proc proc /proc"),
            "{said}"
        );
        assert!(!said.contains("root"), "{said}");
        let locked = machine("6.1.0", |s| {
            s.checks.push(Check {
                name: "lockdown",
                verdict: Verdict::Bad,
                found: "confidentiality".to_owned(),
            });
        });
        assert_eq!(refusal(&locked, None), "lockdown forbids tracing: confidentiality");
    }

    #[test]
    fn the_best_tier_is_taken_and_a_missing_one_refused() {
        let all = machine("6.18.0", |_| {});
        assert_eq!(check(&all, None).unwrap(), Tier::Session);
        assert_eq!(check(&all, Some(Tier::Perf)).unwrap(), Tier::Perf);
        let multi = machine("6.12.0", |s| {
            s.features.iter_mut().filter(|f| f.name.contains("sessions")).for_each(|f| f.present = false);
        });
        assert_eq!(check(&multi, None).unwrap(), Tier::Multi);
        assert!(refusal(&multi, Some(Tier::Session)).contains("it has no uprobe sessions"));
    }

    #[test]
    fn the_verifiers_last_words_are_the_reason() {
        let said = "-- BEGIN PROG LOAD LOG --\n0: (b7) r0 = 0\nR2 unbounded memory access\nprocessed 12 insns\n-- END\n";
        assert_eq!(reason(said), "0: (b7) r0 = 0\n  R2 unbounded memory access");
        assert_eq!(reason(""), "no reason was given");
    }
}
