//! The columns of the table of processes: which fit, and what they show.

use std::collections::HashMap;

use gpuprobe_analysis::view::{Column, ProcessRow, View};

use super::canvas::Ink;
use super::figures::{estimated, growth, or_dash, percent, rate, short_bytes, short_duration};

/// A pending call that is older than this is marked.
const OLD_NS: u64 = 10_000_000_000;

/// Columns in the order in which they are left out if there is no room, the last one first.
const BY_IMPORTANCE: [Column; 15] = [
    Column::Name,
    Column::Pid,
    Column::Host,
    Column::Live,
    Column::Launches,
    Column::Gpu,
    Column::Calls,
    Column::Growth,
    Column::Copies,
    Column::Errors,
    Column::Busy,
    Column::Pending,
    Column::User,
    Column::Container,
    Column::Cost,
];
/// The name gets at least this many columns.
const NAME: u16 = 14;

/// The width of a column, without the space after it.
fn width(column: Column) -> u16 {
    match column {
        Column::Host => 16,
        Column::Pid => 7,
        Column::User => 8,
        Column::Gpu => 5,
        Column::Busy => 4,
        Column::Live | Column::Growth => 9,
        Column::Launches => 8,
        Column::Copies | Column::Calls | Column::Errors => 6,
        Column::Pending => 26,
        Column::Cost => 5,
        Column::Container => 20,
        Column::Name => NAME,
    }
}

/// Texts start at the left, numbers end at the right.
pub(super) fn is_text(column: Column) -> bool {
    matches!(
        column,
        Column::Host | Column::User | Column::Gpu | Column::Pending | Column::Container | Column::Name
    )
}

/// The columns that fit into this width, with the first column of each and its width. The name takes what is left.
/// The host is a column only if there are several.
pub(super) fn fitting(total: u16, has_hosts: bool) -> Vec<(u16, u16, Column)> {
    let mut left = total;
    let mut chosen: Vec<Column> = Vec::new();
    for column in BY_IMPORTANCE.into_iter().filter(|column| has_hosts || *column != Column::Host) {
        let needed = width(column) + 1;
        if needed > left && !chosen.is_empty() {
            break;
        }
        left = left.saturating_sub(needed);
        chosen.push(column);
    }
    let mut x = 0;
    let mut placed = Vec::with_capacity(chosen.len());
    for column in Column::ALL.into_iter().filter(|column| chosen.contains(column)) {
        let extra = if column == Column::Name { left } else { 0 };
        let width = width(column) + extra;
        placed.push((x, width, column));
        x += width + 1;
    }
    placed
}

/// What a column shows of a process.
pub(super) fn cell(
    view: &View,
    row: &ProcessRow,
    column: Column,
    users: &HashMap<u32, String>,
) -> (String, Ink) {
    let plain = |text: String| (text, Ink::Plain);
    match column {
        Column::Host => plain(view.host_name(row.id.host).unwrap_or_default().to_owned()),
        Column::Pid => plain(row.id.pid.to_string()),
        Column::User => {
            plain(or_dash(row.uid.map(|uid| users.get(&uid).cloned().unwrap_or_else(|| uid.to_string()))))
        }
        Column::Gpu => {
            let numbers: Vec<_> = row.gpus.iter().map(u8::to_string).collect();
            plain(or_dash((!numbers.is_empty()).then(|| numbers.join(","))))
        }
        Column::Busy => plain(or_dash(row.gpu_percent.map(|percent| percent.to_string()))),
        Column::Live => plain(short_bytes(row.live_bytes)),
        Column::Growth => {
            let ink = if row.has_suspect { Ink::Alarm } else { Ink::Plain };
            (or_dash(row.growth_per_second.map(growth)), ink)
        }
        Column::Launches => {
            plain(or_dash(row.launches_per_second.map(|n| estimated(rate(n), row.has_estimated_launches))))
        }
        Column::Copies => {
            plain(or_dash(row.copies_per_second.map(|n| estimated(rate(n), row.has_estimated_copies))))
        }
        Column::Calls => {
            plain(or_dash(row.calls_share.map(|share| estimated(percent(share), row.has_estimated_calls))))
        }
        Column::Errors => {
            let is_new = row.errors_per_second.is_some_and(|rate| rate > 0.0);
            let ink = match row.errors {
                0 => Ink::Plain,
                _ if is_new => Ink::Alarm,
                _ => Ink::Warning,
            };
            (estimated(row.errors.to_string(), row.has_estimated_errors), ink)
        }
        Column::Pending => match &row.pending {
            Some(call) => {
                let ink = if is_stuck(row) { Ink::Alarm } else { Ink::Plain };
                (format!("{} {}", short_duration(call.age_ns), call.function), ink)
            }
            None => plain(String::new()),
        },
        Column::Cost => plain(or_dash(row.cost_share.map(percent))),
        Column::Container => plain(row.container.clone().unwrap_or_default()),
        Column::Name if row.has_exited => (format!("{} (exited)", row.name), Ink::Faint),
        Column::Name => plain(row.name.clone()),
    }
}

/// Whether a call of the process has not returned for long.
pub(super) fn is_stuck(row: &ProcessRow) -> bool {
    row.pending.as_ref().is_some_and(|call| call.age_ns > OLD_NS)
}

/// The pending call and the name in one column, for narrow screens.
pub(super) fn with_pending(view: &View, row: &ProcessRow, users: &HashMap<u32, String>) -> (String, Ink) {
    let (pending, ink) = cell(view, row, Column::Pending, users);
    (format!("{pending} {}", row.name), ink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_has_the_name_and_wide_screens_have_all_columns() {
        for width in 1..400 {
            for has_hosts in [false, true] {
                let placed = fitting(width, has_hosts);
                assert!(placed.iter().any(|(_, _, column)| *column == Column::Name), "{width}");
                let end = placed.iter().map(|(x, width, _)| x + width).max().unwrap();
                assert!(end <= width.max(NAME), "{width}: {placed:?}");
            }
        }
        let columns = |width| fitting(width, false).len();
        assert_eq!((columns(80), columns(120), columns(250)), (9, 12, 14));
        assert_eq!(fitting(250, true).len(), 15);
    }
}
