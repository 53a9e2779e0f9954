//! Finds the end of a string.

use memchr::memchr2;

/// The place of the first quote or backslash.
#[inline]
pub(super) fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    const LOWEST: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = LOWEST << 7;
    // the lowest set bit is right, and only that is used
    let zeros = |word: u64| word.wrapping_sub(LOWEST) & !word & HIGHEST;
    // nearly all strings are short, and a search in longer ones takes a while to begin
    let mut at = 0;
    while let Some(first) = bytes.get(at..).and_then(<[u8]>::first_chunk)
        && at < 16
    {
        let word = u64::from_le_bytes(*first);
        let found = zeros(word ^ (LOWEST * u64::from(b'"'))) | zeros(word ^ (LOWEST * u64::from(b'\\')));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr2(b'"', b'\\', bytes.get(at..)?).map(|found| at + found)
}
