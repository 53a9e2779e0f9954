//! Shortens names that are too long to show. A shortened name ends with a hash of the whole name, so that names with
//! the same beginning stay distinguishable.

use std::borrow::Cow;

/// Bytes of [`mark`].
pub const MARK_BYTES: usize = 12;

/// The end of a shortened name, `...~` and eight digits: the same for the same name, everywhere.
pub fn mark(name: &str) -> String {
    // FNV-1a: there are few names, and a process that makes two collide only confuses its own
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("...~{hash:08x}")
}

/// A name in at most `limit` bytes, with a mark at its end if it was shortened. The result is never shorter than the
/// mark.
pub fn cut(name: &str, limit: usize) -> Cow<'_, str> {
    if name.len() <= limit {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("{}{}", head(name, limit.saturating_sub(MARK_BYTES)), mark(name)))
}

/// The beginning of a text in at most `bytes` bytes, cut between characters.
pub fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_fits_is_unchanged() {
        assert_eq!(cut("add(float*)", 11), "add(float*)");
        assert!(matches!(cut("é", 2), Cow::Borrowed("é")));
    }

    #[test]
    fn names_that_differ_after_the_cut_stay_distinct() {
        let (one, other) = (format!("{}a", "k".repeat(300)), format!("{}b", "k".repeat(300)));
        assert_ne!(cut(&one, 200), cut(&other, 200));
        assert_eq!(cut(&one, 200), cut(&one.clone(), 200));
        assert_eq!(cut(&one, 200).len(), 200);
        assert!(cut(&one, 200).starts_with("kkk"));
    }

    #[test]
    fn a_cut_is_between_characters_and_the_mark_is_complete() {
        let name = "é".repeat(100);
        let shown = cut(&name, 2 * MARK_BYTES + 1);
        assert_eq!(shown, format!("{}{}", "é".repeat(6), mark(&name)));
        assert_eq!(mark(&name).len(), MARK_BYTES);
        assert_eq!(cut(&name, 3), mark(&name));
        assert_eq!(mark(""), "...~811c9dc5");
    }
}
