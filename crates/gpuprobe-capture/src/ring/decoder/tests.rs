use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{Api, CopyPart, Free, GraphLaunch, MemoryAmount, Replaced, Space, Transfer, Value};

use super::*;
use crate::stacks::resolver::NoResolver;
use crate::wire::{
    as_bytes, gp_allocated, gp_copied, gp_detail, gp_on_graph, gp_part, gp_pointee, gp_released,
};

fn decoder() -> Decoder {
    let clock = Clock::start();
    Decoder::new(clock, true, CallSites::new(1000), Box::new(NoResolver))
}

fn call_of(name: &str) -> gp_call {
    let function = catalogue().lookup(Api::Runtime, Some(12), name).unwrap();
    gp_call {
        kind: number::RECORD_CALL,
        function: u16::try_from(function.id.0).unwrap(),
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
fn an_allocation_has_bytes_only_if_it_is_outermost_and_successful() {
    let mut raw = gp_call { bytes: 4096, pointer: 0x7f00, ..call_of("cudaMalloc") };
    raw.registers[1] = 4096;
    let call = decode(&raw);
    let allocated = call.effect.allocation().map(|a| (a.bytes, a.address, a.kind));
    assert_eq!((allocated, call.nested), (Some((4096, Some(0x7f00), Space::Device)), false));
    assert_eq!(call.args.unwrap()[1].1, Value::Uint(4096));
    let nested = decode(&gp_call { flags: number::CALL_NESTED_ACTION, ..raw });
    assert_eq!((nested.effect, nested.nested), (Effect::None, true));
    let failed = decode(&gp_call { result: 2, ..raw });
    assert_eq!((failed.effect, failed.nested), (Effect::None, false));
    assert_eq!(failed.error.as_deref(), Some("cudaErrorMemoryAllocation"));
}

#[test]
fn an_earlier_allocation_at_the_same_address_is_replaced_and_not_freed() {
    let detail = gp_detail { allocated: gp_allocated { live_bytes: 4096, replaced_bytes: 64 } };
    let raw = gp_call { bytes: 4096, pointer: 0x7f00, detail, replaced_space: 1, ..call_of("cudaMalloc") };
    let replaced = |effect| decode(&gp_call { effect, ..raw }).effect.allocation().map(|a| a.replaced);
    assert_eq!(replaced(number::EFFECT_NONE), Some(None));
    assert_eq!(replaced(number::EFFECT_REPLACE), Some(Some(Replaced { bytes: 64, kind: Space::ALL[1] })));
}

#[test]
fn a_launch_whose_return_is_not_probed_has_succeeded() {
    let flags = number::CALL_UNOBSERVED;
    let raw = gp_call { flags, reported: 1, duration_ns: 700, ..driver_call("cuLaunchKernel") };
    let deferred = decode(&raw);
    assert_eq!((deferred.return_probed, deferred.status, deferred.failed()), (false, Some(0), false));
    assert_eq!(deferred.duration_ns(), Some(700));
    assert_eq!(decoder().open_call(&raw).map(|call| call.outcome), Some(deferred.outcome), "it is not open");
    let begun = decode(&gp_call { flags: flags | number::CALL_BEGUN, ..raw });
    assert_eq!((begun.outcome, begun.return_probed), (Outcome::Unobserved, true));
    let open = decoder().open_call(&gp_call { flags: 0, ..raw }).unwrap();
    assert_eq!((open.outcome, open.return_probed), (Outcome::Unfinished, true));
}

#[test]
fn an_unmap_that_ends_two_allocations_counts_two_frees() {
    let raw = gp_call { bytes: 4 << 20, effect: number::EFFECT_PHYSICAL, ..driver_call("cuMemUnmap") };
    let released = |allocations| gp_detail { released: gp_released { physical: 0, allocations } };
    let freed = |ended| decode(&gp_call { detail: released(ended), ..raw }).effect.freed().copied();
    let vmm = |allocations| Some(MemoryAmount { kind: Space::Vmm, allocations, bytes: 4 << 20 });
    assert_eq!((freed(1), freed(2)), (vmm(1), vmm(2)));
}

fn driver_call(name: &str) -> gp_call {
    let function = catalogue().lookup(Api::Driver, None, name).unwrap();
    gp_call { function: u16::try_from(function.id.0).unwrap(), ..call_of("cudaMemcpy") }
}

#[test]
fn the_kind_found_by_bpf_overrides_the_arguments_and_captured_copies_move_nothing() {
    let mut raw = gp_call { bytes: 64, ..call_of("cudaMemcpyAsync") };
    raw.registers[3] = 4;
    let decoded = |raw: &gp_call| {
        let effect = decode(raw).effect;
        let Transfer { direction, host, bytes, captured, .. } = effect.transfer().unwrap().clone();
        (direction, host, bytes, captured)
    };
    let unknown = |bytes, captured| (CopyDirection::Unknown, HostMemory::Unknown, bytes, captured);
    let pinned = |bytes, captured| (CopyDirection::HostToDevice, HostMemory::Pinned, bytes, captured);
    assert_eq!(decoded(&raw), unknown(Some(64), false));
    let position = |at: Option<usize>| u8::try_from(at.unwrap()).unwrap();
    let kind = |d| 1 + position(CopyDirection::ALL.iter().position(|found| *found == d));
    let host = |h| position(HostMemory::ALL.iter().position(|found| *found == h));
    let copy = |kind, host| gp_detail { copy: gp_copied { kind, host, reserved: [0; 14] } };
    raw.effect = number::EFFECT_COPY;
    raw.detail = copy(kind(CopyDirection::HostToDevice), host(HostMemory::Pinned));
    assert_eq!(decoded(&raw), pinned(Some(64), false));
    raw.flags = number::CALL_CAPTURED;
    assert_eq!(decoded(&raw), pinned(None, true));
    raw.detail = copy(kind(CopyDirection::Unknown), host(HostMemory::Unknown));
    assert_eq!(decoded(&raw), unknown(None, true));
    assert!(decode(&raw).effect.transfer().unwrap().is_async);
    raw.detail = copy(255, 255);
    assert_eq!(decoded(&raw), unknown(None, true), "invalid numbers");
}

#[test]
fn the_copies_of_a_batch_are_reported_by_kind() {
    let raw = gp_call { bytes: 300, effect: number::EFFECT_BATCH, ..driver_call("cuMemcpyBatchAsync") };
    let part = |copies, kind, host, bytes| gp_part { copies, kind, host, size_log2: 6, reserved: 0, bytes };
    let decoded = |first: &[gp_part]| {
        let mut parts = [gp_part::default(); number::PARTS];
        parts[..first.len()].copy_from_slice(first);
        decode(&gp_call { pointee: gp_pointee { parts }, ..raw }).effect.transfer().unwrap().clone()
    };
    let one = part(2, 2, 2, 100);
    assert_eq!(decoded(&[one]).direction, CopyDirection::HostToDevice, "all copies have the same kind");
    let larger = gp_part { size_log2: 9, ..one };
    assert_eq!(decoded(&[one, larger]).direction, CopyDirection::HostToDevice, "with different sizes");
    let batch = decoded(&[one, part(1, 4, 0, 200)]);
    let all = (batch.direction, batch.host, batch.bytes);
    assert_eq!(all, (CopyDirection::Unknown, HostMemory::Unknown, Some(300)));
    let part = |direction, host, copies, bytes| CopyPart { direction, host, copies, bytes };
    let expected = [
        part(CopyDirection::HostToDevice, HostMemory::Pageable, 2, 100),
        part(CopyDirection::DeviceToDevice, HostMemory::Nothing, 1, 200),
    ];
    assert_eq!(batch.parts, expected);
}

#[test]
fn the_kernels_of_a_graph_are_reported_by_the_outermost_call() {
    let detail = gp_detail {
        graph: gp_on_graph { contents: 5, kernels: 1000, disabled: 2, ..gp_on_graph::default() },
    };
    let raw = gp_call { detail, ..call_of("cudaGraphLaunch") };
    assert_eq!(decode(&raw).effect, Effect::GraphLaunch(GraphLaunch::default()));
    let known = gp_call { effect: number::EFFECT_GRAPH, ..raw };
    let graph = GraphLaunch { kernels: Some(1000), graph: Some(5), disabled: 2, ..GraphLaunch::default() };
    assert_eq!(decode(&known).effect, Effect::GraphLaunch(graph));
    let mut list = driver_call("cuLaunchCooperativeKernelMultiDevice");
    list.registers[1] = 2;
    let mut bytes = [0; number::POINTEE];
    bytes[8] = 7;
    list.pointee = gp_pointee { bytes };
    let launched = |raw: &gp_call| {
        let call = decode(raw);
        call.effect.launch().map(|launch| (launch.kernels, launch.grid, call.nested))
    };
    assert_eq!(launched(&list), Some((2, Some([7, 0, 0]), false)));
    let nested = gp_call { flags: number::CALL_NESTED_OP, ..list };
    assert_eq!(launched(&nested), Some((1, Some([7, 0, 0]), true)));
}

#[test]
fn a_free_of_an_unknown_address_frees_nothing() {
    let raw = gp_call { pointer: 0x7f00, ..call_of("cudaFree") };
    let unknown = Free { address: Some(0x7f00), gpu: Some(0), ..Free::default() };
    assert_eq!(decode(&raw).effect, Effect::Free(unknown));
    let known = gp_call { effect: number::EFFECT_FREE, bytes: 64, ..raw };
    let freed = MemoryAmount { kind: Space::Device, allocations: 1, bytes: 64 };
    assert_eq!(decode(&known).effect.freed(), Some(&freed));
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
fn a_first_call_after_an_exec_is_an_event_only_if_execs_are_not_followed() {
    let record = gp_process_record { kind: number::RECORD_PROCESS, tgid: 10, ..Default::default() };
    let exec = gp_process_record { change: number::PROCESS_EXEC, ..record };
    let start = gp_process_record { change: number::PROCESS_START, ..record };
    for follows in [true, false] {
        let mut decoder = Decoder::new(Clock::start(), follows, CallSites::new(1000), Box::new(NoResolver));
        assert!(matches!(decoder.control(as_bytes(&exec)), Control::Process(..)));
        assert_eq!(matches!(decoder.control(as_bytes(&start)), Control::Process(..)), !follows);
    }
}

#[test]
fn invalid_records_are_counted_and_never_panic() {
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

#[test]
fn a_launch_has_its_call_site_and_its_stack() {
    let mut decoder = decoder();
    let process = ProcessKey { tgid: Tgid(10), instance: 99 };
    let raw = RawStack {
        id: 3,
        ip: 0x40,
        sp: 0,
        fp: 0,
        lr: 0,
        python: 0,
        has_python: false,
        bytes: Vec::new(),
        replaced: Vec::new(),
    };
    let found = decoder.resolve.unwind(process.tgid, &raw);
    decoder.sites.learn(process, &raw, &found, None);
    let mut decoded = |site, name| match decoder.call(as_bytes(&gp_call { site, ..call_of(name) })) {
        Some(Event::Call(call)) => (call.call_site(), call.stack.map(|stack| stack.len())),
        other => panic!("not a call: {other:?}"),
    };
    for name in ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaDeviceSynchronize"] {
        assert_eq!(decoded(3, name), (Some(SiteId(3)), Some(1)), "{name}");
        assert_eq!(decoded(0, name), (None, None), "{name}: not asked for");
        assert_eq!(decoded(4, name), (None, None), "{name}: its stack never came");
    }
}
