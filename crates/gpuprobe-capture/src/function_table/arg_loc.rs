//! Where probes find the arguments of a function.

use gpuprobe_event::catalogue::{Arg, ArgLoc};

use crate::wire::{gp_arg_loc, number};

/// The register or stack word of an argument; the default if a probe cannot find it.
pub(crate) fn arg_loc(arg: Option<&Arg>) -> gp_arg_loc {
    let nowhere = gp_arg_loc::default();
    let Some(arg) = arg else { return nowhere };
    match arg.loc() {
        ArgLoc::Register { first, .. } => gp_arg_loc { kind: number::ARG_IN_REGISTER, index: first },
        ArgLoc::Stack { offset, .. } => match u8::try_from(offset / 8) {
            Ok(index) => gp_arg_loc { kind: number::ARG_ON_STACK, index },
            Err(_) => nowhere,
        },
        ArgLoc::Indirect { .. } | ArgLoc::Vector => nowhere,
    }
}

/// The register or stack word that points to an argument, or is an argument that is a pointer.
pub(crate) fn pointer_loc(arg: Option<&Arg>) -> gp_arg_loc {
    match arg.map(Arg::loc) {
        Some(ArgLoc::Indirect { register }) => gp_arg_loc { kind: number::ARG_IN_REGISTER, index: register },
        _ => arg_loc(arg),
    }
}
