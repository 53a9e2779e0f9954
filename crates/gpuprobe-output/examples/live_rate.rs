//! Measures how many lines per second `trace` can write: `cargo run --release -p gpuprobe-output --example live_rate`.
//!
//! It writes five common calls over and over into one buffer.

use std::hint::black_box;
use std::time::Instant;

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{
    Allocation, Api, Call, Class, Effect, Event, Launch, Name, Outcome, Tgid, Tid, Transfer, Value,
    catalogue, decode,
};
use gpuprobe_output::{Live, LiveOptions};

const ROUNDS: u32 = 5;
const LINES_PER_ROUND: u32 = 1_000_000;
/// The buffer is cleared when it is this long, where a program would write it to a pipe.
const BUFFER: usize = 64 << 10;

fn call(name: &'static str, status: i64, values: Vec<Value>, effect: Effect) -> Event {
    let function = catalogue().lookup(Api::Runtime, None, name);
    let names = function.and_then(|f| f.args.as_ref()).into_iter().flatten().map(|a| Name::Borrowed(a.name));
    Event::Call(Box::new(Call {
        id: 1,
        parent: None,
        depth: 0,
        nested: false,
        weight: 1,
        start_ns: 123_456_789,
        outcome: Outcome::Returned { value: status.cast_unsigned(), duration_ns: 4567 },
        return_probed: true,
        tgid: Tgid(12_345),
        tid: Tid(12_347),
        process: "python3".into(),
        api: Api::Runtime,
        name: Name::Borrowed(name),
        class: function.map_or(Class::Other, |f| f.class),
        status: Some(status),
        error: function.and_then(|f| decode::error_name(f, status)),
        args: Some(names.zip(values).collect()),
        stream: None,
        effect,
        driver: None,
        site: None,
        stack: None,
    }))
}

fn events() -> Vec<Event> {
    let (pointer, size) = (Value::Hex(0x7f3a_0000_0000), Value::Uint(4 << 20));
    let dim3 = Value::Dim3([256, 1, 1]);
    let allocated = Effect::Alloc(Allocation {
        bytes: 4 << 20,
        address: Some(0x7f3a_0000_0000),
        ..Allocation::default()
    });
    let copied = Transfer::new(CopyDirection::HostToDevice, false);
    let moved = Effect::Transfer(Transfer { bytes: Some(4 << 20), ..copied });
    let launched = Effect::Launch(Launch {
        kernel: Some("vectorAdd(float const*, float const*, float*, int)".into()),
        grid: Some([256, 1, 1]),
        block: Some([256, 1, 1]),
        ..Launch::default()
    });
    let launch = vec![pointer.clone(), dim3.clone(), dim3, pointer.clone(), Value::Uint(0), Value::Hex(0)];
    let kind = Value::Name(Name::Borrowed("H2D"));
    vec![
        call("cudaMalloc", 0, vec![pointer.clone(), size.clone()], allocated),
        call("cudaMemcpy", 0, vec![pointer.clone(), pointer, size.clone(), kind], moved),
        call("cudaLaunchKernel", 0, launch, launched),
        call("cudaStreamSynchronize", 0, vec![Value::Hex(0x55d0_2000)], Effect::None),
        call("cudaMalloc", 2, vec![Value::Hex(0x7ffe_1230), size], Effect::None),
    ]
}

/// Each call twice: as it begins and as it returns.
fn in_phases(events: &[Event]) -> Vec<Event> {
    let begun = |event: &Event| match event {
        Event::Call(call) => {
            Event::Call(Box::new(Call { outcome: Outcome::Begun, status: None, ..(**call).clone() }))
        }
        other => other.clone(),
    };
    events.iter().flat_map(|event| [begun(event), event.clone()]).collect()
}

fn main() {
    let whole = events();
    let phased = in_phases(&whole);
    for (what, events, phases) in [("lines", whole, false), ("classic lines", phased, true)] {
        let options = LiveOptions { times: true, nested: true, phases, ..LiveOptions::default() };
        let mut live = Live::new(options);
        let mut out = String::with_capacity(2 * BUFFER);
        let mut best = f64::MAX;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for event in events.iter().cycle().take(LINES_PER_ROUND as usize) {
                live.event(black_box(event), &mut out);
                if out.len() > BUFFER {
                    black_box(&out);
                    out.clear();
                }
            }
            best = best.min(begin.elapsed().as_secs_f64());
        }
        let lines = f64::from(LINES_PER_ROUND);
        println!("{:.2} million {what} per second, {:.0} ns each", 1e-6 * lines / best, 1e9 * best / lines);
    }
}
