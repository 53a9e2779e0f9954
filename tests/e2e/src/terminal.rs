//! What may be printed on a terminal.

/// Maximum bytes of a printed line.
const MOST_LINE: usize = 1000;

/// Checks that printed text has no control characters and no overlong line.
pub fn assert_harmless(text: &str) {
    assert_no_control(text);
    for line in text.lines() {
        assert!(line.len() < MOST_LINE, "{} bytes: {line:.200}", line.len());
    }
}

/// Checks that printed text has no control characters.
pub fn assert_no_control(text: &str) {
    for line in text.lines() {
        // the display indents its rows by tabs
        let bad = line
            .trim_start_matches('\t')
            .chars()
            .find(|c| c.is_control() || ('\u{2028}'..='\u{202e}').contains(c));
        assert_eq!(bad, None, "{line}");
    }
}
