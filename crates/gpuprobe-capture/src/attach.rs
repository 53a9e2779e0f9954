//! Plans to links: rows into the table of functions, then probes on the library.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gpuprobe_discover::{FileId, Loader, PlannedFunction, ProbeCost, Skipped, Target};
use gpuprobe_event::{FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags, Object, ProgramMut};

use crate::error::CaptureError;
use crate::keeper::{Keeper, LinkId};
use crate::kernel_names::LibraryNumber;
use crate::object::Apart;
use crate::request::{Probes, Way};
use crate::rows::row;
use crate::support::Tier;
use crate::task::Counted;
use crate::wire::as_bytes;

/// What the probes of a function do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Count in the kernel: nothing to lose, a fixed cost.
    Count,
    /// One record a call.
    Stream,
    /// Count failures that no call inside is the cause of.
    Failures,
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
    pub(crate) links: Vec<LinkId>,
    /// Functions with links of their own.
    pub(crate) apart: Vec<ApartFunction>,
    pub(crate) points: HashMap<FunctionId, ProbeCost>,
    pub(crate) how: Attach,
    /// What the kernel can open.
    pub(crate) open_path: PathBuf,
}

/// A function whose probes can be taken out alone.
#[derive(Debug)]
pub(crate) struct ApartFunction {
    pub(crate) planned: PlannedFunction,
    /// None while it is left out.
    pub(crate) links: Vec<LinkId>,
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

pub(crate) fn program<'o>(object: &'o Object, name: &'static str) -> Result<ProgramMut<'o>, CaptureError> {
    object.progs_mut().find(|p| p.name() == name).ok_or(CaptureError::Missing(name))
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
}

impl Attach {
    fn cookie(&self, f: &PlannedFunction) -> u64 {
        u64::from(self.library) << 32 | u64::from(f.function.0)
    }

    /// The same for a function that has links of its own. Entries and returns apart, so that the entries can go first:
    /// calls that are open then still return.
    pub(crate) fn alone(self) -> Self {
        Self { tier: if self.tier == Tier::Session { Tier::Multi } else { self.tier }, ..self }
    }
}

/// The programs of a tier, and how each is attached. Returns first: an entry without its return would count as a call
/// that never ends.
pub(crate) fn programs(tier: Tier, entry_only: bool, bare: bool) -> &'static [(&'static str, Way)] {
    match (tier, bare) {
        (Tier::Session, true) => &[("bare_session", Way::Session)],
        (Tier::Multi, true) => &[("bare_multi_return", Way::MultiReturn), ("bare_multi_entry", Way::Multi)],
        (Tier::Perf, true) => &[("bare_perf_return", Way::PerfReturn), ("bare_perf_entry", Way::Perf)],
        (Tier::Session | Tier::Multi, false) if entry_only => &[("call_multi_entry", Way::Multi)],
        (Tier::Perf, false) if entry_only => &[("call_perf_entry", Way::Perf)],
        (Tier::Session, false) => &[("call_session", Way::Session)],
        (Tier::Multi, false) => &[("call_multi_return", Way::MultiReturn), ("call_multi_entry", Way::Multi)],
        (Tier::Perf, false) => &[("call_perf_return", Way::PerfReturn), ("call_perf_entry", Way::Perf)],
    }
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
    fill_rows(object, &target.functions, how.counted, collect)?;
    let library = &target.library;
    let mut attached = Attached {
        path: library.path.clone(),
        id: library.id,
        is_foreign: library.open_path != library.path,
        functions: 0,
        skipped: Vec::new(),
        links: Vec::new(),
        apart: Vec::new(),
        points: target.functions.iter().map(|f| (f.function, f.point.cost)).collect(),
        how,
        open_path: library.open_path.clone(),
    };
    let binary = &library.open_path;
    // of the others nobody knows how often they are called
    let is_apart = |id| matches!(collect(id), Collect::Count | Collect::Stream) && apart.takes(id);
    let (alone, together): (Vec<_>, Vec<_>) =
        target.functions.iter().cloned().partition(|f| is_apart(f.function));
    let mut last_error = attach_alone(keeper, how.alone(), apart, alone, &mut attached);
    let mut groups: Vec<&[PlannedFunction]> = match how.tier {
        Tier::Perf => together.chunks(1).collect(),
        Tier::Multi | Tier::Session => together.chunks(together.len().max(1)).collect(),
    };
    // the kernel takes a group whole or not at all, so a group that fails is halved until the culprit stands alone
    while let Some(group) = groups.pop() {
        match attach_group(keeper, how, binary, group) {
            Ok(links) => {
                attached.functions += group.len();
                attached.links.extend(links);
            }
            Err(error) if group.len() > 1 && last_error.is_none() && !binary.exists() => return Err(error),
            Err(_) if group.len() > 1 => {
                let (left, right) = group.split_at(group.len() / 2);
                groups.extend([left, right]);
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
        _ => Ok(attached),
    }
}

/// Gives each of these functions links of its own; what went wrong last comes back.
fn attach_alone(
    keeper: &mut Keeper,
    how: Attach,
    apart: &Apart,
    functions: Vec<PlannedFunction>,
    attached: &mut Attached,
) -> Option<CaptureError> {
    let mut last_error = None;
    for planned in functions {
        let mut links = Vec::new();
        if !apart.is_left_out(planned.function) {
            match attach_group(keeper, how, &attached.open_path, std::slice::from_ref(&planned)) {
                Ok(made) => links = made,
                Err(error) => {
                    let reason = format!("{}: {error}", planned.name);
                    attached.skipped.push(Skipped::function(&attached.path, reason));
                    last_error = Some(error);
                    continue;
                }
            }
            attached.functions += 1;
        }
        attached.apart.push(ApartFunction { planned, links });
    }
    last_error
}

fn fill_rows(
    object: &Object,
    functions: &[PlannedFunction],
    counted: Counted,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<(), CaptureError> {
    let map = object.maps().find(|m| m.name() == "functions").ok_or(CaptureError::Missing("functions"))?;
    for planned in functions {
        let Some(function) = catalogue().get(planned.function) else { continue };
        let row = row(function, collect(planned.function), counted);
        map.update(&planned.function.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))?;
    }
    Ok(())
}

pub(crate) fn attach_group(
    keeper: &mut Keeper,
    how: Attach,
    path: &Path,
    group: &[PlannedFunction],
) -> Result<Vec<LinkId>, CaptureError> {
    let points: Vec<_> = group.iter().map(|f| (f.point.offset, how.cookie(f))).collect();
    let mut links = Vec::new();
    for (name, way) in programs(how.tier, how.entry_only, how.bare) {
        match link(keeper, name, *way, path, points.clone()) {
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
        Tier::Perf => ("loader_perf", Way::Perf),
        Tier::Multi | Tier::Session => ("loader_multi", Way::Multi),
    };
    link(keeper, name, way, &loader.path, vec![(loader.debug_state_offset, distance)])
}

fn link(
    keeper: &mut Keeper,
    name: &'static str,
    way: Way,
    path: &Path,
    points: Vec<(u64, u64)>,
) -> Result<LinkId, CaptureError> {
    let program = keeper.program(name)?;
    keeper
        .attach(Probes { program, way, path: path.to_owned(), points })
        .map_err(|source| CaptureError::Attach { path: path.to_owned(), source: source.into() })
}
