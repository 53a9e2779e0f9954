//! Probes on functions of the Linux kernel: those of the NVIDIA kernel modules, and any that the user has named.
//!
//! Their programs are loaded in separate objects on the same maps: if the Linux kernel refuses one, only these
//! functions are not probed.

use std::io;

use gpuprobe_discover::SkipCause;
use gpuprobe_event::{Api, FunctionId, catalogue};
use libbpf_rs::Object;

use crate::attach::bpf_link::BpfLink;
use crate::attach::linux::linux_link::{LinuxProbeKind, make_linux_link, with_program};
use crate::host::linux_support::LinuxSupport;
use crate::host::open_files::raise_limit;
use crate::host::support::Tier;
use crate::load::hooks::{LinuxFunctionHook, Unprobed};
use crate::load::libbpf_log::without_log;
use crate::load::second_object::{load_programs, open_again};
use crate::wire::ProgramName;
use crate::wire::object_handles::open_programs;

/// The most functions that can have fentry programs: as many pairs as `bpf/linux/linux_functions.bpf.h` has.
const MAX_FENTRY: usize = ProgramName::TRACED_ENTRY.len();
/// The most functions that are probed by perf events, because detaching each takes a tenth of a second.
const MAX_PERF_KPROBES: usize = 64;

/// How a function of the Linux kernel is probed, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinuxTier {
    /// By an fentry and an fexit program for this function only; the cheapest.
    Fentry,
    /// By kprobes; one link for many functions, except on the perf tier.
    Kprobes(Tier),
}

impl LinuxTier {
    /// The name shown to the user.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobes(Tier::Session) => "kprobe session",
            Self::Kprobes(Tier::Multi) => "kprobe multi",
            Self::Kprobes(Tier::Perf) => "kprobe",
        }
    }
}

/// The result of probing functions.
#[derive(Debug, Default)]
pub struct ProbedFunctions {
    /// How many functions are probed by each tier.
    pub probed: Vec<(LinuxTier, usize)>,
    /// The functions that are not probed, with the reason.
    pub skipped: Vec<Unprobed>,
}

/// The tiers by which this Linux kernel can probe so many functions, best first. If the user has chosen a tier, it
/// selects the kind of kprobes.
pub fn linux_tiers(support: &LinuxSupport, forced: Option<Tier>, functions: usize) -> Vec<LinuxTier> {
    let traced = forced.is_none() && functions <= MAX_FENTRY && support.has_fentry();
    let kprobes = Tier::ALL
        .into_iter()
        .filter(|tier| forced.is_none_or(|forced| *tier <= forced) && support.has_kprobes(*tier))
        .map(LinuxTier::Kprobes);
    traced.then_some(LinuxTier::Fentry).into_iter().chain(kprobes).collect()
}

/// A function to probe, with its row and the last reason why it was refused.
struct Attempt<'h> {
    hook: &'h LinuxFunctionHook,
    id: FunctionId,
    reason: String,
}

impl Attempt<'_> {
    fn points(&self) -> impl Iterator<Item = (u64, u64)> {
        self.hook.function.addresses.iter().map(|address| (*address, u64::from(self.id.0)))
    }
}

/// Probes functions. What one tier refuses is tried with the next.
pub(crate) fn attach(
    links: &mut Vec<BpfLink>,
    main: &Object,
    hooks: &[LinuxFunctionHook],
    (tiers, entry_only): (&[LinuxTier], bool),
) -> ProbedFunctions {
    // every map has a descriptor in every object
    raise_limit();
    let mut probed = ProbedFunctions::default();
    let mut left = Vec::new();
    for hook in hooks {
        let row = catalogue().lookup(Api::Kernel, None, &hook.function.name);
        match (&hook.refused, row) {
            (None, Some(row)) => left.push(Attempt { hook, id: row.id, reason: String::new() }),
            (refused, _) => {
                let without_row = || (SkipCause::TooMany, "it has no row in the catalogue".to_owned());
                probed.skipped.push(hook.unprobed(refused.clone().unwrap_or_else(without_row)));
            }
        }
    }
    for tier in tiers {
        if left.is_empty() {
            break;
        }
        let before = left.len();
        let mut attacher = GroupAttacher { links, main, entry_only, refused: Vec::new() };
        match tier {
            LinuxTier::Fentry => attacher.attach_fentry(left),
            LinuxTier::Kprobes(tier) => attacher.attach_kprobes(left, *tier),
        }
        left = attacher.refused;
        if before > left.len() {
            probed.probed.push((*tier, before - left.len()));
        }
    }
    let without = "this kernel has no kprobes, and refuses fentry; `gpuprobe doctor` says more";
    probed.skipped.extend(left.into_iter().map(|tried| {
        let reason = if tried.reason.is_empty() { without.to_owned() } else { tried.reason };
        tried.hook.unprobed((SkipCause::Refused, reason))
    }));
    probed
}

struct GroupAttacher<'a, 'h> {
    /// The links keep their programs loaded, and the programs their maps.
    links: &'a mut Vec<BpfLink>,
    main: &'a Object,
    entry_only: bool,
    refused: Vec<Attempt<'h>>,
}

impl<'h> GroupAttacher<'_, 'h> {
    fn refuse(&mut self, tried: Vec<Attempt<'h>>, reason: &str) {
        self.refused.extend(tried.into_iter().map(|t| Attempt { reason: reason.to_owned(), ..t }));
    }

    /// Loads a pair of programs for each function, all in one object. The Linux kernel accepts all or none, so a
    /// group that fails is split in halves until the culprit is found.
    fn attach_fentry(&mut self, tried: Vec<Attempt<'h>>) {
        let (typed, others) =
            tried.into_iter().partition(|t| t.hook.is_typed && t.hook.function.addresses.len() == 1);
        self.refuse(others, "the kernel has neither its type nor kprobes");
        let mut groups: Vec<Vec<_>> = vec![typed];
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            match self.load_fentry(&group) {
                Ok(object) => self.link_fentry(&object, group),
                Err(error) if group.len() == 1 => self.refuse(group, &format!("fentry: {error}")),
                Err(_) => {
                    let rest = group.split_off(group.len() / 2);
                    groups.extend([rest, group]);
                }
            }
        }
    }

    fn load_fentry(&self, group: &[Attempt<'h>]) -> Result<Object, libbpf_rs::Error> {
        let mut object = open_again(self.main)?;
        for (name, mut program) in open_programs(&mut object) {
            let number = |programs: &[ProgramName]| programs.iter().position(|program| *program == name);
            let entry = number(&ProgramName::TRACED_ENTRY);
            let end = number(&ProgramName::TRACED_RETURN).filter(|_| !self.entry_only);
            let wanted = entry.or(end).and_then(|n| group.get(n));
            program.set_autoload(wanted.is_some());
            if let Some(tried) = wanted {
                program.set_attach_target(0, Some(tried.hook.function.name.clone()))?;
            }
        }
        without_log(|| object.load())
    }

    fn link_fentry(&mut self, object: &Object, group: Vec<Attempt<'h>>) {
        let mut refused = Vec::new();
        for (n, tried) in group.into_iter().enumerate() {
            let cookie = [(0, u64::from(tried.id.0))];
            // returns first: a call whose return is not seen would stay open
            let ends = [
                (ProgramName::TRACED_RETURN, LinuxProbeKind::Return),
                (ProgramName::TRACED_ENTRY, LinuxProbeKind::Entry),
            ];
            let made = ends.iter().skip(usize::from(self.entry_only)).map(|(programs, kind)| {
                let name = *programs.get(n).ok_or(io::ErrorKind::NotFound)?;
                with_program(object, name, |program| make_linux_link(program, *kind, &cookie))
            });
            match made.collect::<io::Result<Vec<_>>>() {
                Ok(links) => self.links.extend(links),
                Err(error) => refused.push(Attempt { reason: format!("fentry: {error}"), ..tried }),
            }
        }
        self.refused.extend(refused);
    }

    /// Attaches kprobes: by one link for all, which is split in halves if it fails, or one by one.
    fn attach_kprobes(&mut self, tried: Vec<Attempt<'h>>, tier: Tier) {
        let hidden = |t: &Attempt<'_>| t.hook.function.addresses.contains(&0);
        let (hidden, mut tried): (Vec<_>, Vec<_>) = tried.into_iter().partition(hidden);
        self.refuse(hidden, "the kernel hides its address: sysctl kernel.kptr_restrict=1");
        if tier == Tier::Perf && tried.len() > MAX_PERF_KPROBES {
            let rest = tried.split_off(MAX_PERF_KPROBES);
            let reason = format!("{MAX_PERF_KPROBES} functions at most are probed one by one");
            self.refuse(rest, &reason);
        }
        let ends: &[(ProgramName, LinuxProbeKind)] = match (tier, self.entry_only) {
            (Tier::Session, false) => &[(ProgramName::LinuxSession, LinuxProbeKind::Session)],
            (Tier::Session | Tier::Multi, true) => &[(ProgramName::LinuxMultiEntry, LinuxProbeKind::Multi)],
            (Tier::Multi, false) => &[
                (ProgramName::LinuxMultiReturn, LinuxProbeKind::MultiReturn),
                (ProgramName::LinuxMultiEntry, LinuxProbeKind::Multi),
            ],
            (Tier::Perf, true) => &[(ProgramName::LinuxPerfEntry, LinuxProbeKind::Perf)],
            (Tier::Perf, false) => &[
                (ProgramName::LinuxPerfReturn, LinuxProbeKind::PerfReturn),
                (ProgramName::LinuxPerfEntry, LinuxProbeKind::Perf),
            ],
        };
        let object = match load_programs(self.main, |name| ends.iter().any(|(wanted, _)| *wanted == name)) {
            Ok(object) => object,
            Err(error) => return self.refuse(tried, &format!("its programs do not load: {error}")),
        };
        let mut groups: Vec<Vec<_>> = match tier {
            Tier::Perf => tried.into_iter().map(|t| vec![t]).collect(),
            Tier::Session | Tier::Multi => vec![tried],
        };
        while let Some(mut group) = groups.pop() {
            match link_group(&object, ends, &group, tier) {
                Ok(links) => self.links.extend(links),
                Err(error) if group.len() < 2 => self.refuse(group, &format!("kprobe: {error}")),
                Err(_) => {
                    let rest = group.split_off(group.len() / 2);
                    groups.extend([rest, group]);
                }
            }
        }
    }
}

fn link_group(
    object: &Object,
    ends: &[(ProgramName, LinuxProbeKind)],
    group: &[Attempt<'_>],
    tier: Tier,
) -> io::Result<Vec<BpfLink>> {
    let mut points: Vec<_> = group.iter().flat_map(Attempt::points).collect();
    // the Linux kernel finds the cookie of an address by binary search
    points.sort_unstable();
    let at_once = if tier == Tier::Perf { 1 } else { points.len().max(1) };
    let mut links = Vec::new();
    for (name, kind) in ends {
        for points in points.chunks(at_once) {
            links.push(with_program(object, *name, |program| make_linux_link(program, *kind, points))?);
        }
    }
    Ok(links)
}
