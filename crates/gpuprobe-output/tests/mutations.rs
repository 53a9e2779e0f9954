//! Shows a recording that was damaged at random, the same way in every run.

mod shown;

use shown::shown;

const SAMPLES: [&[u8]; 2] = [
    include_bytes!("../../../tests/traces/sample.jsonl"),
    include_bytes!("../../../tests/traces/gpu_time.jsonl"),
];
const ROUNDS: u64 = 60;

/// Hostile and extreme values.
const WORDS: &[&str] = &[
    "\"</script><script>alert(1)</script>\"",
    "\"\\u001b[2J\\u0000\\u202e\\r\\n;\"",
    "18446744073709551615",
    "-9223372036854775808",
    "9000000000.0",
    "1e308",
    "-0.0",
    "0",
    "null",
    "[]",
    "{}",
    "[[[[[[[[[[[[[[[[[[[[{\"a\":[]}]]]]]]]]]]]]]]]]]]]]",
];

/// Pseudo-random numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 1).unwrap_or(0) % end.max(1)
    }
}

/// The range of a random field's value: from the colon to the next comma, bracket or line feed.
fn value(trace: &[u8], numbers: &mut Numbers) -> std::ops::Range<usize> {
    let from = numbers.below(trace.len());
    let colon = trace[from..].iter().position(|b| *b == b':').map_or(trace.len(), |at| from + at + 1);
    let ends = |b: &u8| b",}]\n".contains(b);
    colon..trace[colon..].iter().position(ends).map_or(trace.len(), |at| colon + at)
}

fn line(trace: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let lines: Vec<_> = trace.split_inclusive(|b| *b == b'\n').collect();
    lines[numbers.below(lines.len())].to_vec()
}

fn damage(trace: &mut Vec<u8>, numbers: &mut Numbers) {
    // the first line is not damaged, because nothing can be shown without it
    let first = trace.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
    let mut rest = trace.split_off(first);
    match numbers.below(8) {
        0 => {
            let at = numbers.below(rest.len());
            rest[at] = u8::try_from(numbers.below(256)).unwrap_or(0);
        }
        1 => {
            let from = numbers.below(rest.len());
            let length = numbers.below(200).min(rest.len() - from);
            rest.drain(from..from + length);
        }
        2 => rest.extend(line(&rest, numbers)),
        3 => {
            let copy = line(&rest, numbers);
            rest.splice(0..0, copy);
        }
        4 => {
            let (to, from) = (value(&rest, numbers), value(&rest, numbers));
            let copy = rest[from].to_vec();
            rest.splice(to, copy);
        }
        _ => {
            let to = value(&rest, numbers);
            rest.splice(to, WORDS[numbers.below(WORDS.len())].bytes());
        }
    }
    trace.append(&mut rest);
}

#[test]
fn the_intact_lines_of_a_damaged_trace_are_shown() {
    SAMPLES.into_iter().for_each(is_shown_if_damaged);
}

fn is_shown_if_damaged(sample: &[u8]) {
    let whole = shown(sample).expect("the sample is a trace");
    let (mut fewer, mut all) = (0, 0);
    for round in 1..=ROUNDS {
        let mut numbers = Numbers(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut trace = sample.to_vec();
        for _ in 0..=numbers.below(12) {
            damage(&mut trace, &mut numbers);
        }
        let after = shown(&trace).expect("its first line is whole");
        fewer += u64::from(after.damaged > whole.damaged);
        all += u64::from(after.events > 0);
    }
    // most rounds damaged a line, and none made the rest unreadable
    assert!(fewer > ROUNDS / 2, "{fewer} of {ROUNDS}");
    assert_eq!(all, ROUNDS);
}

#[test]
fn a_truncated_trace_is_shown_up_to_the_cut() {
    let cuts = SAMPLES.iter().flat_map(|sample| (0..sample.len()).step_by(401).map(move |at| &sample[..at]));
    for cut in cuts {
        let events = shown(cut).map_or(0, |shown| shown.events);
        let whole_lines = cut.iter().filter(|b| **b == b'\n').count() as u64;
        assert!(events < whole_lines.max(1), "{events} of {whole_lines} lines");
    }
}
