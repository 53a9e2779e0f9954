//! Options, headings, lines and tables of the summary.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use crate::table::{Align, rows};
use crate::units::{fitted, printable};

/// Longer names are shortened even with `full_names`: a trace may contain any name.
const LONGEST_NAME: usize = 4000;
/// The width of names for which columns of numbers are omitted.
const ENOUGH_NAME: usize = 40;
/// The smallest width of a name, however wide the numbers are.
const LEAST_NAME: usize = 16;
const LEAST_WIDTH: usize = 40;

/// How the summary is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// The most rows of the tables of functions and CUDA kernels; other tables have fewer. 0: all rows.
    pub rows: usize,
    /// Names of CUDA kernels and commands in full.
    pub full_names: bool,
    /// Also calls that were made inside other calls, below them.
    pub nested: bool,
    /// Calls that compilers insert are counted in one line, unless there are no others.
    pub hides_internal: bool,
}

impl Default for SummaryOptions {
    fn default() -> Self {
        Self { width: 100, rows: 6, full_names: false, nested: false, hides_internal: false }
    }
}

impl SummaryOptions {
    /// The number of rows of functions and CUDA kernels.
    pub(super) fn most(&self) -> usize {
        if self.rows == 0 { usize::MAX } else { self.rows }
    }

    /// The number of rows of other tables.
    pub(super) fn few(&self) -> usize {
        if self.rows == 0 { usize::MAX } else { self.rows.div_ceil(3) }
    }
}

/// The name of a function, a process or an error, made safe for a terminal: a trace may contain any name.
pub(crate) fn name(text: &str) -> String {
    fitted(&printable(text), LONGEST_NAME).into_owned()
}

/// Appends a heading with an empty line before it.
pub(super) fn heading(out: &mut String, text: &str) {
    out.push('\n');
    out.push_str(text);
    out.push('\n');
}

/// Appends a line under a heading. Writing into a `String` cannot fail.
pub(super) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let written = writeln!(out, "  {text}");
    debug_assert!(written.is_ok());
}

/// Text in lines of at most a width, if its words allow that.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            out.push_str("\n  ");
            used = 2;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
}

/// A table whose first column is a name.
#[derive(Debug)]
pub(crate) struct NameTable {
    rows: Vec<Vec<String>>,
    align: Vec<Align>,
    /// Titles of columns that a narrow terminal does not show, the first first.
    optional: &'static [&'static str],
}

impl NameTable {
    /// Columns of numbers are aligned to the right, those in `texts` to the left.
    pub(crate) fn new(
        titles: &[&str],
        texts: &'static [&'static str],
        optional: &'static [&'static str],
    ) -> Self {
        let align = |(i, title): (usize, &&str)| match i == 0 || texts.contains(title) {
            true => Align::Left,
            false => Align::Right,
        };
        Self {
            align: titles.iter().enumerate().map(align).collect(),
            rows: vec![titles.iter().map(|&title| title.to_owned()).collect()],
            optional,
        }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Appends the table. Columns without a value are omitted, names are shortened to the width, and different names
    /// stay different. Full names that are too long have a line of their own.
    pub(crate) fn write(mut self, out: &mut String, options: &SummaryOptions) {
        let width = options.width.max(LEAST_WIDTH);
        for column in (1..self.align.len()).rev() {
            if self
                .rows
                .iter()
                .skip(1)
                .all(|row| row.get(column).is_none_or(|cell| cell == "-" || cell.is_empty()))
            {
                self.remove(column);
            }
        }
        let names = self.rows.iter().skip(1).filter_map(|row| row.first());
        let widest_name = names.map(|name| name.chars().count()).max().unwrap_or(0);
        let mut optional = self.optional.iter();
        while self.room(width) < widest_name.min(ENOUGH_NAME) {
            let Some(title) = optional.next() else { break };
            let column = self.rows.first().and_then(|titles| titles.iter().position(|text| text == title));
            column.into_iter().for_each(|column| self.remove(column));
        }
        let room = self.room(width).max(LEAST_NAME);
        let mut long = vec![None; self.rows.len()];
        // a long title is a heading
        if let Some(title) = self.rows.first_mut().and_then(|row| row.first_mut())
            && title.chars().count() > room
            && let Some(long) = long.first_mut()
        {
            *long = Some(std::mem::take(title));
        }
        if options.full_names {
            for (row, long) in self.rows.iter_mut().zip(&mut long) {
                let Some(cell) = row.first_mut() else { continue };
                if cell.chars().count() > room {
                    *long = Some(std::mem::take(cell));
                }
            }
        } else {
            self.shorten(room);
        }
        let mut text = String::new();
        rows(&mut text, "", &self.align, &self.rows);
        for (line, long) in text.lines().zip(long) {
            long.into_iter().for_each(|name| out.extend([name.as_str(), "\n"]));
            out.extend([line, "\n"]);
        }
    }

    /// Shortens names to a width. Of names that would become equal, the part from the first difference on is shown,
    /// and a number if that is not enough.
    fn shorten(&mut self, room: usize) {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.rows.iter().skip(1).filter_map(|row| row.first()) {
            let equal = groups.entry(fitted(name, room).into_owned()).or_default();
            if !equal.contains(name) {
                equal.push(name.clone());
            }
        }
        let mut shown: HashMap<String, String> = HashMap::new();
        let mut taken: HashMap<String, usize> = HashMap::new();
        for (short, equal) in &groups {
            let same = common_prefix(equal);
            for name in equal {
                let text = if equal.len() > 1 { from_difference(name, same, room) } else { short.clone() };
                let count = taken.entry(text.clone()).or_default();
                *count += 1;
                let suffix = if *count > 1 { format!(" #{count}") } else { String::new() };
                shown.insert(
                    name.clone(),
                    format!("{}{suffix}", fitted(&text, room.saturating_sub(suffix.len()))),
                );
            }
        }
        for cell in self.rows.iter_mut().skip(1).filter_map(|row| row.first_mut()) {
            shown.get(cell.as_str()).into_iter().for_each(|text| cell.clone_from(text));
        }
    }

    fn remove(&mut self, column: usize) {
        self.align.remove(column);
        self.rows.iter_mut().filter(|row| column < row.len()).for_each(|row| drop(row.remove(column)));
    }

    fn widest(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|t| t.chars().count()).max().unwrap_or(0)
    }

    /// The width that the other columns leave for names.
    fn room(&self, width: usize) -> usize {
        let others: usize = (1..self.align.len()).map(|column| self.widest(column) + 2).sum();
        width.saturating_sub(others)
    }
}

/// The number of characters that all names begin with.
fn common_prefix(names: &[String]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let same = |other: &String| first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    others.iter().map(same).min().unwrap_or(0)
}

/// The first characters of a name, and those from shortly before a place on.
fn from_difference(name: &str, at: usize, room: usize) -> String {
    const HEAD: usize = 12;
    const BEFORE: usize = 3;
    let from = at.saturating_sub(BEFORE);
    if from <= HEAD + 3 {
        return name.chars().take(room).collect();
    }
    let head = name.chars().take(HEAD).chain("...".chars());
    head.chain(name.chars().skip(from)).take(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(names: &[&str], options: &SummaryOptions) -> String {
        let mut table = NameTable::new(&["kernel", "calls", "errors", "grid"], &["grid"], &["grid"]);
        for name in names {
            table.push(vec![
                (*name).to_owned(),
                "1000000".to_owned(),
                "-".to_owned(),
                "65535x65535".to_owned(),
            ]);
        }
        let mut out = String::new();
        table.write(&mut out, options);
        out
    }

    #[test]
    fn columns_make_way_for_names_and_names_stay_different() {
        let options = SummaryOptions { width: 40, ..SummaryOptions::default() };
        assert_eq!(written(&["k"], &options), "kernel    calls  grid\nk       1000000  65535x65535\n");
        let names = ["a".repeat(50), format!("{}b{}", "a".repeat(25), "a".repeat(24))];
        let text = written(&names.each_ref().map(String::as_str), &options);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(!text.contains("grid") && text.contains("\naaaaaaaaaaaa...aaabaaa"), "{text}");
        let ends = ["b", "c"].map(|end| format!("{}{end}{}", "a".repeat(25), "é".repeat(90)));
        let more = ["d", "e"].map(|end| format!("{}{end}", ends[0]));
        let names: Vec<_> = ends.iter().chain(&more).map(String::as_str).collect();
        let text = written(&names, &options);
        let different: std::collections::HashSet<_> = text.lines().collect();
        assert!(different.len() == 5 && text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn full_names_have_lines_of_their_own() {
        let options = SummaryOptions { width: 40, full_names: true, ..SummaryOptions::default() };
        let long = "n".repeat(60);
        let text = written(&["k", &long], &options);
        assert_eq!(text, format!("kernel    calls\nk       1000000\n{long}\n        1000000\n"));
    }
}
