//! Names that are too long to be shown. Whoever reads what is left of one must be able to tell it from another that
//! begins in the same way, so a name that was cut ends with a number that is made of all of it.

use std::borrow::Cow;

/// Bytes of [`mark`].
pub const MARK_BYTES: usize = 12;

/// What stands at the end of a name that was cut, `...~` and eight digits: the same for the same name, everywhere.
pub fn mark(name: &str) -> String {
    // FNV-1a: names are not many, and one who makes two alike has mixed up only his own
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("...~{hash:08x}")
}

/// A name in no more than so many bytes, with a mark at its end where it was cut. Less than a mark is never left.
pub fn cut(name: &str, limit: usize) -> Cow<'_, str> {
    if name.len() <= limit {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("{}{}", head(name, limit.saturating_sub(MARK_BYTES)), mark(name)))
}

/// The beginning of a text in no more than so many bytes, all of its letters whole.
pub fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_left_alone() {
        assert_eq!(cut("add(float*)", 11), "add(float*)");
        assert!(matches!(cut("é", 2), Cow::Borrowed("é")));
    }

    #[test]
    fn names_that_differ_behind_the_cut_stay_apart() {
        let (one, other) = (format!("{}a", "k".repeat(300)), format!("{}b", "k".repeat(300)));
        assert_ne!(cut(&one, 200), cut(&other, 200));
        assert_eq!(cut(&one, 200), cut(&one.clone(), 200));
        assert_eq!(cut(&one, 200).len(), 200);
        assert!(cut(&one, 200).starts_with("kkk"));
    }

    #[test]
    fn a_cut_is_between_letters_and_the_mark_is_whole() {
        let name = "é".repeat(100);
        let shown = cut(&name, 2 * MARK_BYTES + 1);
        assert_eq!(shown, format!("{}{}", "é".repeat(6), mark(&name)));
        assert_eq!(mark(&name).len(), MARK_BYTES);
        assert_eq!(cut(&name, 3), mark(&name));
        assert_eq!(mark(""), "...~811c9dc5");
    }
}
