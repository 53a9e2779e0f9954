//! Where probes find the arguments of a function.

use gpuprobe_event::Function;
use gpuprobe_event::catalogue::{Arg, ArgLoc};

use crate::wire::{gp_arg_loc, gp_function, number};

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
        // the program for entries has copied the struct there
        ArgLoc::Indirect { word, .. } => gp_arg_loc { kind: number::ARG_ON_STACK, index: word },
        ArgLoc::Vector => nowhere,
    }
}

/// The register or stack word that points to an argument, or is an argument that is a pointer.
pub(crate) fn pointer_loc(arg: Option<&Arg>) -> gp_arg_loc {
    match arg.map(Arg::loc) {
        Some(ArgLoc::Indirect { register, .. }) => {
            gp_arg_loc { kind: number::ARG_IN_REGISTER, index: register }
        }
        _ => arg_loc(arg),
    }
}

/// The structs that are passed as pointers to copies, which the program for entries saves.
#[cfg(target_arch = "aarch64")]
pub(crate) fn add_copied_structs(f: &Function, row: &mut gp_function) {
    for (slot, (register, words)) in row.copied.iter_mut().zip(gpuprobe_event::decode::copied_structs(f)) {
        *slot = crate::wire::gp_copied_struct { pointer: register, words: u8::try_from(words).unwrap_or(0) };
    }
}

/// On x86-64 all structs are passed in registers or on the stack.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) fn add_copied_structs(_: &Function, _: &mut gp_function) {}

/// How many words are saved of the stack and of structs behind pointers.
pub(crate) fn saved_words(row: &gp_function) -> usize {
    #[cfg(target_arch = "aarch64")]
    let copied = row.copied.iter().map(|copied| usize::from(copied.words)).sum::<usize>();
    #[cfg(not(target_arch = "aarch64"))]
    let copied = 0;
    usize::from(row.stack_words) + copied
}
