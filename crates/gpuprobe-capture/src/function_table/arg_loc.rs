//! Where the arguments of a function lie.

use gpuprobe_event::catalogue::{Arg, Place};

use crate::wire::{gp_place, number};

/// Where an argument lies, as far as a probe can follow it.
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
