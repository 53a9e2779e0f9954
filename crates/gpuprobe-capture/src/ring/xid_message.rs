//! Formats the message of a GPU error from a C format string and its arguments.

use std::iter::Peekable;
use std::str::Chars;

/// Larger widths are cut to this.
const MAX_WIDTH: usize = 64;

/// Formats a message. Conversions that are not supported, or have no argument, stay as they are.
pub(crate) fn format_message(format: &str, words: &[u64], text_of: impl Fn(usize) -> String) -> String {
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    let mut args = words.iter().enumerate();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let field = Field::parse(&mut chars);
        if field.kind == Some('%') {
            out.push('%');
            continue;
        }
        let value = args.next().and_then(|(index, word)| field.value(*word, || text_of(index)));
        match value {
            Some(value) => field.push(&value, &mut out),
            None => {
                out.push_str(&field.written);
                // the positions of the following arguments are not known any more
                args = [].iter().enumerate();
            }
        }
    }
    out
}

/// One conversion of a format, such as `%08x`.
#[derive(Debug, Default)]
struct Field {
    written: String,
    is_left: bool,
    has_zeros: bool,
    has_prefix: bool,
    width: usize,
    precision: Option<usize>,
    is_long: bool,
    kind: Option<char>,
}

impl Field {
    fn parse(chars: &mut Peekable<Chars<'_>>) -> Self {
        let mut field = Self { written: "%".to_owned(), ..Self::default() };
        while let Some(flag) = chars.next_if(|c| "-0#+ ".contains(*c)) {
            field.written.push(flag);
            field.is_left |= flag == '-';
            field.has_zeros |= flag == '0';
            field.has_prefix |= flag == '#';
        }
        field.width = field.number(chars).unwrap_or(0);
        if let Some(point) = chars.next_if_eq(&'.') {
            field.written.push(point);
            field.precision = Some(field.number(chars).unwrap_or(0));
        }
        while let Some(length) = chars.next_if(|c| "hlzjtq".contains(*c)) {
            field.written.push(length);
            field.is_long |= length != 'h';
        }
        field.kind = chars.next();
        field.written.extend(field.kind);
        field
    }

    fn number(&mut self, chars: &mut Peekable<Chars<'_>>) -> Option<usize> {
        let mut number = None;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            self.written.push(digit);
            let digit = digit.to_digit(10).unwrap_or(0) as usize;
            number = Some((number.unwrap_or(0) * 10 + digit).min(MAX_WIDTH));
        }
        number
    }

    fn value(&self, word: u64, text: impl FnOnce() -> String) -> Option<String> {
        let unsigned = if self.is_long { word } else { u64::from(word as u32) };
        let signed = if self.is_long { word as i64 } else { i64::from(word as i32) };
        let prefix = if self.has_prefix { "0x" } else { "" };
        Some(match self.kind? {
            'd' | 'i' => signed.to_string(),
            'u' => unsigned.to_string(),
            'x' => format!("{prefix}{unsigned:x}"),
            'X' => format!("{prefix}{unsigned:X}"),
            'p' => format!("{word:#x}"),
            'c' => char::from(word as u8).to_string(),
            's' => text().chars().take(self.precision.unwrap_or(usize::MAX)).collect(),
            _ => return None,
        })
    }

    fn push(&self, value: &str, out: &mut String) {
        let digits = if self.kind == Some('s') { 0 } else { self.precision.unwrap_or(0) };
        let is_text = matches!(self.kind, Some('s' | 'c'));
        let zeros = if self.has_zeros && !self.is_left && !is_text { self.width } else { digits };
        let missing = |width: usize| width.saturating_sub(value.chars().count());
        let padding = missing(self.width).saturating_sub(missing(zeros));
        let pad = |out: &mut String| (0..padding).for_each(|_| out.push(' '));
        if !self.is_left {
            pad(out);
        }
        let (sign, rest) = value.strip_prefix('-').map_or(("", value), |rest| ("-", rest));
        out.push_str(sign);
        (0..missing(zeros)).for_each(|_| out.push('0'));
        out.push_str(rest);
        if self.is_left {
            pad(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_texts(format: &str, words: &[u64], texts: &[&str]) -> String {
        format_message(format, words, |index| texts[index].to_owned())
    }

    #[test]
    fn a_message_of_the_kernel_module_is_formatted_with_numbers_and_texts() {
        let said = "pid='%d', name=%s, Ch %08x, intr %08x. MMU Fault: ENGINE %s";
        let texts = ["", "python3", "", "", "GRAPHICS"];
        assert_eq!(
            with_texts(said, &[436, 1, 8, 0x10, 1], &texts),
            "pid='436', name=python3, Ch 00000008, intr 00000010. MMU Fault: ENGINE GRAPHICS"
        );
    }

    #[test]
    fn conversions_are_formatted_as_in_c() {
        let one = |format: &str, word: u64| with_texts(format, &[word], &["text"]);
        assert_eq!(one("[%5d|", 42), "[   42|");
        assert_eq!(one("[%-5d|", 42), "[42   |");
        assert_eq!(one("[%05d|", (-42_i64) as u64), "[-0042|");
        assert_eq!(one("%d", u64::from(u32::MAX)), "-1");
        assert_eq!(one("%lld", u64::MAX), "-1");
        assert_eq!(one("%#x %%", 255), "0xff %");
        assert_eq!(one("%llX", 0xab_cdef_0123), "ABCDEF0123");
        assert_eq!(one("%x", 0xab_cdef_0123), "cdef0123".to_owned());
        assert_eq!(
            (one("%.2s", 1), one("%6s|", 1), one("%c", 65)),
            ("te".into(), "  text|".into(), "A".into())
        );
        assert_eq!(one("%.4x", 0xab), "00ab");
    }

    #[test]
    fn unsupported_conversions_stay_as_they_are() {
        assert_eq!(with_texts("%d of %d", &[1], &[""]), "1 of %d");
        assert_eq!(with_texts("%f, then %d", &[1, 2], &["", ""]), "%f, then %d");
        assert_eq!(with_texts("100%", &[1], &[""]), "100%");
        assert_eq!(with_texts("%", &[], &[]), "%");
        let wide = with_texts("%99999999999999999999d", &[1], &[""]);
        assert_eq!(wide.len(), MAX_WIDTH);
    }
}
