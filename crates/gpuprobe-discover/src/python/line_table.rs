//! Finds the line of an instruction in the line table of a code object. There are three formats.

/// How the line table of a version is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTableFormat {
    /// Up to 3.9, `co_lnotab`: pairs of bytes, the instructions and the lines to advance by.
    ByteDeltas,
    /// 3.10: pairs of bytes, the size of a range of instructions and the lines to advance by before it.
    Ranges,
    /// Since 3.11: entries of several bytes, of which only the first has its highest bit set.
    Locations,
}

/// Says that a range of instructions has no line, in the format [`LineTableFormat::Ranges`].
const NO_LINE: i8 = -128;
/// Bytes of a unit of instructions, in which [`LineTableFormat::Locations`] counts.
const UNIT: i64 = 2;

impl LineTableFormat {
    /// The line of the instruction at this many bytes from the beginning of the code. `None` if the instruction has
    /// no line, or if the table has no such instruction.
    pub(super) fn line_of(self, table: &[u8], first_line: i32, offset: i32) -> Option<u32> {
        let (first, offset) = (i64::from(first_line), i64::from(offset));
        // not begun yet
        let line = if offset < 0 {
            Some(first)
        } else {
            match self {
                Self::ByteDeltas => Some(in_byte_deltas(table, first, offset)),
                Self::Ranges => in_ranges(table, first, offset),
                Self::Locations => in_locations(table, first, offset),
            }
        };
        line.and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0)
    }
}

fn in_byte_deltas(table: &[u8], mut line: i64, offset: i64) -> i64 {
    let mut address = 0;
    for pair in table.chunks_exact(2) {
        address += i64::from(pair[0]);
        if address > offset {
            break;
        }
        line += i64::from(pair[1].cast_signed());
    }
    line
}

fn in_ranges(table: &[u8], mut line: i64, offset: i64) -> Option<i64> {
    let mut end = 0;
    for pair in table.chunks_exact(2) {
        end += i64::from(pair[0]);
        let delta = pair[1].cast_signed();
        line += if delta == NO_LINE { 0 } else { i64::from(delta) };
        if offset < end {
            return (delta != NO_LINE).then_some(line);
        }
    }
    None
}

fn in_locations(table: &[u8], mut line: i64, offset: i64) -> Option<i64> {
    let (mut end, mut rest) = (0, table);
    while let Some((first, after)) = rest.split_first() {
        let length = after.iter().take_while(|byte| **byte & 0x80 == 0).count();
        let (entry, next) = after.split_at(length);
        end += (i64::from(first & 7) + 1) * UNIT;
        let kind = (first >> 3) & 15;
        line = line.saturating_add(match kind {
            0..=9 | 15 => 0,
            10..=12 => i64::from(kind) - 10,
            _ => signed(entry),
        });
        if offset < end {
            return (kind != 15).then_some(line);
        }
        rest = next;
    }
    None
}

/// A number of six bits per byte, of which the lowest is the sign. The next bit of a byte says that another follows.
fn signed(bytes: &[u8]) -> i64 {
    let (mut number, mut shift) = (0u64, 0);
    for byte in bytes {
        // lines have 32 bits
        if shift < 36 {
            number |= u64::from(byte & 0x3f) << shift;
        }
        shift += 6;
        if byte & 0x40 == 0 {
            break;
        }
    }
    let magnitude = (number >> 1).cast_signed();
    if number & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Xorshift;

    const NONE: u8 = 0x80;

    #[test]
    fn the_format_up_to_3_9() {
        // 4 bytes of line 10, 6 of line 12, 300 of line 11, then line 141
        let table = [4, 2, 6, 255, 255, 0, 45, 127, 0, 3];
        let line = |offset| LineTableFormat::ByteDeltas.line_of(&table, 10, offset);
        assert_eq!([line(-1), line(0), line(3)], [Some(10); 3]);
        assert_eq!([line(4), line(9), line(10), line(309)], [Some(12), Some(12), Some(11), Some(11)]);
        assert_eq!([line(310), line(9999)], [Some(141), Some(141)]);
    }

    #[test]
    fn the_format_of_3_10() {
        // 4 bytes of line 10, 6 without a line, 2 of line 9, 254 + 4 of line 136
        let table = [4, 0, 6, NONE, 2, 255, 254, 127, 4, 0];
        let line = |offset| LineTableFormat::Ranges.line_of(&table, 10, offset);
        assert_eq!(
            [line(-1), line(0), line(3), line(4), line(9)],
            [Some(10), Some(10), Some(10), None, None]
        );
        assert_eq!(
            [line(10), line(12), line(266), line(269), line(270)],
            [9, 136, 136, 136, 0].map(|n| (n > 0).then_some(n))
        );
    }

    #[test]
    fn the_format_since_3_11() {
        let entry = |kind: u8, units: u8| 0x80 | kind << 3 | (units - 1);
        let table = [
            &[entry(0, 1), 0x11][..],             // bytes 0..2: line 10
            &[entry(11, 2), 1, 2],                // 2..6: line 11
            &[entry(13, 8), 0x0d],                // 6..22: six lines before: 5
            &[entry(15, 1)],                      // 22..24: none
            &[entry(14, 1), 0x40, 0x20, 1, 2, 3], // 24..26: 1024 lines further
        ]
        .concat();
        let line = |offset| LineTableFormat::Locations.line_of(&table, 10, offset);
        assert_eq!([line(-2), line(0), line(2), line(5)], [Some(10), Some(10), Some(11), Some(11)]);
        assert_eq!([line(6), line(21), line(22), line(24)], [Some(5), Some(5), None, Some(5 + 1024)]);
        assert_eq!(line(26), None);
    }

    #[test]
    fn no_table_makes_the_search_fail_or_overflow() {
        let mut random = Xorshift(11);
        let formats = [LineTableFormat::ByteDeltas, LineTableFormat::Ranges, LineTableFormat::Locations];
        for _ in 0..20_000 {
            let table: Vec<u8> = (0..random.next() % 40).map(|_| random.next() as u8).collect();
            let (first, offset) = (random.next() as i32, random.next() as i32 % 200);
            for format in formats {
                assert_ne!(format.line_of(&table, first, offset), Some(0));
            }
        }
        let endless = [0xff; 1000];
        for (format, first) in formats.iter().zip([i32::MIN, 0, i32::MAX]) {
            assert_ne!(format.line_of(&endless, first, i32::MAX), Some(0));
        }
    }
}
