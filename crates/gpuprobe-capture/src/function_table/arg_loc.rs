//! Where probes find the arguments of a function.

use gpuprobe_event::catalogue::{Arg, Place};

use crate::wire::{gp_place, number};

/// The register or stack word of an argument; the default if a probe cannot find it.
pub(crate) fn arg_loc(arg: Option<&Arg>) -> gp_place {
    let nowhere = gp_place::default();
    let Some(arg) = arg else { return nowhere };
    match arg.place() {
        Place::Register { first, .. } => gp_place { kind: number::PLACE_IN_REGISTER, index: first },
        Place::Stack { offset, .. } => match u8::try_from(offset / 8) {
            Ok(index) => gp_place { kind: number::PLACE_ON_STACK, index },
            Err(_) => nowhere,
        },
        Place::Indirect { .. } | Place::Vector => nowhere,
    }
}
