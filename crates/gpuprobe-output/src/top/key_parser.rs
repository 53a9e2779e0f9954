//! Keys and clicks from the bytes of a terminal, as xterm and its many relatives send them.

use super::Key;

/// The longest escape sequence. Longer ones are dropped.
const LONGEST: usize = 32;

/// Takes the keys at the start of what the terminal sent. A sequence that is not complete stays, unless `is_all` says
/// that no more bytes follow: then a single Esc is the key.
pub fn take_keys(bytes: &mut Vec<u8>, is_all: bool) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (key, length) = match parse(rest) {
            Parsed::Key(key, length) => (Some(key), length),
            Parsed::Nothing(length) => (None, length),
            Parsed::Incomplete if is_all && rest.len() == 1 && rest[0] == ESC => (Some(Key::Escape), 1),
            Parsed::Incomplete if is_all || rest.len() > LONGEST => (None, rest.len()),
            Parsed::Incomplete => break,
        };
        keys.extend(key);
        rest = &rest[length.clamp(1, rest.len())..];
    }
    *bytes = rest.to_vec();
    keys
}

const ESC: u8 = 0x1b;

enum Parsed {
    /// A key, and how many bytes it has.
    Key(Key, usize),
    /// These bytes are no known key.
    Nothing(usize),
    Incomplete,
}

fn parse(bytes: &[u8]) -> Parsed {
    match bytes {
        [ESC] => Parsed::Incomplete,
        [ESC, b'[', rest @ ..] => sequence(rest),
        [ESC, b'O'] => Parsed::Incomplete,
        [ESC, b'O', last, ..] => named(*last).map_or(Parsed::Nothing(3), |key| Parsed::Key(key, 3)),
        // Esc was pressed, and another key after it
        [ESC, ..] => Parsed::Key(Key::Escape, 1),
        [b'\r' | b'\n', ..] => Parsed::Key(Key::Enter, 1),
        [0x7f | 0x08, ..] => Parsed::Key(Key::Backspace, 1),
        [0x03, ..] => Parsed::Key(Key::Interrupt, 1),
        [0x1a, ..] => Parsed::Key(Key::Suspend, 1),
        [0x00..0x20, ..] => Parsed::Nothing(1),
        _ => character(bytes),
    }
}

fn character(bytes: &[u8]) -> Parsed {
    let length = match bytes[0] {
        0x00..0x80 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return Parsed::Nothing(1),
    };
    let Some(encoded) = bytes.get(..length) else { return Parsed::Incomplete };
    match std::str::from_utf8(encoded).ok().and_then(|text| text.chars().next()) {
        Some(c) if !c.is_control() => Parsed::Key(Key::Char(c), length),
        _ => Parsed::Nothing(1),
    }
}

/// What follows `Esc [`: parameters, and a letter or `~`.
fn sequence(rest: &[u8]) -> Parsed {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        return Parsed::Incomplete;
    };
    let length = end + 3;
    let parameters = std::str::from_utf8(&rest[..end]).unwrap_or("");
    let key = match rest[end] {
        b'~' => match parameters.split(';').next() {
            Some("1" | "7") => Some(Key::Home),
            Some("4" | "8") => Some(Key::End),
            Some("5") => Some(Key::PageUp),
            Some("6") => Some(Key::PageDown),
            Some("11") => Some(Key::F1),
            Some("200") => Some(Key::PasteStart),
            Some("201") => Some(Key::PasteEnd),
            _ => None,
        },
        b'M' => parameters.strip_prefix('<').and_then(mouse),
        last => named(last),
    };
    key.map_or(Parsed::Nothing(length), |key| Parsed::Key(key, length))
}

fn named(last: u8) -> Option<Key> {
    Some(match last {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'P' => Key::F1,
        _ => return None,
    })
}

/// A button, a column and a row; both count from 1.
fn mouse(parameters: &str) -> Option<Key> {
    let mut numbers = parameters.split(';').map(|number| number.parse::<u16>().ok());
    let (button, x, y) = (numbers.next()??, numbers.next()??, numbers.next()??);
    match button {
        0 => Some(Key::Click(x.checked_sub(1)?, y.checked_sub(1)?)),
        64 => Some(Key::ScrollUp),
        65 => Some(Key::ScrollDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<Key> {
        let mut bytes = text.as_bytes().to_vec();
        let keys = take_keys(&mut bytes, true);
        assert!(bytes.is_empty(), "{text:?} leaves {bytes:?}");
        keys
    }

    #[test]
    fn keys_of_common_terminals() {
        use Key::*;
        assert_eq!(keys("aé核\r\x7f\x03"), [Char('a'), Char('é'), Char('核'), Enter, Backspace, Interrupt]);
        assert_eq!(
            keys("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1bOP"),
            [Up, Down, PageUp, PageDown, Home, End, F1]
        );
        assert_eq!(
            keys("\x1b[<0;12;3M\x1b[<0;12;3m\x1b[<64;1;1M\x1b[<65;1;1M"),
            [Click(11, 2), ScrollUp, ScrollDown]
        );
        assert_eq!(keys("\x1b[200~a\nq\x1b[201~"), [PasteStart, Char('a'), Enter, Char('q'), PasteEnd]);
        assert_eq!(keys("\x1a"), [Suspend]);
        assert_eq!(keys("\x1b"), [Escape]);
        assert_eq!(keys("\x1bq"), [Escape, Char('q')]);
        assert_eq!(keys("\x1b[99x\x1b[1;5Cq"), [Char('q')], "unknown sequences are ignored");
    }

    #[test]
    fn a_sequence_that_arrives_in_parts_is_one_key() {
        let whole = "\x1b[<0;12;3Mé\x1b[A";
        for split in 0..=whole.len() {
            let mut bytes = whole.as_bytes()[..split].to_vec();
            let mut found = take_keys(&mut bytes, false);
            bytes.extend_from_slice(&whole.as_bytes()[split..]);
            found.extend(take_keys(&mut bytes, true));
            assert_eq!(found, [Key::Click(11, 2), Key::Char('é'), Key::Up], "{split}");
        }
    }

    #[test]
    fn any_bytes_end() {
        let mut seed = 1_u64;
        for _ in 0..2000 {
            let mut bytes: Vec<u8> = (0..40)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    [ESC, b'[', b'<', b';', b'M', b'O', (seed >> 33) as u8, (seed >> 41) as u8]
                        [(seed >> 60) as usize % 8]
                })
                .collect();
            take_keys(&mut bytes, true);
            assert!(bytes.is_empty());
        }
    }
}
