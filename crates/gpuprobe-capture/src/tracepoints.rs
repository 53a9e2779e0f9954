//! Programs on tracepoints that the user has named. Each has a program of its own, loaded apart from the others.

use std::ffi::CString;
use std::io;

use gpuprobe_discover::SkipCause;
use gpuprobe_event::{Api, Function, catalogue};
use libbpf_rs::Object;

use crate::functions::{Refusal, Unprobed, load_programs, with_program};
use crate::link::{MadeLink, make_at_tracepoint};
use crate::load::CaptureConfig;
use crate::wire::ProgramName;

/// How many there can be at once; as many programs as `linux_tracepoints.bpf.h` has.
pub const MOST_TRACEPOINTS: usize = ProgramName::TRACEPOINT.len();

/// A tracepoint to be told of. The rows of those that are not refused follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct TracepointHook {
    /// Whose it is and what it is called there, `group:name`.
    pub name: String,
    /// Where a file of hooks asks for it.
    pub place: String,
    /// Why it is not to be.
    pub refused: Option<Refusal>,
}

impl TracepointHook {
    pub(crate) fn row(&self) -> Option<&'static Function> {
        catalogue().lookup(Api::Kernel, None, &self.name)
    }

    fn unprobed(&self, refusal: Refusal) -> Unprobed {
        Unprobed { name: self.name.clone(), place: Some(self.place.clone()), refusal }
    }
}

/// Those that have rows, in their order.
pub(crate) fn accepted(config: &[TracepointHook]) -> impl Iterator<Item = &TracepointHook> {
    config.iter().filter(|hook| hook.refused.is_none()).take(MOST_TRACEPOINTS)
}

/// Where their rows begin in the catalogue.
pub(crate) fn first_row(config: &CaptureConfig) -> u32 {
    accepted(&config.tracepoints).next().and_then(TracepointHook::row).map_or(u32::MAX, |row| row.id.0)
}

/// Has programs run at these tracepoints; tells of those where none does.
pub(crate) fn attach(links: &mut Vec<MadeLink>, main: &Object, hooks: &[TracepointHook]) -> Vec<Unprobed> {
    let refused = hooks.iter().filter_map(|hook| Some(hook.unprobed(hook.refused.clone()?)));
    let mut unprobed: Vec<_> = refused.collect();
    let wanted: Vec<_> = accepted(hooks).collect();
    let programs = &ProgramName::TRACEPOINT[..wanted.len()];
    let refuse = |hook: &TracepointHook, why| hook.unprobed((SkipCause::Refused, why));
    if wanted.is_empty() {
        return unprobed;
    }
    let object = match load_programs(main, |name| programs.contains(&name)) {
        Ok(object) => object,
        Err(error) => {
            let why = format!("its program does not load: {error}");
            unprobed.extend(wanted.into_iter().map(|hook| refuse(hook, why.clone())));
            return unprobed;
        }
    };
    for (hook, program) in wanted.into_iter().zip(programs) {
        match link(&object, *program, &hook.name) {
            Ok(link) => links.push(link),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                unprobed.push(hook.unprobed((SkipCause::NotThere, NOT_THERE.to_owned())));
            }
            Err(error) => unprobed.push(refuse(hook, error.to_string())),
        }
    }
    unprobed
}

const NOT_THERE: &str = "the kernel has no such tracepoint: its module is not loaded, or this kernel calls it otherwise \
                         (/sys/kernel/tracing/available_events lists those there are)";

fn link(object: &Object, program: ProgramName, name: &str) -> io::Result<MadeLink> {
    // the kernel knows them without their groups
    let (_, name) = name.split_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let name = CString::new(name)?;
    with_program(object, program, |program| make_at_tracepoint(program, &name))
}
