//! The release of the Linux kernel.

use std::fs;

/// `uname -r`, read from /proc.
pub(crate) fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// The oldest release that gpuprobe runs on: the first with `bpf_loop`. The documentation and the package name it too.
pub(crate) const OLDEST: &str = "5.17";

/// Whether gpuprobe cannot run on this release.
pub(crate) fn is_too_old(release: &str) -> bool {
    version_of(release).is_some_and(|version| version_of(OLDEST).is_some_and(|oldest| version < oldest))
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
        assert!(is_too_old("5.16.20") && !is_too_old("5.17.0-rc1") && !is_too_old("strange"));
    }

    #[test]
    fn the_documentation_and_the_package_name_the_same_oldest_release() {
        for text in [
            include_str!("../../../../README.md"),
            include_str!("../../../../docs/requirements.md"),
            include_str!("../../../../packaging/deb/control"),
            include_str!("../../../../packaging/systemd/gpuprobe.service"),
        ] {
            assert!(text.contains(&format!("Linux {OLDEST} or newer")), "{text}");
        }
    }
}
