//! Explanations of the errors that GPUs report (XIDs).

use std::borrow::Cow;
use std::sync::LazyLock;

use super::names::xid_names;
use super::version::Version;
use crate::table::{in_ranges, lines};

const TABLE: &str = include_str!("../../driver/xid_meanings.tbl");

/// An XID error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// Its name in the headers of the kernel modules.
    pub name: &'static str,
    /// What it means; its name in lower case if no meaning is known.
    pub meaning: Cow<'static, str>,
    pub action: Option<&'static str>,
}

/// One row of the table: for which errors, what they mean, what to do.
#[derive(Debug)]
pub(super) struct Meaning {
    pub(super) numbers: &'static str,
    pub(super) meaning: &'static str,
    pub(super) action: Option<&'static str>,
}

impl Meaning {
    pub(super) fn is_of(&self, number: u32) -> bool {
        in_ranges(self.numbers, number, |text| text.parse().ok())
    }
}

static MEANINGS: LazyLock<Vec<Meaning>> = LazyLock::new(|| lines(TABLE).filter_map(parse_row).collect());

/// An XID by its number; `None` if no release has it.
pub fn xid(number: u32) -> Option<Xid> {
    let name = xid_names().get(number, Version::newest())?;
    let known = meanings().iter().find(|row| row.is_of(number));
    let meaning = known.map_or_else(|| Cow::Owned(from_name(name)), |row| Cow::Borrowed(row.meaning));
    Some(Xid { name, meaning, action: known.and_then(|row| row.action) })
}

pub(super) fn meanings() -> &'static [Meaning] {
    &MEANINGS
}

fn from_name(name: &str) -> String {
    name.strip_prefix("ROBUST_CHANNEL_").unwrap_or(name).to_ascii_lowercase().replace('_', " ")
}

fn parse_row(line: &'static str) -> Option<Meaning> {
    let mut columns = line.split(" | ");
    let row = Meaning { numbers: columns.next()?, meaning: columns.next()?, action: columns.next() };
    columns.next().is_none().then_some(row)
}
