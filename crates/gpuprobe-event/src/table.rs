//! The format of the compiled-in tables. They are part of the program, so an invalid row is a bug that tests find; at
//! run time such a row is skipped.

/// The lines of a table without comments and empty lines.
pub(crate) fn lines(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|l| !l.is_empty() && !l.starts_with('#'))
}

/// `[header]` lines, each with the lines that follow it.
pub(crate) fn sections(table: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines(table) {
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            sections.push((header, Vec::new()));
        } else if let Some((_, body)) = sections.last_mut() {
            body.push(line);
        }
    }
    sections
}

/// Whether ranges such as `11.8,12.4-13.0` include a value; `rank` gives the order.
pub(crate) fn in_ranges<R: Copy + PartialOrd>(
    ranges: &str,
    wanted: R,
    rank: impl Fn(&str) -> Option<R>,
) -> bool {
    ranges.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((rank(first), rank(last)), (Some(first), Some(last)) if (first..=last).contains(&wanted))
    })
}
