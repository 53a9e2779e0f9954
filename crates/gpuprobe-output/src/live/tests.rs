use std::sync::Arc;

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{
    Allocation, Api, DeviceSyscall, DeviceTime, Effect, Free, Launch, LossCause, MemoryAmount, Name, Outcome,
    Replaced, SiteId, Space, Tgid, Tid, Transfer, Value, catalogue,
};

use super::*;

/// Pseudo-random numbers that are the same in every run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // small numbers and powers of two are as likely as large ones
        match self.0 % 4 {
            0 => self.0 >> 62,
            1 => 1 << (self.0 % 64),
            2 => self.0 >> (self.0 % 64),
            _ => u64::MAX,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    fn name(&mut self) -> String {
        const PIECES: [&str; 14] = [
            "",
            "a",
            "cudaMalloc",
            "\x1b[2J",
            "\n",
            "\r",
            "\0",
            "\u{9b}31m",
            "\u{202e}",
            "\u{2028}",
            "é",
            "日本",
            "\"\\'",
            "\u{10ffff}",
        ];
        let pieces = self.below(4) * self.below(20);
        (0..pieces).map(|_| PIECES[self.below(PIECES.len())]).collect()
    }

    fn owned(&mut self) -> Name {
        Name::Owned(self.name())
    }

    fn dim3(&mut self) -> [u32; 3] {
        [self.next() as u32, 1, self.next() as u32]
    }

    fn value(&mut self, deep: u32) -> Value {
        match self.below(8) {
            0 => Value::Uint(self.next()),
            1 => Value::Int(self.next().cast_signed()),
            2 => Value::Hex(self.next()),
            3 => Value::Name(self.owned()),
            4 => Value::Text(self.name()),
            5 => Value::Dim3(self.dim3()),
            6 if deep < 3 => Value::Struct(self.values(deep + 1)),
            _ => Value::Unread,
        }
    }

    fn values(&mut self, deep: u32) -> Vec<(Name, Value)> {
        (0..self.below(5)).map(|_| (self.owned(), self.value(deep))).collect()
    }

    fn amount(&mut self) -> MemoryAmount {
        MemoryAmount { kind: Space::Unknown, allocations: self.next(), bytes: self.next() }
    }

    fn effect(&mut self) -> Effect {
        match self.below(7) {
            0 => Effect::Alloc(Allocation {
                bytes: self.next(),
                address: self.flip().then(|| self.next()),
                replaced: self.flip().then(|| Replaced { bytes: self.next(), kind: Space::Pinned }),
                ..Allocation::default()
            }),
            1 => Effect::Free(Free {
                address: self.flip().then(|| self.next()),
                freed: self.flip().then(|| self.amount()),
                ..Free::default()
            }),
            2 => Effect::ContextEnd((0..self.below(3)).map(|_| self.amount()).collect()),
            3 => {
                let direction = CopyDirection::ALL[self.below(CopyDirection::ALL.len())];
                let bytes = self.flip().then(|| self.next());
                Effect::Transfer(Transfer { bytes, ..Transfer::new(direction, self.flip()) })
            }
            4 => Effect::Launch(Launch {
                kernel: self.flip().then(|| Arc::from(self.name())),
                grid: self.flip().then(|| self.dim3()),
                block: self.flip().then(|| self.dim3()),
                ..Launch::default()
            }),
            5 => Effect::DeviceSyscall(DeviceSyscall {
                device: self.flip().then(|| self.owned()),
                command: self.flip().then(|| self.owned()),
            }),
            _ => Effect::None,
        }
    }

    fn call(&mut self) -> Call {
        let functions = catalogue().functions();
        let function = &functions[self.below(functions.len())];
        let known = self.below(4) > 0;
        let status = self.flip().then(|| self.next().cast_signed());
        let outcome = match self.below(4) {
            0 => Outcome::Begun,
            1 => Outcome::Unfinished,
            _ => Outcome::Returned { value: self.next(), duration_ns: self.next() },
        };
        Call {
            id: self.next(),
            parent: self.flip().then(|| self.next()),
            depth: self.next() as u8,
            nested: self.flip(),
            weight: 1 + self.next() as u16 % 100,
            start_ns: self.next(),
            outcome,
            return_probed: self.below(9) > 0,
            tgid: Tgid(self.next() as u32),
            tid: Tid(self.next() as u32),
            process: self.name().into(),
            api: if known { function.api } else { Api::ALL[self.below(4)] },
            name: if known { Name::Borrowed(function.name) } else { self.owned() },
            class: function.class,
            status,
            error: self.flip().then(|| self.owned()),
            args: self.flip().then(|| self.values(0)),
            stream: self.flip().then(|| self.next()),
            effect: self.effect(),
            driver: self.flip().then(|| DeviceTime { calls: self.next(), ns: self.next() }),
            site: self.flip().then(|| SiteId(self.next() as u32)),
            stack: self.flip().then(|| (0..self.below(3)).map(|_| self.name()).collect()),
        }
    }
}

fn options(bits: usize) -> LiveOptions {
    LiveOptions {
        times: bits & 1 != 0,
        color: bits & 2 != 0,
        nested: bits & 4 != 0,
        phases: bits & 8 != 0,
        processes: bits & 16 != 0,
        utc_offset_seconds: i32::MIN,
        start_unix: f64::MAX,
    }
}

fn line(options: LiveOptions, event: &Event) -> String {
    let mut out = String::new();
    Live::new(options).event(event, &mut out);
    out
}

#[test]
fn lines_of_calls_with_random_contents_have_no_control_characters() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for i in 0..6000 {
        let call = numbers.call();
        let lines = 1 + call.stack.as_ref().map_or(0, |stack| stack.len());
        let table = pending(std::slice::from_ref(&call), call.start_ns / 2);
        assert_eq!(table.lines().count(), 1);
        let text = line(options(i % 32), &Event::Call(Box::new(call)));
        assert_eq!(text.matches('\n').count(), lines, "{text:?}");
        assert!(text.ends_with('\n'));
        for text in [text.replace(RED, "").replace(PLAIN, ""), table] {
            let odd =
                text.chars().find(|&c| c.is_control() && c != '\n' || c == '\u{202e}' || c == '\u{2028}');
            assert_eq!(odd, None, "{text:?}");
        }
    }
}

#[test]
fn colors_end_on_the_line_they_begin_on() {
    let mut numbers = Numbers(7);
    let mut colored = 0;
    for _ in 0..2000 {
        let text = line(options(2), &Event::Call(Box::new(numbers.call())));
        for line in text.lines() {
            assert_eq!(line.matches(RED).count(), line.matches(PLAIN).count(), "{line:?}");
            colored += line.matches(RED).count();
        }
    }
    assert!(colored > 0);
}

#[test]
fn a_sampled_call_says_for_how_many_it_stands() {
    let mut call = Numbers(1).call();
    call.stack = None;
    for bits in 0..32 {
        for (weight, expected) in [(8, true), (1, false)] {
            call.weight = weight;
            let text = line(options(bits), &Event::Call(Box::new(call.clone())));
            assert_eq!(text.ends_with(" [1 of ~8]\n"), expected, "{text}");
        }
    }
}

#[test]
fn losses_are_printed_with_all_options() {
    for bits in 0..32 {
        let loss = Event::Loss(LossEvent { at_ns: 1, cause: LossCause::TooDeep, count: 3 });
        let text = line(options(bits), &loss);
        assert!(text.contains("gpuprobe: lost 3 too_deep: calls nested deeper than"), "{text}");
    }
}

#[test]
fn a_long_kernel_name_is_cut_between_characters() {
    let mut call = Numbers(1).call();
    let shown = |call: &Call| {
        let mut out = String::new();
        arguments::kernel(&mut out, call);
        out
    };
    for (name, expected) in [
        ("k".repeat(160), "k".repeat(160)),
        ("k".repeat(161), "k".repeat(160) + "..."),
        ("日".repeat(160), "日".repeat(160)),
        ("日".repeat(161), "日".repeat(160) + "..."),
    ] {
        call.effect = Effect::Launch(Launch { kernel: Some(name.into()), ..Launch::default() });
        assert_eq!(shown(&call), expected);
    }
    for nameless in [Effect::Launch(Launch::default()), Effect::None] {
        call.effect = nameless;
        assert_eq!(shown(&call), "?");
    }
}
