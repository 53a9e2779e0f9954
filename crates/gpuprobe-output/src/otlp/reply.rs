//! Reads what a receiver answers to a request that it accepted: how many points or records it rejected.

/// What a receiver did not take of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialSuccess {
    /// Data points or log records.
    pub rejected: u64,
    /// Its reason, or a warning if it took everything.
    pub message: String,
}

/// The longest part of a message that is kept.
const MOST_MESSAGE: usize = 200;

impl PartialSuccess {
    /// Reads ExportMetricsServiceResponse or ExportLogsServiceResponse, which have the same fields. What is not such a
    /// message rejects nothing.
    pub fn of(answer: &[u8]) -> Self {
        let mut all = Self::default();
        each_field(answer, |number, value| {
            if let (1, Value::Bytes(partial)) = (number, value) {
                each_field(partial, |number, value| match (number, value) {
                    // a negative number is 2^63 or more
                    (1, Value::Number(n)) => all.rejected = if n < 1 << 63 { n } else { 0 },
                    (2, Value::Bytes(text)) => {
                        let text = String::from_utf8_lossy(text);
                        gpuprobe_event::cut::head(&text, MOST_MESSAGE).clone_into(&mut all.message);
                    }
                    _ => {}
                });
            }
        });
        all
    }
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Calls `then` with each field up to the end or the first mistake.
fn each_field<'a>(message: &'a [u8], mut then: impl FnMut(u64, Value<'a>)) {
    let mut rest = message;
    while let Some((tag, after)) = varint(rest) {
        let field = match tag & 7 {
            0 => varint(after).map(|(n, after)| (Some(Value::Number(n)), after)),
            1 => after.get(8..).map(|after| (None, after)),
            2 => varint(after).and_then(|(length, after)| {
                let (bytes, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
                Some((Some(Value::Bytes(bytes)), after))
            }),
            5 => after.get(4..).map(|after| (None, after)),
            _ => None,
        };
        let Some((value, after)) = field else { return };
        if let Some(value) = value {
            then(tag >> 3, value);
        }
        rest = after;
    }
}

/// A number and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut n = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        n |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((n, bytes.get(at + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };
    use prost::Message;

    use super::*;

    fn answer(rejected: i64, message: &str) -> Vec<u8> {
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: rejected, error_message: message.to_owned() };
        ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec()
    }

    #[test]
    fn rejected_points_are_read_with_their_reason() {
        let partial = |rejected, message: &str| PartialSuccess { rejected, message: message.to_owned() };
        assert_eq!(PartialSuccess::of(&answer(300, "too old")), partial(300, "too old"));
        assert_eq!(PartialSuccess::of(&answer(0, "deprecated")), partial(0, "deprecated"));
        assert_eq!(PartialSuccess::of(&answer(-5, "")), partial(0, ""));
        assert_eq!(PartialSuccess::of(&[]), partial(0, ""));
        assert_eq!(PartialSuccess::of(&answer(1, &"ö".repeat(500))).message, "ö".repeat(100));
    }

    #[test]
    fn no_answer_is_a_problem() {
        let whole = answer(300, "too old");
        (0..whole.len()).for_each(|end| drop(PartialSuccess::of(&whole[..end])));
        for wrong in [b"<html>".as_slice(), &[0xff; 40], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1], &[0x0b]] {
            assert_eq!(PartialSuccess::of(wrong).rejected, 0, "{wrong:?}");
        }
    }
}
