//! File names as the Linux kernel shows them in /proc.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Written by the Linux kernel after the name of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// A name shown in /proc without the mark of deletion.
pub fn without_deleted_mark(shown: &[u8]) -> &[u8] {
    shown.strip_suffix(DELETED).unwrap_or(shown)
}

/// A path from a name shown in /proc: without the mark of deletion, and with octal escapes such as `\\012` decoded.
pub(crate) fn path_from_proc(shown: &[u8]) -> PathBuf {
    let mut rest = without_deleted_mark(shown);
    let mut name = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        let octal = rest.get(1..4).filter(|_| first == b'\\').and_then(byte_of_octal);
        name.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &rest[4..] } else { after };
    }
    PathBuf::from(OsString::from_vec(name))
}

fn byte_of_octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(path_from_proc(b"/a\\040b\\012c"), Path::new("/a b\nc"));
        assert_eq!(path_from_proc(b"/a\\09\\999\\"), Path::new("/a\\09\\999\\"));
    }
}
