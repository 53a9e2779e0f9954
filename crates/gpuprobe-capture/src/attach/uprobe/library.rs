//! Attaches to one library: fills the table of functions, then links the probes.

use std::collections::HashMap;
use std::path::PathBuf;

use gpuprobe_discover::{FailurePoint, FileId, Loader, PlannedFunction, ProbeCost, Skipped, Target};
use gpuprobe_event::{Function, FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags, Object};

use crate::attach::helper::helper_client::{HelperClient, LinkId, Patience};
use crate::attach::helper::request::{ProbedFile, Probes};
use crate::attach::uprobe::detachable_probes::DetachableProbes;
use crate::error::CaptureError;
use crate::function_table::function_row::{may_throw, row, runs_callbacks};
use crate::host::support::Tier;
use crate::load::collect::{Collect, CountedOps};
use crate::load::probe_programs::{
    UprobeKind, entry_count_program, failure_program, lossless_program, programs, tensor_program,
};
use crate::wire::object_handles::map_of;
use crate::wire::{LibraryNumber, MapName, ProgramName, as_bytes, number};

/// A probed library.
#[derive(Debug)]
pub struct Attached {
    /// Where it was found.
    pub path: PathBuf,
    pub id: FileId,
    /// Opened through another process's mounts, which the probes keep busy.
    pub is_foreign: bool,
    /// How many functions are probed.
    pub functions: usize,
    /// How many failure points are probed.
    pub failure_points: usize,
    /// The functions that are not probed, with the reason.
    pub skipped: Vec<Skipped>,
    /// Since when its calls are observed, on the monotonic clock.
    pub observed_since_ns: Option<u64>,
    pub(crate) links: Vec<LinkId>,
    /// Those of the sampled functions, during a turn.
    pub(crate) turn_links: Vec<LinkId>,
    /// Its sampled functions could not be attached lately.
    pub(crate) has_missed_turn: bool,
    /// Functions with their own links.
    pub(crate) detachable: Vec<DetachableFunction>,
    pub(crate) points: HashMap<FunctionId, ProbeCost>,
    pub(crate) options: AttachOptions,
    /// The file as the attach helper can open it.
    pub(crate) file: ProbedFile,
    /// Its file system may hang.
    pub(crate) may_stall: bool,
}

/// A function whose probes can be detached alone.
#[derive(Debug)]
pub(crate) struct DetachableFunction {
    pub(crate) planned: PlannedFunction,
    counts_entries: bool,
    /// Empty while it is sampled.
    pub(crate) links: Vec<LinkId>,
}

impl DetachableFunction {
    pub(crate) fn attach(
        &self,
        helper: &mut HelperClient,
        options: AttachOptions,
        file: &ProbedFile,
        patience: &mut Patience,
    ) -> Result<Vec<LinkId>, CaptureError> {
        attach_group(helper, options, file, (self.programs(options), &[&self.planned]), patience)
    }

    pub(crate) fn programs(&self, options: AttachOptions) -> &'static [(ProgramName, UprobeKind)] {
        match self.counts_entries && !options.bare {
            true => std::slice::from_ref(entry_count_program(options.tier)),
            false => options.programs(self.planned.function),
        }
    }
}

impl Attached {
    /// How many BPF links its probes have.
    pub fn links(&self) -> usize {
        self.links.len()
            + self.turn_links.len()
            + self.detachable.iter().map(|f| f.links.len()).sum::<usize>()
    }

    pub(crate) fn into_links(self) -> impl Iterator<Item = LinkId> {
        let links = self.links.into_iter().chain(self.turn_links);
        links.chain(self.detachable.into_iter().flat_map(|f| f.links))
    }
}

/// The settings for attaching to a library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachOptions {
    pub(crate) tier: Tier,
    /// Without return probes.
    pub(crate) entry_only: bool,
    /// With programs that do nothing.
    pub(crate) bare: bool,
    /// The number that its calls are sent with.
    pub(crate) library: LibraryNumber,
    /// The number of the turn that probes are attached for; 0 for those that stay.
    pub(crate) turn: u16,
    /// The GPU operations that are counted.
    pub(crate) counted: CountedOps,
    /// Calls that are streamed wait while the ring is half full.
    pub(crate) lossless: bool,
    /// Whether a return probe can be prepared on whatever stack a call is made: see `bpf/core/return_safety.bpf.h`.
    pub(crate) may_always_return: bool,
}

impl AttachOptions {
    /// Whether only the entry of a function is probed: because a C++ exception may leave it, or because it runs code
    /// of the program. That code may switch to another stack before the function returns, and the Linux kernel would
    /// then kill the program.
    fn has_no_return(&self, id: FunctionId) -> bool {
        let cannot = |f: &Function| may_throw(f) || (!self.may_always_return && runs_callbacks(f));
        catalogue().get(id).is_some_and(cannot)
    }

    /// The programs for a function. A session program itself skips the return of such functions.
    fn programs(&self, id: FunctionId) -> &'static [(ProgramName, UprobeKind)] {
        let entry_only = self.entry_only || (self.tier != Tier::Session && self.has_no_return(id));
        programs(self.tier, entry_only, self.bare)
    }

    fn cookie(&self, function: FunctionId) -> u64 {
        u64::from(self.turn) << number::COOKIE_TURN | u64::from(self.library) << 32 | u64::from(function.0)
    }

    fn cookie_of_failure(&self, point: &FailurePoint) -> u64 {
        self.cookie(point.function) | u64::from(point.register) << number::STATUS_SHIFT
    }
}

/// Functions that are probed by the same programs through the same links.
type Group<'a> = (&'a [(ProgramName, UprobeKind)], Vec<&'a PlannedFunction>);

/// Groups functions for links. On the perf tier each function has its own.
fn groups<'a>(
    functions: &[&'a PlannedFunction],
    options: AttachOptions,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Vec<Group<'a>> {
    let programs_of = |f: &PlannedFunction| match collect(f.function) {
        Collect::EntryCount if !options.bare => std::slice::from_ref(entry_count_program(options.tier)),
        Collect::Tensors => std::slice::from_ref(tensor_program(options.tier)),
        _ => options.programs(f.function),
    };
    let most = if options.tier == Tier::Perf { 1 } else { usize::MAX };
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
    helper: &mut HelperClient,
    target: &Target,
    options: AttachOptions,
    detachable: &DetachableProbes,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<Attached, CaptureError> {
    fill_rows(object, &target.functions, options, detachable, collect)?;
    let patience = Patience::new(target.library.may_stall, options.tier);
    attach_within(helper, target, options, detachable, collect, patience)
}

/// The same after the table is filled. If it fails, or takes too long, no probe stays attached.
fn attach_within(
    helper: &mut HelperClient,
    target: &Target,
    options: AttachOptions,
    detachable: &DetachableProbes,
    collect: &dyn Fn(FunctionId) -> Collect,
    mut patience: Patience,
) -> Result<Attached, CaptureError> {
    let library = &target.library;
    let mut attached = Attached {
        path: library.path.clone(),
        id: library.id,
        is_foreign: library.open_path != library.path,
        functions: 0,
        failure_points: 0,
        skipped: Vec::new(),
        observed_since_ns: None,
        links: Vec::new(),
        turn_links: Vec::new(),
        has_missed_turn: false,
        detachable: Vec::new(),
        points: target.functions.iter().map(|f| (f.function, f.point.cost)).collect(),
        options,
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
    match attach_all(helper, target, detachable, &mut attached, collect, &mut patience) {
        Ok(()) => Ok(attached),
        Err(error) => {
            helper.detach_later(attached.into_links().collect());
            Err(error)
        }
    }
}

/// Probes every function of a library that can be probed.
fn attach_all(
    helper: &mut HelperClient,
    target: &Target,
    detachable: &DetachableProbes,
    attached: &mut Attached,
    collect: &dyn Fn(FunctionId) -> Collect,
    patience: &mut Patience,
) -> Result<(), CaptureError> {
    let (options, library, file) = (attached.options, &target.library, attached.file.clone());
    let is_counted = |id| !matches!(collect(id), Collect::Failures | Collect::Tensors | Collect::StateOnly);
    // without a count it is not known how often a function is called
    let (separate, together): (Vec<_>, Vec<_>) =
        target.functions.iter().partition(|f| is_counted(f.function) && detachable.includes(f.function));
    let mut last_error = attach_detachable(helper, detachable, &separate, attached, collect, patience)?;
    let mut groups = groups(&together, options, collect);
    // the Linux kernel accepts a group whole or not at all, so a group that fails is split in halves until the
    // culprit is found
    while let Some((programs, group)) = groups.pop() {
        match attach_group(helper, options, &file, (programs, &group), patience) {
            Ok(links) => {
                attached.functions += group.len();
                attached.links.extend(links);
                attached.links.extend(attach_lossless(helper, options, &file, &group, collect, patience)?);
            }
            // all other groups would hang in the same file system, or not find the file either
            Err(error) if error.is_stall() || error.is_removed() => return Err(error),
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
    attach_failure_points(helper, target, attached, patience)?;
    match last_error {
        Some(error) if attached.functions == 0 => Err(error),
        _ => Ok(()),
    }
}

/// Probes all failure points of a library by one link. They are not needed for anything else, so that a Linux kernel
/// which refuses them costs only these failures.
fn attach_failure_points(
    helper: &mut HelperClient,
    target: &Target,
    attached: &mut Attached,
    patience: &mut Patience,
) -> Result<(), CaptureError> {
    let options = attached.options;
    let program =
        failure_program(options.tier).filter(|_| !target.failure_points.is_empty() && !options.bare);
    let Some((name, kind)) = program else { return Ok(()) };
    let points = target.failure_points.iter();
    let points: Vec<_> = points.map(|point| (point.offset, options.cookie_of_failure(point))).collect();
    let count = points.len();
    match link(helper, name, kind, &attached.file, points, patience) {
        Ok(link) => {
            attached.links.push(link);
            attached.failure_points = count;
        }
        Err(error) if error.is_stall() || error.is_removed() => return Err(error),
        Err(error) => {
            let reason = format!("failures in the runtime itself are not counted: {error}");
            attached.skipped.push(Skipped::function(&attached.path, reason));
        }
    }
    Ok(())
}

/// Gives each of these functions its own links, and returns the last error. Stops at the first one that takes too
/// long: the others would hang in the same file system.
fn attach_detachable(
    helper: &mut HelperClient,
    detachable: &DetachableProbes,
    functions: &[&PlannedFunction],
    attached: &mut Attached,
    collect: &dyn Fn(FunctionId) -> Collect,
    patience: &mut Patience,
) -> Result<Option<CaptureError>, CaptureError> {
    let mut last_error = None;
    for &planned in functions {
        let counts_entries = collect(planned.function) == Collect::EntryCount;
        let mut function = DetachableFunction { planned: planned.clone(), counts_entries, links: Vec::new() };
        if !detachable.is_detached(planned.function) {
            match function.attach(helper, attached.options, &attached.file, patience) {
                Ok(links) => function.links = links,
                Err(error) if error.is_stall() || error.is_removed() => return Err(error),
                Err(error) => {
                    let reason = format!("{}: {error}", planned.name);
                    attached.skipped.push(Skipped::function(&attached.path, reason));
                    last_error = Some(error);
                    continue;
                }
            }
        }
        attached.functions += 1;
        attached.detachable.push(function);
    }
    Ok(last_error)
}

fn fill_rows(
    object: &Object,
    functions: &[PlannedFunction],
    options: AttachOptions,
    detachable: &DetachableProbes,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<(), CaptureError> {
    let map = map_of(object, MapName::Functions)?;
    for planned in functions {
        let Some(function) = catalogue().get(planned.function) else { continue };
        let mut row = row(function, collect(planned.function), options.counted);
        row.flags |= if options.has_no_return(planned.function) { number::FUNCTION_ENTRY_ONLY } else { 0 };
        row.flags |= detachable.flags(planned.function);
        map.update(&planned.function.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))?;
    }
    Ok(())
}

pub(super) fn attach_group(
    helper: &mut HelperClient,
    options: AttachOptions,
    file: &ProbedFile,
    (programs, group): (&[(ProgramName, UprobeKind)], &[&PlannedFunction]),
    patience: &mut Patience,
) -> Result<Vec<LinkId>, CaptureError> {
    let points: Vec<_> = group.iter().map(|f| (f.point.offset, options.cookie(f.function))).collect();
    let mut links = Vec::new();
    for (name, kind) in programs {
        match link(helper, *name, *kind, file, points.clone(), patience) {
            Ok(link) => links.push(link),
            Err(error) => {
                helper.detach(links);
                return Err(error);
            }
        }
    }
    Ok(links)
}

/// Lets the calls wait that are streamed, if none may be lost.
fn attach_lossless(
    helper: &mut HelperClient,
    options: AttachOptions,
    file: &ProbedFile,
    group: &[&PlannedFunction],
    collect: &dyn Fn(FunctionId) -> Collect,
    patience: &mut Patience,
) -> Result<Option<LinkId>, CaptureError> {
    let is_streamed = |f: &&&PlannedFunction| {
        options.lossless && matches!(collect(f.function), Collect::Stream | Collect::CountAndStream)
    };
    let points: Vec<_> =
        group.iter().filter(is_streamed).map(|f| (f.point.offset, options.cookie(f.function))).collect();
    match lossless_program(options.tier).filter(|_| !points.is_empty()) {
        Some((name, kind)) => link(helper, name, kind, file, points, patience).map(Some),
        None => Ok(None),
    }
}

/// Attaches the program that pauses processes while libraries are mapped.
pub(crate) fn attach_loader(
    helper: &mut HelperClient,
    tier: Tier,
    loader: &Loader,
) -> Result<LinkId, CaptureError> {
    // two's complement: the BPF program adds it back
    let distance = loader.r_debug_address.map_or(0, |r| r.wrapping_sub(loader.debug_state_address));
    let (name, kind) = match tier {
        Tier::Perf => (ProgramName::LoaderPerf, UprobeKind::Perf),
        Tier::Multi | Tier::Session => (ProgramName::LoaderMulti, UprobeKind::Multi),
    };
    link(
        helper,
        name,
        kind,
        &ProbedFile { path: loader.path.clone(), expected: None },
        vec![(loader.debug_state_offset, distance)],
        &mut Patience::new(false, tier),
    )
}

pub(super) fn link(
    helper: &mut HelperClient,
    name: ProgramName,
    kind: UprobeKind,
    file: &ProbedFile,
    points: Vec<(u64, u64)>,
    patience: &mut Patience,
) -> Result<LinkId, CaptureError> {
    let program = helper.program(name)?;
    helper
        .attach(Probes { program, kind, file: file.clone(), points }, patience)
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
            is_behind_loader: false,
            may_stall: false,
            functions: Vec::new(),
        };
        let planned = |name: &&str| {
            let function = catalogue().lookup(Api::Driver, None, name).unwrap().id;
            let point = ProbePoint { offset: 0, entry: 0, cost: ProbeCost::Emulated };
            PlannedFunction { function, name: (*name).to_owned(), point }
        };
        let names = ["cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxCreate_v2", "cuModuleLoad"];
        let functions = names.iter().map(planned).collect();
        Target { library, functions, failure_points: Vec::new() }
    }

    /// Attaches a library with a link for each of its functions, which fails.
    fn attach_and_fail(helper: &mut HelperClient, patience: Patience) -> CaptureError {
        let options = AttachOptions {
            tier: Tier::Perf,
            entry_only: true,
            bare: false,
            library: 1,
            turn: 0,
            counted: CountedOps::default(),
            lossless: false,
            may_always_return: true,
        };
        let collect = |_| Collect::Stream;
        attach_within(helper, &target(), options, &DetachableProbes::default(), &collect, patience)
            .unwrap_err()
    }

    #[test]
    fn no_probe_stays_in_a_library_that_is_replaced_while_it_is_probed() {
        let folder = tempfile::tempdir().unwrap();
        let mut helper = HelperClient::without_file_at_third(folder.path(), ProgramName::CallPerfEntry);
        let error = attach_and_fail(&mut helper, Patience::new(false, Tier::Perf));
        assert!(error.is_removed() && !error.is_stall(), "{error}");
        let others = std::fs::read_to_string(folder.path().join("others")).unwrap();
        assert_eq!(others, "detach-later 1 2\n");
    }

    #[test]
    fn no_probe_stays_in_a_library_that_could_not_be_probed_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut helper = HelperClient::stuck_at_third(folder.path(), ProgramName::CallPerfEntry);
        let error = attach_and_fail(&mut helper, Patience::of(Duration::from_millis(100)));
        assert!(error.is_own_stall(), "{error}");
        assert_eq!(helper.let_go(folder.path()), "detach-later 1 2 3\n");
    }
}
