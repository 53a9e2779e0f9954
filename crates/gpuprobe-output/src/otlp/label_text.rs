//! Reads the labels of a series, which are kept as text.

use std::borrow::Cow;

/// The labels with these names, as text.
pub(super) fn only(text: &str, names: &[&str]) -> String {
    let kept: Vec<&str> =
        raw(text).filter(|(name, _, _)| names.contains(name)).map(|(.., whole)| whole).collect();
    kept.join(",")
}

/// The names and values of `name="value",...`, as the text formats of metrics write them.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    raw(text).map(|(name, value, _)| (name, unescaped(value)))
}

/// Name, escaped value, and the text of both.
fn raw(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (name, after) = rest.split_once("=\"")?;
        let end = closing_quote(after)?;
        let (value, after) = (after.get(..end)?, after.get(end + 1..)?);
        let whole = rest.get(..rest.len() - after.len())?;
        rest = after.strip_prefix(',').unwrap_or(after);
        Some((name, value, whole))
    })
}

/// Where the value ends.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some(c) => out.push(c),
                None => {}
            },
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(&str, String)> {
        pairs(text).map(|(name, value)| (name, value.into_owned())).collect()
    }

    #[test]
    fn values_are_unescaped() {
        assert_eq!(all(""), []);
        let text = r#"pid="7",process="a\"} \\n\nb,c=\"",x="größe 🦀",empty="""#;
        let expected = [("pid", "7"), ("process", "a\"} \\n\nb,c=\""), ("x", "größe 🦀"), ("empty", "")];
        assert_eq!(all(text), expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn some_labels_stay_as_they_are() {
        let text = r#"pid="7",process="a\"} \\,pid=",f="g""#;
        assert_eq!(only(text, &["process", "f"]), r#"process="a\"} \\,pid=",f="g""#);
        assert_eq!((only(text, &["f"]).as_str(), only(text, &[]).as_str()), (r#"f="g""#, ""));
    }

    #[test]
    fn a_text_that_is_cut_ends_the_labels() {
        assert_eq!(all(r#"a="1",b="2"#), [("a", "1".to_owned())]);
        assert_eq!(all(r#"a="1\"#), []);
        assert_eq!(all("a"), []);
    }
}
