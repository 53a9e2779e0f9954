//! Tables of names by number and release.

use std::sync::LazyLock;

use super::version::{Version, branch};
use crate::table::{in_ranges, lines};

/// One name of one number.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) number: u32,
    pub(super) name: &'static str,
    /// One bit for each release that has this name, by [`Version::index`].
    pub(super) releases: u32,
}

/// One table of names, sorted by number.
#[derive(Debug)]
pub(super) struct Names(Vec<Row>);

impl Names {
    fn parse(table: &'static str) -> Self {
        let mut rows: Vec<_> = lines(table).filter_map(parse_row).collect();
        rows.sort_by_key(|row| row.number);
        Self(rows)
    }

    /// The name of a number in a release. A program built for another release may use a number that this release does
    /// not have; then the name of the nearest release is used.
    pub(super) fn get(&self, number: u32, version: Version) -> Option<&'static str> {
        let rows = self.of_number(number);
        rows.iter().min_by_key(|row| distance(row.releases, version.index())).map(|row| row.name)
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|row| row.name == name).map(|row| row.number)
    }

    #[cfg(test)]
    pub(super) fn rows(&self) -> &[Row] {
        &self.0
    }

    fn of_number(&self, number: u32) -> &[Row] {
        let first = self.0.partition_point(|row| row.number < number);
        let rows = &self.0[first..];
        &rows[..rows.partition_point(|row| row.number == number)]
    }
}

/// The distance between a release and the nearest of a set.
fn distance(releases: u32, from: usize) -> usize {
    (0..Version::known().len())
        .filter(|at| releases & (1 << at) != 0)
        .map(|at| at.abs_diff(from))
        .min()
        .unwrap_or(usize::MAX)
}

/// `number name`, and ranges of branches if not all releases have the name.
fn parse_row(line: &'static str) -> Option<Row> {
    let mut words = line.split(' ');
    let (number, name) = (parse_number(words.next()?)?, words.next()?);
    let ranges = words.next();
    let has = |release: &str| {
        ranges.is_none_or(|ranges| branch(release).is_some_and(|wanted| in_ranges(ranges, wanted, branch)))
    };
    let releases = Version::known().iter().enumerate().filter(|(_, release)| has(release));
    let releases = releases.fold(0, |bits, (at, _)| bits | (1 << at));
    (releases != 0 && words.next().is_none()).then_some(Row { number, name, releases })
}

fn parse_number(text: &str) -> Option<u32> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok())
}

macro_rules! tables {
    ($($(#[$doc:meta])* $function:ident $file:literal),* $(,)?) => {
        $($(#[$doc])*
        pub(super) fn $function() -> &'static Names {
            static NAMES: LazyLock<Names> =
                LazyLock::new(|| Names::parse(include_str!(concat!("../../driver/", $file))));
            &NAMES
        })*

        /// Every table, with its text.
        #[cfg(test)]
        pub(super) fn all() -> Vec<(&'static Names, &'static str)> {
            vec![$(($function(), include_str!(concat!("../../driver/", $file)))),*]
        }
    };
}

tables! {
    /// Commands of the resource manager and its kernel interface, by the number of their requests.
    escape_names "escapes.tbl",
    /// Classes of objects.
    class_names "classes.tbl",
    /// Control commands of objects.
    control_names "controls.tbl",
    /// Commands of unified memory.
    uvm_names "uvm.tbl",
    /// Results of commands.
    status_names "statuses.tbl",
    /// XID errors.
    xid_names "xids.tbl",
}

/// The name of an NV_STATUS: `NV_OK`, `NV_ERR_NO_MEMORY`.
pub fn status_name(status: u32) -> Option<&'static str> {
    status_names().get(status, Version::newest())
}
