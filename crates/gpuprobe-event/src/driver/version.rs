//! Maps the version of NVIDIA's kernel modules to the nearest release in the tables.

use std::sync::LazyLock;

use crate::table::lines;

static RELEASES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| lines(include_str!("../../driver/releases.tbl")).collect());

/// A release of the tables, whose names are used for the loaded version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    release: usize,
    is_exact: bool,
}

impl Version {
    /// From the version that the kernel module reports (`580.159.04`): the release of the nearest branch, the older
    /// one of two at the same distance. Text that is not a version gets the newest release.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        if let Some(release) = RELEASES.iter().position(|known| *known == text) {
            return Self { release, is_exact: true };
        }
        let distance =
            |wanted: u32, known: &str| branch(known).map_or(u32::MAX, |known| known.abs_diff(wanted));
        let nearest = branch(text).and_then(|wanted| {
            let releases = RELEASES.iter().enumerate();
            releases.min_by_key(|(_, known)| distance(wanted, known)).map(|(release, _)| release)
        });
        nearest.map_or_else(Self::newest, |release| Self { release, is_exact: false })
    }

    /// The newest release, for an unknown version.
    pub fn newest() -> Self {
        Self { release: RELEASES.len().saturating_sub(1), is_exact: false }
    }

    /// The releases of the tables, in order.
    pub fn known() -> &'static [&'static str] {
        &RELEASES
    }

    /// Whether the names are those of exactly this version.
    pub fn is_exact(self) -> bool {
        self.is_exact
    }

    /// Whether they are those of another branch, where commands may differ.
    pub fn is_of_another_branch(self, text: &str) -> bool {
        branch(text.trim()) != branch(self.release())
    }

    /// Which names are used, for people.
    pub fn describe(self) -> String {
        match self.is_exact {
            true => format!("command names of {}", self.release()),
            false => format!(
                "command names of {}, the nearest of the known releases ({})",
                self.release(),
                RELEASES.join(", ")
            ),
        }
    }

    /// The release that the names come from.
    pub fn release(self) -> &'static str {
        RELEASES.get(self.release).copied().unwrap_or_default()
    }

    /// Its index in [`Version::known`].
    pub(super) fn index(self) -> usize {
        self.release
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::newest()
    }
}

/// The first number of a version. The tables identify releases by it.
pub(super) fn branch(version: &str) -> Option<u32> {
    let is_version = version.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    version.split('.').next().filter(|_| is_version)?.parse().ok()
}
