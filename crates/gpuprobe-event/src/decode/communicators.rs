//! Communicators of NCCL: the handles that calls make, and unique ids.

use std::borrow::Cow;

use super::{MAX_OUTS, Words, argument_number};
use crate::catalogue::{ArgLoc, Function, Pointee, UNIQUE_ID};
use crate::event::{Name, Value};

/// The argument that is a list of handles which the call makes.
pub(super) fn made_list(f: &Function) -> Option<u8> {
    f.roles.made.filter(|_| f.roles.count.is_some())
}

/// Replaces the pointer to a list of handles by its first entries, by their position. If nothing was read the pointer
/// stays.
pub(super) fn show_made_list(f: &Function, words: &Words<'_>, values: &mut [(Name, Value)]) {
    const POSITIONS: [&str; MAX_OUTS] = ["0", "1", "2", "3"];
    let count = argument_number(f, f.roles.count, words).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let entries = POSITIONS.into_iter().zip(words.outs).take(count);
    let entries: Vec<_> =
        entries.map_while(|(at, word)| Some((Cow::Borrowed(at), Value::Hex(word?)))).collect();
    let list = f.roles.made.and_then(|list| values.get_mut(usize::from(list)));
    if let Some((_, value)) = list.filter(|_| !entries.is_empty()) {
        *value = Value::Struct(entries);
    }
}

/// The hash of a unique id, by which NCCL's log and its RAS service name the communicator. Of several ids NCCL uses the
/// first.
pub(super) fn unique_id(f: &Function, words: &Words<'_>) -> Option<u64> {
    match (f.pointee, f.arg(f.roles.id)?.loc()) {
        (Some((_, Pointee::UniqueId)), _) => {
            words.pointee.get(..UNIQUE_ID).map(|id| hash(id.iter().copied()))
        }
        (_, ArgLoc::Stack { offset, .. }) => {
            let copied = words.stack.get(usize::from(offset / 8)..).filter(|copied| !copied.is_empty())?;
            // an id is longer than what is copied of the stack, but NCCL uses less and sets the rest to 0
            let copied = copied.iter().flat_map(|word| word.to_le_bytes());
            Some(hash(copied.chain(std::iter::repeat(0)).take(UNIQUE_ID)))
        }
        _ => None,
    }
}

/// The hash of an id, as NCCL computes it.
fn hash(id: impl Iterator<Item = u8>) -> u64 {
    // a plain `char` has a sign only on x86-64
    let extended = |byte: u8| match cfg!(target_arch = "aarch64") {
        true => u64::from(byte),
        false => i64::from(byte.cast_signed()).cast_unsigned(),
    };
    id.fold(5381, |hash: u64, byte| hash.wrapping_mul(33) ^ extended(byte))
}
