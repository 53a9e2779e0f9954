//! Events for tests.

use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, Effect, Outcome, ProcessChange, ProcessEvent, Tgid, Tid};

/// An outermost call that returned this status after 1000 ns.
pub(crate) fn call(api: Api, name: &'static str, status: i64) -> Call {
    Call {
        id: 1,
        parent: None,
        depth: 0,
        start_ns: 100,
        outcome: Outcome::Returned { value: status.cast_unsigned(), duration_ns: 1000 },
        tgid: Tgid(100),
        tid: Tid(100),
        process: "app".into(),
        api,
        name: Name::Borrowed(name),
        class: Class::Other,
        status: Some(status),
        error: None,
        args: None,
        effect: Effect::default(),
        stack: None,
    }
}

/// The same call, of this duration.
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

pub(crate) fn copy(kind: Option<&'static str>, bytes: u64, status: i64) -> Call {
    let effect = Effect { size: Some(bytes), kind: kind.map(Name::Borrowed), ..Effect::default() };
    Call { class: Class::Memcpy, effect, ..call(Api::Runtime, "cudaMemcpy", status) }
}

/// An allocation that returned at this time.
pub(crate) fn alloc(ptr: u64, bytes: u64, returned_ns: u64) -> Call {
    let kind = Some(Name::Borrowed("device"));
    let effect = Effect { size: Some(bytes), ptr: Some(ptr), kind, ..Effect::default() };
    let outcome = Outcome::Returned { value: 0, duration_ns: 1 };
    let start_ns = returned_ns - 1;
    Call { class: Class::Alloc, effect, start_ns, outcome, ..call(Api::Runtime, "cudaMalloc", 0) }
}

/// A free that was entered at this time; `freed` is what the kernel side knew of it.
pub(crate) fn free(ptr: u64, freed: Option<u64>, start_ns: u64) -> Call {
    let kind = freed.map(|_| "device".into());
    let effect = Effect { freed, ptr: Some(ptr), kind, ..Effect::default() };
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
        held: Vec::new(),
    }
}
