//! Sample events for tests.

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::event::Name;
use gpuprobe_event::{
    Allocation, Api, Call, Class, Effect, Free, Launch, MemoryAmount, Outcome, ProcessChange, ProcessEvent,
    Space, Tgid, Tid, Transfer,
};

/// An outermost call that returned this status after 1000 ns.
pub(crate) fn call(api: Api, name: &'static str, status: i64) -> Call {
    Call {
        id: 1,
        parent: None,
        depth: 0,
        nested: false,
        weight: 1,
        start_ns: 100,
        outcome: Outcome::Returned { value: status.cast_unsigned(), duration_ns: 1000 },
        return_probed: true,
        tgid: Tgid(100),
        tid: Tid(100),
        process: "app".into(),
        api,
        name: Name::Borrowed(name),
        class: Class::Other,
        status: Some(status),
        error: None,
        args: None,
        stream: None,
        effect: Effect::None,
        driver: None,
        site: None,
        stack: None,
    }
}

/// The same call with this duration.
pub(crate) fn took(call: Call, duration_ns: u64) -> Call {
    Call { outcome: Outcome::Returned { value: 0, duration_ns }, ..call }
}

/// The same call, not seen to return.
pub(crate) fn unfinished(call: Call) -> Call {
    Call { outcome: Outcome::Unfinished, status: None, ..call }
}

/// The same call, made inside another.
pub(crate) fn inside(call: Call, parent: u64) -> Call {
    Call { parent: Some(parent), depth: 1, ..call }
}

/// The same call, made inside another of the same kind, which counts its effect.
pub(crate) fn nested(call: Call, parent: u64) -> Call {
    Call { nested: true, ..inside(call, parent) }
}

/// A synchronous copy.
pub(crate) fn copy(direction: CopyDirection, bytes: u64, status: i64) -> Call {
    let effect = Effect::Transfer(Transfer { bytes: Some(bytes), ..Transfer::new(direction, false) });
    Call { class: Class::Memcpy, effect, ..call(Api::Runtime, "cudaMemcpy", status) }
}

/// A launch of a CUDA kernel without a name.
pub(crate) fn launch(name: &'static str, stream: Option<u64>) -> Call {
    let effect = Effect::Launch(Launch::default());
    Call { class: Class::Launch, stream, effect, ..call(Api::Runtime, name, 0) }
}

/// The same launch of a CUDA kernel with this name.
pub(crate) fn of_kernel(mut call: Call, name: Option<&str>) -> Call {
    if let Effect::Launch(launch) = &mut call.effect {
        launch.kernel = name.map(Into::into);
    }
    call
}

/// The same GPU operation, captured into a graph.
pub(crate) fn captured(mut call: Call) -> Call {
    match &mut call.effect {
        Effect::Launch(launch) => launch.captured = true,
        Effect::GraphLaunch(launch) => launch.captured = true,
        Effect::Transfer(transfer) => transfer.captured = true,
        _ => {}
    }
    call
}

/// An allocation that returned at this time.
pub(crate) fn alloc(address: u64, bytes: u64, returned_ns: u64) -> Call {
    let allocation =
        Allocation { bytes, address: Some(address), kind: Space::Device, ..Allocation::default() };
    let outcome = Outcome::Returned { value: 0, duration_ns: 1 };
    let (effect, start_ns) = (Effect::Alloc(allocation), returned_ns - 1);
    Call { class: Class::Alloc, effect, start_ns, outcome, ..call(Api::Runtime, "cudaMalloc", 0) }
}

/// A free that was entered at this time; `freed` is the size that the BPF side had for the address.
pub(crate) fn free(address: u64, freed: Option<u64>, start_ns: u64) -> Call {
    let freed = freed.map(|bytes| MemoryAmount { kind: Space::Device, allocations: 1, bytes });
    let effect = Effect::Free(Free { address: Some(address), freed, ..Free::default() });
    Call { class: Class::Free, effect, start_ns, ..call(Api::Runtime, "cudaFree", 0) }
}

pub(crate) fn process(change: ProcessChange, at_ns: u64, exit_status: Option<i32>) -> ProcessEvent {
    ProcessEvent {
        id: 1,
        at_ns,
        change,
        tgid: Tgid(100),
        tid: Tid(100),
        process: "app".into(),
        parent: None,
        ns_pid: None,
        container: None,
        exit_status,
        rank: None,
        live: Vec::new(),
    }
}
