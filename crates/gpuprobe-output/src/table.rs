//! Text tables with aligned columns.

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Appends rows as lines. Each column is as wide as its widest text, with two spaces between columns and none at the
/// end.
pub(crate) fn rows(out: &mut String, indent: &str, align: &[Align], rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter().filter_map(|r| r.get(column)).map(|t| t.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..align.len()).map(width).collect();
    for row in rows {
        let mut line = indent.to_owned();
        for (i, text) in row.iter().enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            let width = widths.get(i).copied().unwrap_or(0);
            line += gap;
            // not with a format width, which is limited to 65535 characters
            let padding = " ".repeat(width.saturating_sub(text.chars().count()));
            match align.get(i) {
                Some(Align::Right) => line.extend([&padding, text.as_str()]),
                _ => line.extend([text, padding.as_str()]),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// The width that a table with an indent of two leaves for one more column.
pub(crate) fn room(table: &[Vec<String>], width: usize) -> usize {
    let widest =
        |column: usize| table.iter().filter_map(|row| row.get(column)).map(|t| t.chars().count()).max();
    let columns = table.first().map_or(0, Vec::len);
    let used: usize = (0..columns).filter_map(widest).map(|width| width + 2).sum();
    width.saturating_sub(used + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_do_not_end_in_spaces() {
        let table = [vec!["name", "n"], vec!["a", "100"], vec!["ü", ""]];
        let table: Vec<Vec<String>> =
            table.iter().map(|r| r.iter().map(|&t| t.to_owned()).collect()).collect();
        let mut out = String::new();
        rows(&mut out, " ", &[Align::Left, Align::Right], &table);
        assert_eq!(out, " name    n\n a     100\n ü\n");
    }

    #[test]
    fn a_column_can_be_wider_than_a_format_width_allows() {
        let long = "x".repeat(70_000);
        let mut out = String::new();
        rows(
            &mut out,
            "",
            &[Align::Right, Align::Left],
            &[vec![long.clone(), "a".to_owned()], vec!["y".to_owned()]],
        );
        assert_eq!(out, format!("{long}  a\n{}y\n", " ".repeat(69_999)));
    }
}
