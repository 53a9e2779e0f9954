//! The ids of names.

/// FNV-1a; never 0, which stands for no name.
pub(crate) fn of(text: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let sum = text.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    sum.max(1)
}
