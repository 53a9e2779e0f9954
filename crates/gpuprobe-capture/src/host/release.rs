//! The release of the Linux kernel.

use std::fs;

/// `uname -r`, read from /proc.
pub(crate) fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Major and minor number of a release such as `6.1.0-18-amd64`.
pub(crate) fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_numbers() {
        assert_eq!(version_of("6.18.44-fc-v310"), Some((6, 18)));
        assert_eq!(version_of("5.15"), Some((5, 15)));
        assert_eq!(version_of("strange"), None);
    }
}
