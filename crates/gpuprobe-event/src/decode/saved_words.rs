//! Which words of the arguments a probe saves, and where they are then.

use crate::catalogue::{Arg, ArgLoc, Function};

/// How many stack words a probe copies.
pub const MAX_STACK_WORDS: usize = 12;

/// The number of stack words with arguments.
pub fn stack_words(f: &Function) -> usize {
    let end = |a: &Arg| match a.loc() {
        ArgLoc::Stack { offset, bytes } => usize::from(offset + bytes).div_ceil(8),
        _ => 0,
    };
    f.args.iter().flatten().map(end).max().unwrap_or(0).min(MAX_STACK_WORDS)
}

/// The structs of a function that are passed as pointers to copies: the register with the pointer, and the number of words.
/// A probe saves them behind the words of the stack. A struct that does not fit there is not among them.
pub fn copied_structs(f: &Function) -> Vec<(u8, usize)> {
    let copied = |arg: &Arg| match arg.loc() {
        ArgLoc::Indirect { register, word, bytes } => {
            let words = usize::from(bytes).div_ceil(8);
            (usize::from(word) + words <= MAX_STACK_WORDS).then_some((register, words))
        }
        _ => None,
    };
    f.args.iter().flatten().filter_map(copied).collect()
}

/// The words in which an argument was passed, of the saved registers and stack words.
pub(super) fn words_of<'a>(arg: &Arg, registers: &'a [u64], stack: &'a [u64]) -> Option<&'a [u64]> {
    match arg.loc() {
        ArgLoc::Register { first, count } => registers.get(usize::from(first)..usize::from(first + count)),
        ArgLoc::Stack { offset, bytes } => {
            let first = usize::from(offset / 8);
            stack.get(first..first + usize::from(bytes).div_ceil(8))
        }
        ArgLoc::Indirect { word, bytes, .. } => {
            let first = usize::from(word);
            stack.get(first..first + usize::from(bytes).div_ceil(8))
        }
        ArgLoc::Vector => None,
    }
}
