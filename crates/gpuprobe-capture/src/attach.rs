//! Plans to links: rows into the table of functions, then probes on the library.

use std::collections::HashMap;
use std::path::PathBuf;

use gpuprobe_discover::{FileId, Loader, PlannedFunction, ProbeCost, Skipped, Target};
use gpuprobe_event::{Function, FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags, Object};

use crate::error::CaptureError;
use crate::handles::map_of;
use crate::keeper::{Keeper, LinkId, Patience};
use crate::kernel_names::LibraryNumber;
use crate::object::Apart;
use crate::request::{ProbedFile, Probes, Way};
use crate::rows::{may_throw, row, runs_callbacks};
use crate::support::Tier;
use crate::task::Counted;
use crate::wire::{MapName, ProgramName, as_bytes, number};

/// What the probes of a function do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Count in the kernel: nothing to lose, a fixed cost.
    Count,
    /// One record a call.
    Stream,
    /// Both, so that they can be compared.
    CountAndStream,
    /// Count failures that no call inside is the cause of.
    Failures,
    /// Count calls as they begin, and nothing else: there is no return probe, which saves a third.
    Entries,
    /// Only what other calls need: names of kernels, which context is current, what is captured.
    Aside,
}

/// A library with its probes in.
#[derive(Debug)]
pub struct Attached {
    /// Where it was found.
    pub path: PathBuf,
    /// The file itself.
    pub id: FileId,
    /// Opened through another process's mounts, which the probes keep busy.
    pub is_foreign: bool,
    /// How many functions are probed.
    pub functions: usize,
    /// Those that could not be, with the reason.
    pub skipped: Vec<Skipped>,
    /// Since when its calls are observed, by the monotonic clock.
    pub observed_since_ns: Option<u64>,
    pub(crate) links: Vec<LinkId>,
    /// Functions with links of their own.
    pub(crate) apart: Vec<ApartFunction>,
    pub(crate) points: HashMap<FunctionId, ProbeCost>,
    pub(crate) how: Attach,
    /// What the kernel can open.
    pub(crate) file: ProbedFile,
    /// Its file system may not answer.
    pub(crate) may_stall: bool,
}

/// A function whose probes can be taken out alone.
#[derive(Debug)]
pub(crate) struct ApartFunction {
    pub(crate) planned: PlannedFunction,
    is_tallied: bool,
    /// None while it is left out.
    pub(crate) links: Vec<LinkId>,
}

impl ApartFunction {
    /// Makes its links.
    pub(crate) fn attach(
        &self,
        keeper: &mut Keeper,
        how: Attach,
        file: &ProbedFile,
        patience: &mut Patience,
    ) -> Result<Vec<LinkId>, CaptureError> {
        let programs = match self.is_tallied && !how.bare {
            true => std::slice::from_ref(tally(how.tier)),
            false => how.programs(self.planned.function),
        };
        attach_group(keeper, how, file, (programs, &[&self.planned]), patience)
    }
}

impl Attached {
    /// How many links hold the probes.
    pub fn links(&self) -> usize {
        self.links.len() + self.apart.iter().map(|f| f.links.len()).sum::<usize>()
    }

    /// All of them.
    pub(crate) fn into_links(self) -> impl Iterator<Item = LinkId> {
        self.links.into_iter().chain(self.apart.into_iter().flat_map(|f| f.links))
    }
}

/// How a library is attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attach {
    pub(crate) tier: Tier,
    /// Without return probes.
    pub(crate) entry_only: bool,
    /// With programs that do nothing.
    pub(crate) bare: bool,
    /// The number that its calls will bear.
    pub(crate) library: LibraryNumber,
    /// The work that is counted.
    pub(crate) counted: Counted,
    /// A return probe may be prepared on whatever stack a call is made: see `bpf/core/return_safety.bpf.h`.
    pub(crate) may_always_return: bool,
}

impl Attach {
    /// Whether a function is probed at its entry alone: because an exception may leave it, or because it runs code of the
    /// program, which may switch to another stack before the function returns, and the kernel could not be kept from
    /// killing the program then.
    fn has_no_return(&self, id: FunctionId) -> bool {
        let cannot = |f: &Function| may_throw(f) || (!self.may_always_return && runs_callbacks(f));
        catalogue().get(id).is_some_and(cannot)
    }

    /// The programs that a function is probed by. A session declines its return by itself.
    fn programs(&self, id: FunctionId) -> &'static [(ProgramName, Way)] {
        let entry_only = self.entry_only || (self.tier != Tier::Session && self.has_no_return(id));
        programs(self.tier, entry_only, self.bare)
    }

    fn cookie(&self, f: &PlannedFunction) -> u64 {
        u64::from(self.library) << 32 | u64::from(f.function.0)
    }
}

/// The programs of a tier, and how each is attached. Entries first: they make returns safe (`bpf/core/return_safety.bpf.h`). What
/// begins before all are in is not observed.
pub(crate) fn programs(tier: Tier, entry_only: bool, bare: bool) -> &'static [(ProgramName, Way)] {
    match (tier, bare) {
        (Tier::Session | Tier::Multi, true) if entry_only => &[(ProgramName::BareMultiEntry, Way::Multi)],
        (Tier::Perf, true) if entry_only => &[(ProgramName::BarePerfEntry, Way::Perf)],
        (Tier::Session, true) => &[(ProgramName::BareSession, Way::Session)],
        (Tier::Multi, true) => {
            &[(ProgramName::BareMultiEntry, Way::Multi), (ProgramName::BareMultiReturn, Way::MultiReturn)]
        }
        (Tier::Perf, true) => {
            &[(ProgramName::BarePerfEntry, Way::Perf), (ProgramName::BarePerfReturn, Way::PerfReturn)]
        }
        (Tier::Session | Tier::Multi, false) if entry_only => &[(ProgramName::CallMultiEntry, Way::Multi)],
        (Tier::Perf, false) if entry_only => &[(ProgramName::CallPerfEntry, Way::Perf)],
        (Tier::Session, false) => &[(ProgramName::CallSession, Way::Session)],
        (Tier::Multi, false) => {
            &[(ProgramName::CallMultiEntry, Way::Multi), (ProgramName::CallMultiReturn, Way::MultiReturn)]
        }
        (Tier::Perf, false) => {
            &[(ProgramName::CallPerfEntry, Way::Perf), (ProgramName::CallPerfReturn, Way::PerfReturn)]
        }
    }
}

/// The program that counts calls as they begin.
pub(crate) fn tally(tier: Tier) -> &'static (ProgramName, Way) {
    match tier {
        Tier::Session | Tier::Multi => &(ProgramName::TallyMulti, Way::Multi),
        Tier::Perf => &(ProgramName::TallyPerf, Way::Perf),
    }
}

/// Functions that are probed together, by the same programs.
type Group<'a> = (&'a [(ProgramName, Way)], Vec<&'a PlannedFunction>);

/// Those that one link can hold: on perf each has its own.
fn groups<'a>(
    functions: &[&'a PlannedFunction],
    how: Attach,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Vec<Group<'a>> {
    let programs_of = |f: &PlannedFunction| match collect(f.function) {
        Collect::Entries if !how.bare => std::slice::from_ref(tally(how.tier)),
        _ => how.programs(f.function),
    };
    let most = if how.tier == Tier::Perf { 1 } else { usize::MAX };
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &function in functions {
        let programs = programs_of(function);
        match groups.iter_mut().rfind(|(others, group)| *others == programs && group.len() < most) {
            Some((_, group)) => group.push(function),
            None => groups.push((programs, vec![function])),
        }
    }
    groups
}

/// Attaches one library.
pub(crate) fn attach(
    object: &Object,
    keeper: &mut Keeper,
    target: &Target,
    how: Attach,
    apart: &Apart,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<Attached, CaptureError> {
    fill_rows(object, &target.functions, how, apart, collect)?;
    let patience = Patience::new(target.library.may_stall, how.tier);
    attach_within(keeper, target, how, apart, collect, patience)
}

/// The same once the table is filled. Where it cannot be done, or not in time, nothing stays behind.
fn attach_within(
    keeper: &mut Keeper,
    target: &Target,
    how: Attach,
    apart: &Apart,
    collect: &dyn Fn(FunctionId) -> Collect,
    mut patience: Patience,
) -> Result<Attached, CaptureError> {
    let library = &target.library;
    let mut attached = Attached {
        path: library.path.clone(),
        id: library.id,
        is_foreign: library.open_path != library.path,
        functions: 0,
        skipped: Vec::new(),
        observed_since_ns: None,
        links: Vec::new(),
        apart: Vec::new(),
        points: target.functions.iter().map(|f| (f.function, f.point.cost)).collect(),
        how,
        file: ProbedFile { path: library.open_path.clone(), expected: library.opened },
        may_stall: library.may_stall,
    };
    for planned in target.functions.iter().filter(|f| catalogue().get(f.function).is_some_and(may_throw)) {
        let reason = format!(
            "{}: a C++ exception may leave it, so only its entry is probed (`nothrow = true` in the hook says that none does)",
            planned.name
        );
        attached.skipped.push(Skipped::function(&library.path, reason));
    }
    match attach_all(keeper, target, apart, &mut attached, collect, &mut patience) {
        Ok(()) => Ok(attached),
        Err(error) => {
            keeper.detach_later(attached.into_links().collect());
            Err(error)
        }
    }
}

/// Probes every function of a library that can be.
fn attach_all(
    keeper: &mut Keeper,
    target: &Target,
    apart: &Apart,
    attached: &mut Attached,
    collect: &dyn Fn(FunctionId) -> Collect,
    patience: &mut Patience,
) -> Result<(), CaptureError> {
    let (how, library, file) = (attached.how, &target.library, attached.file.clone());
    let is_counted = |id| !matches!(collect(id), Collect::Failures | Collect::Aside);
    // of what is not counted nobody knows how often it is called
    let (alone, together): (Vec<_>, Vec<_>) =
        target.functions.iter().partition(|f| is_counted(f.function) && apart.takes(f.function));
    let mut last_error = attach_alone(keeper, apart, &alone, attached, collect, patience)?;
    let mut groups = groups(&together, how, collect);
    // the kernel takes a group whole or not at all, so a group that fails is halved until the culprit stands alone
    while let Some((programs, group)) = groups.pop() {
        match attach_group(keeper, how, &file, (programs, &group), patience) {
            Ok(links) => {
                attached.functions += group.len();
                attached.links.extend(links);
            }
            // the others would have to wait for the same, or would not find it either
            Err(error) if error.is_stall() || error.is_gone() => return Err(error),
            Err(_) if group.len() > 1 => {
                let (left, right) = group.split_at(group.len() / 2);
                groups.extend([(programs, left.to_vec()), (programs, right.to_vec())]);
            }
            Err(error) => {
                let name = group.first().map_or("", |f| f.name.as_str());
                attached.skipped.push(Skipped::function(&library.path, format!("{name}: {error}")));
                last_error = Some(error);
            }
        }
    }
    match last_error {
        Some(error) if attached.functions == 0 => Err(error),
        _ => Ok(()),
    }
}

/// Gives each of these functions links of its own; what went wrong last comes back. The first one that has to wait for
/// too long is the last one: the others would have to wait for the same.
fn attach_alone(
    keeper: &mut Keeper,
    apart: &Apart,
    functions: &[&PlannedFunction],
    attached: &mut Attached,
    collect: &dyn Fn(FunctionId) -> Collect,
    patience: &mut Patience,
) -> Result<Option<CaptureError>, CaptureError> {
    let mut last_error = None;
    for &planned in functions {
        let is_tallied = collect(planned.function) == Collect::Entries;
        let mut function = ApartFunction { planned: planned.clone(), is_tallied, links: Vec::new() };
        if !apart.is_left_out(planned.function) {
            match function.attach(keeper, attached.how, &attached.file, patience) {
                Ok(links) => function.links = links,
                Err(error) if error.is_stall() || error.is_gone() => return Err(error),
                Err(error) => {
                    let reason = format!("{}: {error}", planned.name);
                    attached.skipped.push(Skipped::function(&attached.path, reason));
                    last_error = Some(error);
                    continue;
                }
            }
            attached.functions += 1;
        }
        attached.apart.push(function);
    }
    Ok(last_error)
}

fn fill_rows(
    object: &Object,
    functions: &[PlannedFunction],
    how: Attach,
    apart: &Apart,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<(), CaptureError> {
    let map = map_of(object, MapName::Functions)?;
    for planned in functions {
        let Some(function) = catalogue().get(planned.function) else { continue };
        let mut row = row(function, collect(planned.function), how.counted);
        row.flags |= if how.has_no_return(planned.function) { number::FUNCTION_ENTRY_ONLY } else { 0 };
        // its probes in other files may still be in
        row.flags |= if apart.is_left_out(planned.function) { number::FUNCTION_PAUSED } else { 0 };
        map.update(&planned.function.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))?;
    }
    Ok(())
}

fn attach_group(
    keeper: &mut Keeper,
    how: Attach,
    file: &ProbedFile,
    (programs, group): (&[(ProgramName, Way)], &[&PlannedFunction]),
    patience: &mut Patience,
) -> Result<Vec<LinkId>, CaptureError> {
    let points: Vec<_> = group.iter().map(|f| (f.point.offset, how.cookie(f))).collect();
    let mut links = Vec::new();
    for (name, way) in programs {
        match link(keeper, *name, *way, file, points.clone(), patience) {
            Ok(link) => links.push(link),
            Err(error) => {
                keeper.detach(links);
                return Err(error);
            }
        }
    }
    Ok(links)
}

/// Attaches the program that holds processes while libraries are mapped.
pub(crate) fn attach_loader(
    keeper: &mut Keeper,
    tier: Tier,
    loader: &Loader,
) -> Result<LinkId, CaptureError> {
    // two's complement: the program adds it back
    let distance = loader.r_debug_address.map_or(0, |r| r.wrapping_sub(loader.debug_state_address));
    let (name, way) = match tier {
        Tier::Perf => (ProgramName::LoaderPerf, Way::Perf),
        Tier::Multi | Tier::Session => (ProgramName::LoaderMulti, Way::Multi),
    };
    link(
        keeper,
        name,
        way,
        &ProbedFile { path: loader.path.clone(), expected: None },
        vec![(loader.debug_state_offset, distance)],
        &mut Patience::new(false, tier),
    )
}

fn link(
    keeper: &mut Keeper,
    name: ProgramName,
    way: Way,
    file: &ProbedFile,
    points: Vec<(u64, u64)>,
    patience: &mut Patience,
) -> Result<LinkId, CaptureError> {
    let program = keeper.program(name)?;
    keeper
        .attach(Probes { program, way, file: file.clone(), points }, patience)
        .map_err(|source| CaptureError::Attach { path: file.path.clone(), source: source.into() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuprobe_discover::{Library, ProbePoint};
    use gpuprobe_event::Api;

    use super::*;

    fn target() -> Target {
        let path = PathBuf::from("/x/libcuda.so.1");
        let library = Library {
            path: path.clone(),
            open_path: path,
            id: FileId { dev: 1, inode: 7 },
            opened: None,
            kind: Api::Driver,
            soname: String::new(),
            cuda_major: None,
            is_static: false,
            may_stall: false,
            functions: Vec::new(),
        };
        let planned = |name: &&str| {
            let function = catalogue().lookup(Api::Driver, None, name).unwrap().id;
            let point = ProbePoint { offset: 0, entry: 0, cost: ProbeCost::Emulated };
            PlannedFunction { function, name: (*name).to_owned(), point }
        };
        let names = ["cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxCreate_v2", "cuModuleLoad"];
        Target { library, functions: names.iter().map(planned).collect() }
    }

    /// Probes a library with a link for each of its functions, which fails.
    fn attach_in_vain(keeper: &mut Keeper, patience: Patience) -> CaptureError {
        let how = Attach {
            tier: Tier::Perf,
            entry_only: true,
            bare: false,
            library: 1,
            counted: Counted::default(),
            may_always_return: true,
        };
        let collect = |_| Collect::Stream;
        attach_within(keeper, &target(), how, &Apart::default(), &collect, patience).unwrap_err()
    }

    #[test]
    fn nothing_stays_of_a_library_that_is_replaced_while_it_is_probed() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::without_file_at_third(folder.path(), ProgramName::CallPerfEntry);
        let error = attach_in_vain(&mut keeper, Patience::new(false, Tier::Perf));
        assert!(error.is_gone() && !error.is_stall(), "{error}");
        let others = std::fs::read_to_string(folder.path().join("others")).unwrap();
        assert_eq!(others, "detach-later 1 2\n");
    }

    #[test]
    fn nothing_stays_of_a_library_that_could_not_be_probed_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::stuck_at_third(folder.path(), ProgramName::CallPerfEntry);
        let error = attach_in_vain(&mut keeper, Patience::of(Duration::from_millis(100)));
        assert!(error.is_own_stall(), "{error}");
        assert_eq!(keeper.let_go(folder.path()), "detach-later 1 2 3\n");
    }
}
