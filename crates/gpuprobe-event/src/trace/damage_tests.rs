//! Traces that are mostly damaged.

use super::tests::{read, written};
use super::*;

/// A reader that repeats these lines without end, as a small compressed file may expand to.
struct Endless {
    lines: std::io::Cursor<Vec<u8>>,
    again: Vec<u8>,
    read: u64,
}

impl std::io::Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.lines.position() == self.lines.get_ref().len() as u64 {
            self.lines = std::io::Cursor::new(self.again.repeat(4096));
        }
        let taken = std::io::Read::read(&mut self.lines, into)?;
        self.read += taken as u64;
        Ok(taken)
    }
}

#[test]
fn reading_stops_at_too_much_damage_after_all_earlier_events() {
    for (again, most) in [("\n", 1 << 20), ("{}\n", 1 << 20), ("no line ends here ", (2 << 30) + (2 << 20))] {
        let lines = std::io::Cursor::new(written().into_bytes());
        let mut input = Endless { lines, again: again.into(), read: 0 };
        let mut reader = Reader::new(std::io::BufReader::with_capacity(1 << 16, &mut input)).unwrap();
        let mut events = 0;
        let error = loop {
            match reader.read() {
                Ok(line) => events += u64::from(matches!(line, Some(Line::Event(_)))),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(events, 24);
        assert!(error.starts_with("the trace is damaged: ") && error.lines().count() == 1, "{error}");
        assert!(reader.damaged() <= 10_001 && input.read < most, "{again:?}: {} bytes", input.read);
    }
    // the most damaged lines that are accepted
    let damaged = written() + &"\n".repeat(10_000);
    assert_eq!(read(&damaged).2, 10_000);
}
