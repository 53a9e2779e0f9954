//! Names of errno values.
//!
//! The table is not taken from libc or nix: it has errors that only the Linux kernel knows (from 512 on), and a trace
//! has the same names wherever it is read.

use crate::name::Name;

/// The lowest return value of a system call that is an error.
const LEAST: i64 = -4095;

/// The errors of calls on devices, by number.
const NAMES: [(i64, &str); 48] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (3, "ESRCH"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (7, "E2BIG"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (18, "EXDEV"),
    (19, "ENODEV"),
    (20, "ENOTDIR"),
    (21, "EISDIR"),
    (22, "EINVAL"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (25, "ENOTTY"),
    (26, "ETXTBSY"),
    (27, "EFBIG"),
    (28, "ENOSPC"),
    (29, "ESPIPE"),
    (30, "EROFS"),
    (32, "EPIPE"),
    (33, "EDOM"),
    (34, "ERANGE"),
    (35, "EDEADLK"),
    (36, "ENAMETOOLONG"),
    (38, "ENOSYS"),
    (40, "ELOOP"),
    (61, "ENODATA"),
    (62, "ETIME"),
    (71, "EPROTO"),
    (75, "EOVERFLOW"),
    (84, "EILSEQ"),
    (95, "EOPNOTSUPP"),
    (105, "ENOBUFS"),
    (110, "ETIMEDOUT"),
    (116, "ESTALE"),
    (121, "EREMOTEIO"),
    (125, "ECANCELED"),
    (512, "ERESTARTSYS"),
    (514, "ERESTARTNOHAND"),
    (516, "ERESTART_RESTARTBLOCK"),
];

/// Whether the return value of a system call is an error.
pub fn is_error(result: i64) -> bool {
    (LEAST..0).contains(&result)
}

/// The name of an error, given as returned: negative.
pub fn name(result: i64) -> Name {
    let number = || Name::Owned(format!("errno {}", result.wrapping_neg()));
    known_name(result).map_or_else(number, Name::Borrowed)
}

/// The name of an error, if it has one.
pub fn known_name(result: i64) -> Option<&'static str> {
    let at = NAMES.binary_search_by_key(&result.wrapping_neg(), |row| row.0).ok()?;
    Some(NAMES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small_negative_numbers_with_names() {
        assert!(NAMES.is_sorted_by_key(|row| row.0));
        assert_eq!((name(-25), name(-1000)), (Name::Borrowed("ENOTTY"), Name::from("errno 1000")));
        // the highest addresses are negative numbers too
        assert!(is_error(-1) && is_error(-4095) && !is_error(-4096) && !is_error(0) && !is_error(i64::MIN));
    }
}
