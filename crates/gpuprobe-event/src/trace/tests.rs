use std::borrow::Cow;
use std::sync::Arc;

use super::*;
use crate::counters::{CopyDirection, HostMemory};
use crate::*;

pub(super) fn malloc() -> Call {
    Call {
        id: 7,
        parent: None,
        depth: 0,
        nested: false,
        weight: 1,
        start_ns: 1_234_567_891,
        outcome: Outcome::Returned { value: 0, duration_ns: 2345 },
        return_probed: true,
        tgid: Tgid(100),
        tid: Tid(101),
        process: Arc::from("py\"thon\n"),
        api: Api::Runtime,
        name: Cow::Borrowed("cudaMalloc"),
        class: Class::Alloc,
        status: Some(0),
        error: None,
        args: Some(vec![
            (Cow::Borrowed("devPtr"), Value::Hex(0x7ffe)),
            (Cow::Borrowed("size"), Value::Uint(4096)),
        ]),
        stream: None,
        effect: Effect::Alloc(Allocation {
            bytes: 4096,
            address: Some(0x7f00_0000),
            kind: Space::Device,
            ..Allocation::default()
        }),
        driver: None,
        site: None,
        stack: None,
    }
}

pub(super) fn launch() -> Call {
    Call {
        id: 8,
        parent: Some(7),
        depth: 1,
        outcome: Outcome::Returned { value: 700, duration_ns: 999 },
        name: Cow::Borrowed("cudaLaunchKernel"),
        class: Class::Launch,
        status: Some(700),
        error: Some(Cow::Borrowed("cudaErrorIllegalAddress")),
        args: Some(vec![
            (Cow::Borrowed("func"), Value::Hex(0x10)),
            (Cow::Borrowed("gridDim"), Value::Dim3([1, 2, 3])),
            (Cow::Borrowed("stream"), Value::Unread),
        ]),
        stream: Some(0),
        effect: Effect::Launch(Launch {
            kernel: Some(Arc::from("void k<int>(int*)")),
            kernels: 1,
            grid: Some([1, 2, 3]),
            block: Some([32, 1, 1]),
            shared: 48 << 10,
            captured: true,
        }),
        stack: Some(["main (a.c:3)".to_owned(), "?".to_owned()].into()),
        ..malloc()
    }
}

pub(super) fn copy(transfer: Transfer) -> Call {
    let (name, class) = (Cow::Borrowed("cuMemcpyBatchAsync"), Class::Memcpy);
    Call { id: 10, api: Api::Driver, name, class, effect: Effect::Transfer(transfer), ..malloc() }
}

pub(super) fn graph_launch() -> Call {
    let effect = Effect::GraphLaunch(GraphLaunch { kernels: Some(1000), ..GraphLaunch::default() });
    let (name, class) = (Cow::Borrowed("cudaGraphLaunch"), Class::GraphLaunch);
    Call { id: 12, name, class, stream: Some(0x30), effect, ..malloc() }
}

fn part(direction: CopyDirection, host: HostMemory, copies: u64) -> CopyPart {
    CopyPart { direction, host, copies, bytes: 512 }
}

pub(super) fn amount(kind: Space, allocations: u64, bytes: u64) -> MemoryAmount {
    MemoryAmount { kind, allocations, bytes }
}

pub(super) fn context_end(effect: Effect) -> Call {
    Call {
        api: Api::Driver,
        name: Cow::Borrowed("cuCtxDestroy_v2"),
        class: Class::Context,
        effect,
        ..malloc()
    }
}

pub(super) fn free(effect: Effect) -> Call {
    Call { name: Cow::Borrowed("cudaFree"), class: Class::Free, effect, ..malloc() }
}

fn events() -> Vec<Event> {
    let whole = Transfer {
        bytes: Some(64),
        host: HostMemory::Pinned,
        ..Transfer::new(CopyDirection::HostToDevice, true)
    };
    let parts = vec![
        part(CopyDirection::HostToDevice, HostMemory::Pageable, 3),
        part(CopyDirection::DeviceToDevice, HostMemory::Nothing, 1),
        part(CopyDirection::Unknown, HostMemory::Unknown, 2),
    ];
    let batch = Transfer { parts, ..Transfer::new(CopyDirection::Unknown, true) };
    vec![
        Event::Process(ProcessEvent {
            id: 1,
            at_ns: 0,
            change: ProcessChange::Start,
            tgid: Tgid(100),
            tid: Tid(100),
            process: Arc::from("python"),
            parent: Some(Tgid(1)),
            ns_pid: Some(Tgid(7)),
            container: Some(Arc::from("3f2a9c")),
            exit_status: None,
            rank: Some(Rank { variable: "RANK".to_owned(), number: 3 }),
            live: vec![amount(Space::Device, 3, 4096)],
        }),
        Event::Call(Box::new(malloc())),
        Event::Call(Box::new(launch())),
        Event::Call(Box::new(Call { id: 9, outcome: Outcome::Unfinished, status: None, ..malloc() })),
        Event::Call(Box::new(copy(whole))),
        Event::Call(Box::new(Call { id: 11, ..copy(batch) })),
        Event::Call(Box::new(Call { return_probed: false, ..graph_launch() })),
        Event::Loss(LossEvent { at_ns: 5, cause: LossCause::RingFull, count: 3 }),
        Event::Call(Box::new(ioctl())),
        Event::Call(Box::new(Call { id: 14, outcome: Outcome::Instant, error: None, ..ioctl() })),
        Event::Xid(Box::new(xid())),
        Event::OutOfMemory(Box::new(OutOfMemoryEvent::sample())),
    ]
    .into_iter()
    .chain(agent_event::samples::states().into_iter().map(|state| Event::Agent(Box::new(state))))
    .chain(agent_event::samples::ranges().into_iter().map(|range| Event::Range(Box::new(range))))
    .chain(Execution::samples().into_iter().map(|execution| Event::Execution(Box::new(execution))))
    .collect()
}

fn ioctl() -> Call {
    let effect = Effect::DeviceSyscall(DeviceSyscall {
        device: Some(Cow::Borrowed("nvidiactl")),
        command: Some(Cow::Borrowed("NV_ESC_RM_FREE")),
    });
    Call {
        id: 12,
        parent: Some(2),
        depth: 1,
        api: Api::Kernel,
        name: Cow::Borrowed("ioctl"),
        class: Class::Driver,
        outcome: Outcome::Returned { value: 0, duration_ns: 900 },
        status: None,
        error: Some(Cow::Borrowed("NV_ERR_OBJECT_NOT_FOUND")),
        args: None,
        effect,
        ..malloc()
    }
}

fn xid() -> XidEvent {
    let user = |pid, evidence| XidProcess { tgid: Tgid(pid), process: Arc::from("python"), evidence };
    XidEvent {
        id: 13,
        at_ns: 7,
        number: 31,
        gpu: Arc::from("0000:0f:00.0"),
        message: Arc::from("pid=100, name=python, Ch 00000008"),
        processes: vec![user(100, Evidence::Named), user(7, Evidence::Opened)],
    }
}

fn meta() -> Meta {
    Meta {
        format: FORMAT,
        gpuprobe: "0.1.0".to_owned(),
        host: "node".to_owned(),
        kernel: "6.18.0".to_owned(),
        driver: None,
        clock: "monotonic".to_owned(),
        start_unix: 1.5,
        start_monotonic_ns: Some(7),
        boot: Some("5f1c".to_owned()),
        command: vec!["./a.out".to_owned()],
        ..Meta::default()
    }
}

pub(super) fn written() -> String {
    let mut writer = Writer::new(Vec::new(), Phases::Together, &meta()).unwrap();
    for event in events() {
        writer.event(&event).unwrap();
    }
    let lost = [("ring_full".to_owned(), 3)].into();
    let to_gpu = Moved { migrations: 2, bytes: 4096 };
    let totals = UnifiedTotals { gpu_faults: 3, to_gpu, ..UnifiedTotals::default() };
    let unified = vec![UnifiedUse { pid: 4242, totals }];
    let end = End { seconds: 2.0, lost, unified, exit_status: Some(0), ..End::default() };
    String::from_utf8(writer.finish(&end).unwrap()).unwrap()
}

pub(super) fn read(text: &str) -> (Vec<Event>, Option<End>, u64) {
    let mut reader = Reader::new(text.as_bytes()).unwrap();
    let (mut events, mut end) = (Vec::new(), None);
    while let Some(line) = reader.read().unwrap() {
        match line {
            Line::Event(event) => events.push(event),
            Line::End(e) => end = Some(e),
        }
    }
    (events, end, reader.damaged())
}

#[test]
fn the_format_is_the_golden_one() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/trace/golden.jsonl");
    if std::env::var_os("GPUPROBE_BLESS").is_some() {
        std::fs::write(golden, written()).unwrap();
    }
    assert_eq!(written(), std::fs::read_to_string(golden).unwrap());
}

#[test]
fn numbers_of_every_length_are_written_in_full() {
    let powers = |base: u64| (0..64).map_while(move |exponent| base.checked_pow(exponent));
    let around = powers(10).chain(powers(16)).flat_map(|n| [n - 1, n, n + 1]).chain([u64::MAX]);
    for n in around {
        let outcome = Outcome::Returned { value: n, duration_ns: n };
        let args = Some(vec![(Cow::Borrowed("a"), Value::Hex(n)), (Cow::Borrowed("b"), Value::Uint(n))]);
        let call = Call { start_ns: n, outcome, status: None, args, ..malloc() };
        let mut line = Vec::new();
        Lines::default().event(&Event::Call(Box::new(call)), &mut line);
        let line = String::from_utf8(line).unwrap();
        let (seconds, ns) = (n / 1_000_000_000, n % 1_000_000_000);
        assert!(line.contains(&format!(r#","ts":{seconds}.{ns:09},"type""#)), "{line}");
        assert!(line.contains(&format!(r#","duration_us":{}.{:03},"api""#, n / 1000, n % 1000)), "{line}");
        assert!(line.contains(&format!(r#""ret":{n},"args":{{"a":"{n:#x}","b":{n}}}"#)), "{line}");
    }
}

#[test]
fn any_text_is_escaped_as_json() {
    let texts = (0..=0x100).filter_map(char::from_u32).map(|c| format!("{c} and then {c}{c} to the end{c}"));
    for text in texts {
        let call = Call { process: Arc::from(text.as_str()), ..malloc() };
        let mut line = Vec::new();
        Lines::default().event(&Event::Call(Box::new(call)), &mut line);
        let line = String::from_utf8(line).unwrap();
        let expected = serde_json::to_string(&text).unwrap();
        assert!(line.contains(&format!(r#""process":{expected},"#)), "{line}");
    }
}

#[test]
fn the_begin_and_the_return_of_a_call_can_be_separate_lines() {
    let begun = Call { outcome: Outcome::Begun, status: None, effect: Effect::default(), ..malloc() };
    let events = [Event::Call(Box::new(begun)), Event::Call(Box::new(malloc()))];
    let mut writer = Writer::new(Vec::new(), Phases::Separate, &meta()).unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    let text = String::from_utf8(writer.finish(&End::default()).unwrap()).unwrap();
    assert!(text.contains(r#""ts":1.234567891,"type":"memory","name":"cudaMalloc","phase":"B""#), "{text}");
    assert!(text.contains(r#""ts":1.234570236,"type":"memory","name":"cudaMalloc","phase":"E""#), "{text}");
    let (read, end, _) = read(&text);
    assert_eq!(read, events);
    assert_eq!(end.map(|end| (end.events, end.calls)), Some((2, 1)));
}

#[test]
fn events_round_trip() {
    let (events_read, end, damaged) = read(&written());
    assert_eq!(events_read, events());
    let end = end.unwrap();
    assert_eq!((end.events, end.calls, end.exit_status, damaged), (24, 8, Some(0), 0));
    assert_eq!(Reader::new(written().as_bytes()).unwrap().meta(), &meta());
}

#[test]
fn a_damaged_line_is_skipped_and_counted() {
    let mut lines: Vec<String> = written().lines().map(str::to_owned).collect();
    lines.insert(2, "{\"type\":\"memory\",\"event_id\":-4}".to_owned());
    lines.insert(3, "\u{0}\u{1} nothing".to_owned());
    lines.insert(4, format!("{{\"x\":\"{}\"}}", "y".repeat(2 << 20)));
    lines.insert(5, "[".repeat(100_000));
    let (events_read, end, damaged) = read(&(lines.join("\n") + "\n"));
    assert_eq!(events_read, events());
    assert!(end.is_some());
    assert_eq!(damaged, 4);
}

#[test]
fn a_truncated_file_is_read_to_its_last_complete_line() {
    let whole = written();
    let first = whole.find('\n').unwrap() + 1;
    for length in first..whole.len() {
        let (events_read, end, damaged) = read(&whole[..length]);
        let expected = whole[first..length].matches('\n').count().min(events().len());
        assert_eq!(events_read[..], events()[..expected], "cut at {length}");
        assert_eq!(end.is_none(), length < whole.len());
        assert_eq!(damaged, u64::from(!whole[..length].ends_with('\n')));
    }
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let error = |text: &str| Reader::new(text.as_bytes()).unwrap_err().to_string();
    assert!(error("").contains("not a gpuprobe trace"));
    assert!(error("hello\n").contains("not a gpuprobe trace"));
    assert!(error("{\"type\":\"meta\",\"format\":99}\n").contains("use a newer gpuprobe"));
}

/// A reader that gives a block again and again, then the rest.
struct Long {
    left: usize,
    block: Vec<u8>,
    rest: Vec<u8>,
}

impl std::io::Read for Long {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let from = if self.left > 0 { &self.block[..self.block.len().min(self.left)] } else { &self.rest };
        let taken = from.len().min(into.len());
        into[..taken].copy_from_slice(&from[..taken]);
        if self.left > 0 {
            self.left -= taken;
        } else {
            self.rest.drain(..taken);
        }
        Ok(taken)
    }
}

#[test]
fn a_line_of_a_gibibyte_is_skipped_without_being_kept() {
    let whole = written();
    let (meta, events) = whole.split_at(whole.find('\n').unwrap() + 1);
    let rest = format!("\n{events}").into_bytes();
    let long = Long { left: 1 << 30, block: vec![b'['; 1 << 16], rest };
    let input = std::io::Read::chain(meta.as_bytes(), long);
    let mut reader = Reader::new(std::io::BufReader::with_capacity(1 << 16, input)).unwrap();
    let mut lines = 0;
    while reader.read().unwrap().is_some() {
        lines += 1;
    }
    assert_eq!((lines, reader.damaged()), (events.lines().count(), 1));
    assert!(reader.kept_bytes() < 4 << 20, "{} bytes", reader.kept_bytes());
}

#[test]
fn the_name_cache_is_bounded() {
    let whole = written();
    let mut text: String = whole.lines().take(1).map(|meta| format!("{meta}\n")).collect();
    let line = |name: String| {
        let effect = Effect::Launch(Launch { kernel: Some(Arc::from(name)), ..Launch::default() });
        let event = Event::Call(Box::new(Call { effect, ..launch() }));
        let mut out = Vec::new();
        Lines::default().event(&event, &mut out);
        String::from_utf8(out).unwrap()
    };
    (0..10_000).for_each(|i| text.push_str(&line(format!("{i}{}", "n".repeat(4000)))));
    let mut reader = Reader::new(text.as_bytes()).unwrap();
    while reader.read().unwrap().is_some() {
        assert!(reader.kept_bytes() < 20 << 20, "{} bytes", reader.kept_bytes());
    }
    assert_eq!(reader.damaged(), 0);
}

/// A launch in which every text has this length, and every list this many entries.
fn endless(bytes: usize, entries: usize) -> Call {
    let text = "x".repeat(bytes);
    let name = || Cow::Owned(text.clone());
    Call {
        process: Arc::from(text.as_str()),
        error: Some(name()),
        args: Some((0..entries).map(|_| (name(), Value::Name(name()))).collect()),
        effect: Effect::Launch(Launch { kernel: Some(Arc::from(text.as_str())), ..Launch::default() }),
        stack: Some(vec![text.clone(); entries].into()),
        ..launch()
    }
}

pub(super) fn read_back(call: Call) -> Call {
    let mut writer = Writer::new(Vec::new(), Phases::Together, &meta()).unwrap();
    writer.event(&Event::Call(Box::new(call))).unwrap();
    let text = String::from_utf8(writer.finish(&End::default()).unwrap()).unwrap();
    let Some(Event::Call(call)) = read(&text).0.pop() else { panic!("it is a call") };
    *call
}

#[test]
fn texts_and_lists_are_limited() {
    let long = read_back(endless(50_000, 1));
    assert_eq!([long.process.len(), long.error.as_ref().unwrap().len()], [256; 2]);
    let unknown = Call { name: "x".repeat(50_000).into(), ..endless(1, 1) };
    assert_eq!(read_back(unknown).name.len(), 1024);
    let kernel = long.effect.kernel().unwrap();
    assert_eq!(kernel.len(), 4096);
    assert_eq!(long.stack.as_ref().unwrap()[0].len(), 1024);
    // names that differ after the cut stay distinct
    assert!(kernel.contains("...~"));

    let many = read_back(endless(10, 2000));
    assert_eq!(many.args.as_ref().unwrap().len(), 256);
    let stack = many.stack.as_ref().unwrap();
    assert_eq!((stack.len(), stack[256].as_str()), (257, "(1744 more)"));
    let stack = read_back(endless(1000, 100)).stack.unwrap();
    assert_eq!((stack.len(), stack[32].as_str()), (33, "(68 more)"));

    let driver =
        DeviceSyscall { device: Some("d".repeat(1000).into()), command: Some("c".repeat(1000).into()) };
    let call = read_back(Call { effect: Effect::DeviceSyscall(driver), ..ioctl() });
    let call = call.effect.device_syscall().unwrap();
    assert_eq!([&call.device, &call.command].map(|name| name.as_ref().unwrap().len()), [256; 2]);
    let copies = vec![part(CopyDirection::Unknown, HostMemory::Unknown, 1); 2000];
    let batch = read_back(copy(Transfer { parts: copies, ..Transfer::new(CopyDirection::Unknown, true) }));
    assert_eq!(batch.effect.transfer().unwrap().parts.len(), 256);
    let ended = Effect::ContextEnd(vec![amount(Space::Unknown, 1, 1); 2000]);
    let Effect::ContextEnd(ended) = read_back(context_end(ended)).effect else { panic!("a context ended") };
    assert_eq!(ended.len(), 256);
}

#[test]
fn a_command_of_any_length_leaves_the_trace_readable() {
    let kept = |command: Vec<String>| {
        let writer = Writer::new(Vec::new(), Phases::Together, &Meta { command, ..meta() }).unwrap();
        let bytes = writer.finish(&End::default()).unwrap();
        Reader::new(&*bytes).unwrap().meta().clone()
    };
    let words = |word: &str, count: usize| std::iter::repeat_n(word.to_owned(), count).collect::<Vec<_>>();
    let whole = words("word", 1000);
    assert_eq!(kept(whole.clone()), Meta { command: whole, ..meta() });
    for (command, bytes) in [
        (words(&"\u{1}".repeat(1 << 20), 2), 2 << 20),
        (words("", 1 << 20), 0),
        ([words("python", 1), words(&"é".repeat(1 << 20), 1)].concat(), (2 << 20) + 6),
    ] {
        let meta = kept(command.clone());
        assert_eq!(meta.command_bytes, Some(bytes));
        assert!(meta.command.iter().map(String::len).sum::<usize>() <= 16 << 10);
        let (shown, whole) = (meta.command.last().unwrap(), &command[meta.command.len() - 1]);
        assert!(shown == whole || shown.contains("...~"), "{shown:?}");
        assert_eq!(meta.command[0].is_empty(), command[0].is_empty());
    }
}

#[test]
fn invalid_times_are_damage() {
    let meta: String = written().lines().take(1).map(|meta| format!("{meta}\n")).collect();
    let line = |ts: &str, phase: &str, duration: &str| {
        format!(
            "{{\"event_id\":1,\"ts\":{ts},\"type\":\"sync\",\"name\":\"x\",\"phase\":\"{phase}\",\"pid\":1,\"tid\":1,\
             \"process\":\"\",\"duration_us\":{duration},\"api\":\"runtime\"}}\n"
        )
    };
    for (ts, phase, duration, good) in [
        ("1.5", "X", "2.5", true),
        ("0", "X", "0", true),
        ("8e9", "X", "1e14", true),
        ("-0.000000001", "X", "1", false),
        ("1", "X", "-1", false),
        ("1e300", "X", "1", false),
        ("8e9", "X", "8e15", false),
        ("1", "E", "1000001", false),
        ("1", "E", "1000000", true),
        ("\"1\"", "X", "1", false),
        ("null", "X", "1", false),
    ] {
        let (events, _, damaged) = read(&(meta.clone() + &line(ts, phase, duration)));
        assert_eq!((events.len(), damaged), (usize::from(good), u64::from(!good)), "{ts} {phase} {duration}");
    }
}

#[test]
fn a_truncated_compressed_file_is_read_like_a_truncated_file() {
    struct Cut;
    impl std::io::Read for Cut {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::UnexpectedEof.into())
        }
    }
    let whole = written();
    let cut = &whole.as_bytes()[..whole.len() - 5];
    let mut reader = Reader::new(std::io::BufReader::new(std::io::Read::chain(cut, Cut))).unwrap();
    let mut lines = 0;
    while reader.read().unwrap().is_some() {
        lines += 1;
    }
    assert_eq!((lines, reader.damaged()), (events().len(), 1));
}
