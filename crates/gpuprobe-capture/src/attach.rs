//! Plans to links: rows into the table of functions, then probes on the library.

use std::path::{Path, PathBuf};

use gpuprobe_discover::{FileId, Loader, PlannedFunction, Skipped, Target};
use gpuprobe_event::{FunctionId, catalogue};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ProgramMut, UprobeMultiOpts, UprobeOpts};

use crate::error::CaptureError;
use crate::files::raise_limit;
use crate::kernel_names::LibraryNumber;
use crate::rows::row;
use crate::support::Tier;
use crate::wire::as_bytes;

/// What the probes of a function do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Count in the kernel: nothing to lose, a fixed cost.
    Count,
    /// One record a call.
    Stream,
    /// No more than what kernels are called.
    Names,
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
    links: Vec<Link>,
}

impl Attached {
    /// How many links hold the probes.
    pub fn links(&self) -> usize {
        self.links.len()
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
    /// The number that its calls will bear.
    pub(crate) library: LibraryNumber,
}

impl Attach {
    fn cookie(&self, f: &PlannedFunction) -> u64 {
        u64::from(self.library) << 32 | u64::from(f.function.0)
    }
}

/// Attaches one library.
pub(crate) fn attach(
    object: &Object,
    target: &Target,
    how: Attach,
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<Attached, CaptureError> {
    let tier = how.tier;
    fill_rows(object, &target.functions, collect)?;
    let library = &target.library;
    let mut attached = Attached {
        path: library.path.clone(),
        id: library.id,
        is_foreign: library.open_path != library.path,
        functions: 0,
        skipped: Vec::new(),
        links: Vec::new(),
    };
    if tier == Tier::Perf {
        raise_limit();
    }
    let binary = &library.open_path;
    let mut last_error = None;
    let mut groups: Vec<&[PlannedFunction]> = match tier {
        Tier::Perf => target.functions.chunks(1).collect(),
        Tier::Multi | Tier::Session => vec![&target.functions],
    };
    // the kernel takes a group whole or not at all, so a group that fails is halved until the culprit stands alone
    while let Some(group) = groups.pop() {
        match attach_group(object, how, binary, group) {
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

fn fill_rows(
    object: &Object,
    functions: &[PlannedFunction],
    collect: &dyn Fn(FunctionId) -> Collect,
) -> Result<(), CaptureError> {
    let map = object.maps().find(|m| m.name() == "functions").ok_or(CaptureError::Missing("functions"))?;
    for planned in functions {
        let Some(function) = catalogue().get(planned.function) else { continue };
        let row = row(function, collect(planned.function));
        map.update(&planned.function.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))?;
    }
    Ok(())
}

fn attach_group(
    object: &Object,
    how: Attach,
    path: &Path,
    group: &[PlannedFunction],
) -> Result<Vec<Link>, CaptureError> {
    let multi = |name: &'static str, retprobe: bool, session: bool| {
        let opts = UprobeMultiOpts {
            offsets: group.iter().map(|f| f.point.offset as usize).collect(),
            cookies: group.iter().map(|f| how.cookie(f)).collect(),
            retprobe,
            session,
            ..UprobeMultiOpts::default()
        };
        // no pid: processes are filtered by the program, so that forks are followed
        program(object, name)?
            .attach_uprobe_multi_with_opts(-1, path, "", opts)
            .map_err(|source| CaptureError::Attach { path: path.to_owned(), source })
    };
    let perf = |name: &'static str, retprobe: bool, f: &PlannedFunction| {
        let opts = UprobeOpts { cookie: how.cookie(f), retprobe, ..UprobeOpts::default() };
        program(object, name)?
            .attach_uprobe_with_opts(-1, path, f.point.offset as usize, opts)
            .map_err(|source| CaptureError::Attach { path: path.to_owned(), source })
    };
    // returns first: an entry without its return would count as a call that never ends
    match how.tier {
        Tier::Session if !how.entry_only => Ok(vec![multi("call_session", false, true)?]),
        Tier::Session | Tier::Multi if how.entry_only => Ok(vec![multi("call_multi_entry", false, false)?]),
        Tier::Session | Tier::Multi => {
            Ok(vec![multi("call_multi_return", true, false)?, multi("call_multi_entry", false, false)?])
        }
        Tier::Perf => {
            let mut links = Vec::with_capacity(2 * group.len());
            for f in group {
                if !how.entry_only {
                    links.push(perf("call_perf_return", true, f)?);
                }
                links.push(perf("call_perf_entry", false, f)?);
            }
            Ok(links)
        }
    }
}

/// Attaches the program that holds processes while libraries are mapped.
pub(crate) fn attach_loader(object: &Object, tier: Tier, loader: &Loader) -> Result<Link, CaptureError> {
    // two's complement: the program adds it back
    let distance = loader.r_debug_address.map_or(0, |r| r.wrapping_sub(loader.debug_state_address));
    let offset = loader.debug_state_offset as usize;
    let link = match tier {
        Tier::Perf => {
            let opts = UprobeOpts { cookie: distance, ..UprobeOpts::default() };
            program(object, "loader_perf")?.attach_uprobe_with_opts(-1, &loader.path, offset, opts)
        }
        Tier::Multi | Tier::Session => {
            let opts = UprobeMultiOpts {
                offsets: vec![offset],
                cookies: vec![distance],
                ..UprobeMultiOpts::default()
            };
            program(object, "loader_multi")?.attach_uprobe_multi_with_opts(-1, &loader.path, "", opts)
        }
    };
    link.map_err(|source| CaptureError::Attach { path: loader.path.clone(), source })
}
