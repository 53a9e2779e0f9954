//! Attaches programs to tracepoints that the user has named. Each has its own program, loaded in a second object.

use std::ffi::CString;
use std::io;

use gpuprobe_discover::SkipCause;
use libbpf_rs::Object;

use crate::attach::bpf_link::BpfLink;
use crate::attach::linux::linux_link::{make_tracepoint_link, with_program};
use crate::load::hooks::{TracepointHook, Unprobed, accepted};
use crate::load::second_object::load_programs;
use crate::wire::ProgramName;

/// Attaches to these tracepoints, and returns those that cannot be attached.
pub(crate) fn attach(links: &mut Vec<BpfLink>, main: &Object, hooks: &[TracepointHook]) -> Vec<Unprobed> {
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

const NOT_THERE: &str = "the Linux kernel has no such tracepoint: its module is not loaded, or this kernel has another name for it \
                         (/sys/kernel/tracing/available_events lists all tracepoints)";

fn link(object: &Object, program: ProgramName, name: &str) -> io::Result<BpfLink> {
    // the Linux kernel names them without their groups
    let (_, name) = name.split_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let name = CString::new(name)?;
    with_program(object, program, |program| make_tracepoint_link(program, &name))
}
