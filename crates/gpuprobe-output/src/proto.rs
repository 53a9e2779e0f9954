//! Writes protocol buffers: only the few field types that are needed, appended to one buffer.
//!
//! A crate such as prost is not used: it needs generated code, and every message as a tree before it is written.

/// A varint field.
pub(crate) fn uint(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

/// A double field.
pub(crate) fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    fixed64(out, field, value.to_bits());
}

/// A fixed64 field.
pub(crate) fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A string field.
pub(crate) fn text(out: &mut Vec<u8>, field: u32, text: &str) {
    bytes(out, field, text.as_bytes());
}

/// A length-delimited field: a string, bytes or a message.
pub(crate) fn bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    head(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// The tag and length before a value of `length` bytes.
pub(crate) fn head(out: &mut Vec<u8>, field: u32, length: usize) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, length as u64);
}

/// The position at which a nested message begins.
#[derive(Debug)]
pub(crate) struct Begun(usize);

/// Begins a field with a nested message; everything up to [`end`] belongs to it.
pub(crate) fn begin(out: &mut Vec<u8>, field: u32) -> Begun {
    varint(out, u64::from(field) << 3 | 2);
    Begun(out.len())
}

/// Ends the message. Its length is known only now, and is moved in front of it.
pub(crate) fn end(out: &mut Vec<u8>, begun: Begun) {
    let content = out.len() - begun.0;
    varint(out, content as u64);
    let length = out.len() - begun.0 - content;
    out[begun.0..].rotate_right(length);
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_has_seven_bits_per_byte() {
        let of = |n| {
            let mut out = Vec::new();
            uint(&mut out, 1, n);
            out
        };
        assert_eq!(of(0), [8, 0]);
        assert_eq!(of(127), [8, 127]);
        assert_eq!(of(150), [8, 0x96, 1]);
        assert_eq!(of(u64::MAX), [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }

    #[test]
    fn a_double_has_eight_bytes() {
        let mut out = Vec::new();
        double(&mut out, 5, 1.5);
        assert_eq!(out, [0x29, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f]);
    }

    #[test]
    fn a_nested_message_is_preceded_by_its_length() {
        let mut out = Vec::new();
        let outer = begin(&mut out, 3);
        text(&mut out, 2, "ab");
        let inner = begin(&mut out, 16);
        text(&mut out, 1, &"x".repeat(200));
        end(&mut out, inner);
        end(&mut out, outer);
        assert_eq!(out[..7], [0x1a, 0xd3, 1, 0x12, 2, b'a', b'b']);
        assert_eq!(out[7..14], [0x82, 1, 0xcb, 1, 0x0a, 0xc8, 1]);
        assert_eq!(out.len(), 14 + 200);
    }
}
