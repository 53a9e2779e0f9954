//! Labels as both text formats write them.

use std::fmt::{Arguments, Write};

/// Labels that are omitted if they have no value, as most do. An omitted label means the same as an empty one.
const OPTIONAL: [&str; 9] =
    ["pid", "process", "container_id", "container", "pod", "namespace", "ended", "numbering", "uuid"];

/// Appends `name="value",...` to a set of labels that begins at `start`.
pub(super) fn push(out: &mut String, start: usize, names: &[&str], values: &[&str]) {
    let mut comma = if out.len() > start { "," } else { "" };
    for (name, value) in names.iter().zip(values) {
        if value.is_empty() && OPTIONAL.contains(name) {
            continue;
        }
        out.push_str(comma);
        out.push_str(name);
        out.push_str("=\"");
        escape(out, value);
        out.push('"');
        comma = ",";
    }
}

/// A label's value without control characters. The formats allow them, but a NUL ends the text for some readers, so one
/// process could hide all others by its name. Line feeds stay, because they can be escaped.
pub(crate) fn clean(value: &str) -> String {
    value.chars().map(cleaned).collect()
}

fn cleaned(c: char) -> char {
    if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }
}

/// Appends a clean value, with the three characters escaped that both formats require.
fn escape(out: &mut String, value: &str) {
    // nearly all values are plain and need no escape
    if value.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'"' && b != b'\\') {
        out.push_str(value);
        return;
    }
    for c in value.chars().map(cleaned) {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Appends formatted text. Writing into a `String` cannot fail.
pub(super) fn put(out: &mut String, text: Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}
