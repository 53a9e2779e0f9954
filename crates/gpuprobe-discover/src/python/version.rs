//! The version of an interpreter.

use std::fmt;

/// A version of CPython. The last number is not known of every interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonVersion {
    pub major: u8,
    pub minor: u8,
    pub micro: Option<u8>,
}

impl PythonVersion {
    pub(super) fn new(major: u8, minor: u8) -> Self {
        Self { major, minor, micro: None }
    }

    /// From the number in which CPython states it, 0x030c01f0 for 3.12.1; with whether it is a release or a release
    /// candidate, whose structures do not change any more.
    pub(super) fn from_number(number: u64) -> (Self, bool) {
        let [_, _, _, _, major, minor, micro, stage] = number.to_be_bytes();
        (Self { major, minor, micro: Some(micro) }, stage >= 0xc0)
    }

    /// In a file name or path: `libpython3.12.so.1.0`, `python3.9`, `_bisect.cpython-310-x86_64-linux-gnu.so`.
    pub(super) fn in_name(name: &[u8]) -> Option<Self> {
        let after = |mark: &[u8]| {
            let at = name.windows(mark.len()).position(|window| window == mark)?;
            let rest = name.get(at + mark.len()..)?;
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            let (digits, rest) = rest.split_at(digits);
            // free-threaded builds append a letter, which is for the interpreter itself to state
            let is_end = !matches!(rest.first(), Some(b) if b.is_ascii_alphabetic() && *b != b't');
            let minor = std::str::from_utf8(digits).ok()?.parse().ok()?;
            is_end.then_some(Self::new(3, minor))
        };
        after(b"python3.").or_else(|| after(b".cpython-3"))
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.micro.map_or(Ok(()), |micro| write!(f, ".{micro}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_has_the_version_and_the_stage() {
        let (version, is_final) = PythonVersion::from_number(0x030c_01f0);
        assert_eq!((version.to_string().as_str(), is_final), ("3.12.1", true));
        assert!(PythonVersion::from_number(0x030e_00c2).1, "a release candidate");
        assert!(!PythonVersion::from_number(0x030e_00b4).1, "a beta");
        assert!(!PythonVersion::from_number(0x030e_00a4).1, "an alpha");
    }

    #[test]
    fn names_of_files_have_the_version() {
        for (name, minor) in [
            ("/usr/lib/libpython3.12.so.1.0", 12),
            ("/usr/bin/python3.9", 9),
            ("/opt/python3.13t", 13),
            ("/x/lib-dynload/_bisect.cpython-310-x86_64-linux-gnu.so", 10),
            ("/usr/lib/python3.11/lib-dynload/_json.so", 11),
        ] {
            assert_eq!(PythonVersion::in_name(name.as_bytes()), Some(PythonVersion::new(3, minor)), "{name}");
        }
        for name in
            ["/usr/bin/python3", "libpython3.so", "python3.x", "python3.999", "", ".cpython-3", "python2.7"]
        {
            assert_eq!(PythonVersion::in_name(name.as_bytes()), None, "{name}");
        }
    }
}
