use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{Api, CopyPart, Value};

use super::*;
use crate::fuzz::NoResolver;
use crate::wire::{as_bytes, gp_part};

fn decoder() -> Decoder {
    let clock = Clock::start();
    Decoder::new(clock, true, Sites::new(1000), Box::new(NoResolver))
}

fn call_of(name: &str) -> gp_call {
    let function = catalogue().lookup(Api::Runtime, Some(12), name).unwrap();
    gp_call {
        kind: number::RECORD_CALL,
        function: function.id.0,
        id: 5,
        tgid: 10,
        tid: 11,
        instance: 99,
        ..gp_call::default()
    }
}

fn decode(raw: &gp_call) -> Call {
    match decoder().call(as_bytes(raw)) {
        Some(Event::Call(call)) => *call,
        other => panic!("not a call: {other:?}"),
    }
}

#[test]
fn an_allocation_bears_its_bytes_only_when_outermost_and_successful() {
    let mut raw = gp_call { bytes: 4096, pointer: 0x7f00, ..call_of("cudaMalloc") };
    raw.registers[1] = 4096;
    let call = decode(&raw);
    assert_eq!((call.effect.size, call.effect.ptr), (Some(4096), Some(0x7f00)));
    assert_eq!(call.args.unwrap()[1].1, Value::Uint(4096));
    let nested = decode(&gp_call { flags: number::CALL_NESTED_ACTION, ..raw });
    assert_eq!((nested.effect.size, nested.effect.ptr), (None, None));
    let failed = decode(&gp_call { result: 2, ..raw });
    assert_eq!(failed.effect.size, None);
    assert_eq!(failed.error.as_deref(), Some("cudaErrorMemoryAllocation"));
}

fn driver_call(name: &str) -> gp_call {
    let function = catalogue().lookup(Api::Driver, None, name).unwrap();
    gp_call { function: function.id.0, ..call_of("cudaMemcpy") }
}

#[test]
fn what_was_found_out_of_a_copy_goes_before_its_arguments_and_what_is_captured_moves_nothing() {
    let mut raw = gp_call { bytes: 64, ..call_of("cudaMemcpyAsync") };
    raw.registers[3] = 4;
    let told = |raw: &gp_call| {
        let effect = decode(raw).effect;
        (effect.kind.unwrap_or_default(), effect.host.unwrap_or_default(), effect.size, effect.captured)
    };
    assert_eq!(told(&raw), ("Default".into(), "".into(), Some(64), false));
    let position = |at: Option<usize>| u8::try_from(at.unwrap()).unwrap();
    let kind = |d| 1 + position(CopyDirection::ALL.iter().position(|found| *found == d));
    let host = |h| position(HostMemory::ALL.iter().position(|found| *found == h));
    raw.copy_kind = kind(CopyDirection::HostToDevice);
    raw.host = host(HostMemory::Pinned);
    assert_eq!(told(&raw), ("H2D".into(), "pinned".into(), Some(64), false));
    raw.flags = number::CALL_CAPTURED;
    assert_eq!(told(&raw), ("H2D".into(), "pinned".into(), None, true));
    raw.copy_kind = kind(CopyDirection::Unknown);
    raw.host = host(HostMemory::Unknown);
    assert_eq!(told(&raw), ("Default".into(), "".into(), None, true));
    assert_eq!(decode(&raw).effect.is_async, Some(true));
    raw.copy_kind = 255;
    raw.host = 255;
    assert_eq!(told(&raw), ("Default".into(), "".into(), None, true), "nonsense");
}

#[test]
fn the_copies_of_a_batch_are_told_by_kind() {
    let mut raw = gp_call { bytes: 300, ..driver_call("cuMemcpyBatchAsync") };
    let part = |copies, copy_kind, host, bytes| gp_part { copies, copy_kind, host, reserved: 0, bytes };
    raw.pointee[..16].copy_from_slice(as_bytes(&part(2, 2, 2, 100)));
    assert_eq!(decode(&raw).effect.kind.as_deref(), Some("H2D"), "one kind is that of all");
    raw.pointee[16..32].copy_from_slice(as_bytes(&part(1, 4, 0, 200)));
    let effect = decode(&raw).effect;
    assert_eq!((effect.kind, effect.host, effect.size), (None, None, Some(300)));
    let shown = |p: &CopyPart| (p.kind.clone(), p.host.clone(), p.copies, p.bytes);
    let parts: Vec<_> = effect.parts.iter().map(shown).collect();
    let expected =
        [(Some("H2D".into()), Some("pageable".into()), 2, 100), (Some("D2D".into()), None, 1, 200)];
    assert_eq!(parts, expected);
}

#[test]
fn the_kernels_of_a_graph_are_told_where_they_are_known_by_the_outermost_call() {
    let raw = gp_call { since_ns: 1000, ..call_of("cudaGraphLaunch") };
    assert_eq!(decode(&raw).effect.kernels, None);
    let known = gp_call { flags: number::CALL_KNOWN_KERNELS, ..raw };
    assert_eq!(decode(&known).effect.kernels, Some(1000));
    let mut list = driver_call("cuLaunchCooperativeKernelMultiDevice");
    list.registers[1] = 2;
    list.pointee[8] = 7;
    let effect = decode(&list).effect;
    assert_eq!((effect.kernels, effect.grid), (Some(2), Some([7, 0, 0])));
    let nested = gp_call { flags: number::CALL_NESTED_WORK, ..list };
    assert_eq!(decode(&nested).effect.kernels, None);
}

#[test]
fn a_free_of_something_unknown_frees_nothing() {
    let raw = gp_call { pointer: 0x7f00, ..call_of("cudaFree") };
    assert_eq!(decode(&raw).effect.freed, None);
    let known = gp_call { flags: number::CALL_KNOWN_FREE, bytes: 64, ..raw };
    assert_eq!(decode(&known).effect.freed, Some(64));
}

#[test]
fn a_call_that_never_returned_has_no_result() {
    let call = decode(&gp_call { flags: number::CALL_UNFINISHED, ..call_of("cudaDeviceSynchronize") });
    assert_eq!((call.outcome, call.status), (Outcome::Unfinished, None));
}

#[test]
fn names_come_from_the_start_of_the_process_and_change_with_exec() {
    let mut decoder = decoder();
    let mut record = gp_process_record {
        kind: number::RECORD_PROCESS,
        change: number::PROCESS_START,
        tgid: 10,
        instance: 99,
        ..gp_process_record::default()
    };
    record.comm[0] = b'a'.cast_signed();
    assert!(matches!(decoder.control(as_bytes(&record)), Control::Process(..)));
    assert!(matches!(decoder.control(as_bytes(&record)), Control::FirstCall(..)));
    let named = |decoder: &mut Decoder, instance| match decoder
        .call(as_bytes(&gp_call { instance, ..call_of("cudaFree") }))
    {
        Some(Event::Call(call)) => call.process.to_string(),
        _ => String::new(),
    };
    assert_eq!(named(&mut decoder, 99), "a");
    record.comm[0] = b'b'.cast_signed();
    let exec = gp_process_record { change: number::PROCESS_EXEC, instance: 100, ..record };
    decoder.control(as_bytes(&exec));
    assert_eq!(named(&mut decoder, 100), "b");
    assert_eq!(named(&mut decoder, 99), "a");
    assert_eq!(named(&mut decoder, 7), "?");
}

#[test]
fn a_first_call_after_an_exec_is_news_only_where_execs_are_not_followed() {
    let record = gp_process_record { kind: number::RECORD_PROCESS, tgid: 10, ..Default::default() };
    let exec = gp_process_record { change: number::PROCESS_EXEC, ..record };
    let start = gp_process_record { change: number::PROCESS_START, ..record };
    for follows in [true, false] {
        let mut decoder = Decoder::new(Clock::start(), follows, Sites::new(1000), Box::new(NoResolver));
        assert!(matches!(decoder.control(as_bytes(&exec)), Control::Process(..)));
        assert_eq!(matches!(decoder.control(as_bytes(&start)), Control::Process(..)), !follows);
    }
}

#[test]
fn nonsense_is_counted_and_never_panics() {
    let mut decoder = decoder();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for length in 0..600usize {
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        decoder.call(&bytes);
        decoder.control(&bytes);
    }
    assert!(decoder.undecodable > 0);
    let before = decoder.undecodable;
    assert!(decoder.call(&as_bytes(&call_of("cudaFree"))[..20]).is_none());
    assert_eq!(decoder.undecodable, before + 1);
}

#[test]
fn exit_codes_are_those_of_the_shell() {
    assert_eq!(exit_status(3 << 8), 3);
    assert_eq!(exit_status(9), 137);
    assert_eq!(exit_status(139), 139, "a core dump flag is not part of the signal");
}
