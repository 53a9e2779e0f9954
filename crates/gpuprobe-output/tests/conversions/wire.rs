//! Reads protocol buffers without a schema.

/// One field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    value: Value<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Uint(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(crate) fn uint(&self) -> u64 {
        let Value::Uint(n) = self.value else { panic!("field {} is not a number", self.number) };
        n
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        let Value::Bytes(bytes) = self.value else { panic!("field {} is a number", self.number) };
        bytes
    }

    pub(crate) fn text(&self) -> &'a str {
        std::str::from_utf8(self.bytes()).unwrap()
    }

    /// The field as text. Bytes that are not printable text are taken for a nested message.
    pub(crate) fn described(&self) -> String {
        match self.value {
            Value::Uint(n) => format!("{}:{n} ", self.number),
            Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text)
                    if !text.is_empty()
                        && !text.contains(|c: char| c < ' ' && c != '\n' && c != '\u{1b}') =>
                {
                    format!("{}:{text:?} ", self.number)
                }
                _ => {
                    let inner: String = decode(bytes).iter().map(Self::described).collect();
                    format!("{}:{{{}}} ", self.number, inner.trim_end())
                }
            },
        }
    }
}

/// The fields of a message.
pub(crate) fn decode(mut bytes: &[u8]) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Uint(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Value::Uint(u64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        fields.push(Field { number: (tag >> 3) as u32, value });
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut n = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    n
}
