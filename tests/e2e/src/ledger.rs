//! Compares a trace with the ledger that the workload printed. All figures must be equal.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{Api, Call, Class, Value as Argument};
use gpuprobe_standin::{CopyKind, cuda_function, inner_call, inner_copy_call};
use serde_json::Value;

use crate::recording::{Counts, Recording, counts_of, number, pid_of};

/// Their result is the last error, not their own status.
const LAST_ERRORS: [&str; 2] = ["cudaGetLastError", "hipGetLastError"];

/// A copy whose direction follows from its addresses.
const DEFAULT: &str = "Default";

/// Grid and block of each CUDA kernel of the ledger.
const KERNELS: [(&str, [u32; 3], [u32; 3]); 3] = [
    ("ledger_scale", [64, 1, 1], [256, 1, 1]),
    ("ledger_reduce", [32, 4, 1], [128, 2, 1]),
    ("ledger_add", [16, 8, 2], [32, 4, 2]),
];

/// Whether a call can change live memory.
pub fn affects_memory(call: &Call) -> bool {
    matches!(call.class, Class::Alloc | Class::Free | Class::HostRegister | Class::HostUnregister)
}

/// Compares calls, errors, memory, copies and launches.
pub fn assert_equal(trace: &Recording, ledger: &Value) {
    assert_layers(trace, ledger, Api::Runtime, true);
}

/// The same for the ledger of a program of HIP, which calls the CUDA driver or does not.
pub fn assert_equal_hip(trace: &Recording, ledger: &Value, is_on_cuda: bool) {
    assert_layers(trace, ledger, Api::Hip, is_on_cuda);
}

fn assert_layers(trace: &Recording, ledger: &Value, outer: Api, has_inner: bool) {
    let pid = pid_of(ledger);
    assert_eq!(trace.counts(pid, outer), counts_of(&ledger["calls"]), "calls of {outer}");
    let inner = if has_inner { counts_of(&ledger["driver_calls"]) } else { Counts::new() };
    assert_eq!(trace.counts(pid, Api::Driver), inner, "driver calls");
    assert_errors(trace, ledger, outer);
    if has_inner {
        assert_inner_calls(trace, pid, outer);
    }
    assert_memory(trace, ledger);
    assert_copies(trace, ledger);
    let layers = [outer, Api::Driver];
    assert_launches(trace, ledger, if has_inner { &layers } else { &layers[..1] });
}

fn outermost(trace: &Recording, pid: u32) -> impl Iterator<Item = &Call> {
    trace.of(pid).filter(|c| c.parent.is_none())
}

fn assert_errors(trace: &Recording, ledger: &Value, api: Api) {
    let mut errors: BTreeMap<String, Counts> = BTreeMap::new();
    let mut last_errors = 0;
    for call in trace.of(pid_of(ledger)).filter(|c| c.api == api && c.status != Some(0)) {
        let status = call.status.unwrap_or_else(|| panic!("no status: {call:?}"));
        if is_last_error(call) {
            last_errors += 1;
            continue;
        }
        assert!(call.failed() && call.error.is_some(), "{call:?}");
        *errors.entry(call.name.to_string()).or_default().entry(status.to_string()).or_default() += 1;
    }
    let printed = ledger["errors"].as_object().unwrap_or_else(|| panic!("no errors: {ledger}"));
    let printed: BTreeMap<_, _> = printed.iter().map(|(f, codes)| (f.clone(), counts_of(codes))).collect();
    assert_eq!(errors, printed, "errors by function and code");
    assert_eq!(last_errors, number(&ledger["last_errors"]), "results that are the last error");
}

fn is_last_error(call: &Call) -> bool {
    LAST_ERRORS.contains(&&*call.name)
}

/// Checks that every runtime call has exactly one inner call, on its thread and within its time.
pub fn assert_parents(trace: &Recording, pid: u32) {
    assert_inner_calls(trace, pid, Api::Runtime);
}

fn assert_inner_calls(trace: &Recording, pid: u32, api: Api) {
    let by_id = trace.by_id();
    let mut children: HashMap<u64, u32> = HashMap::new();
    for inner in trace.of(pid).filter(|c| c.api == Api::Driver) {
        let parent = inner.parent.unwrap_or_else(|| panic!("no parent: {inner:?}"));
        let outer = by_id.get(&parent).unwrap_or_else(|| panic!("the parent is not there: {inner:?}"));
        assert_eq!(inner_of(outer), Some(&*inner.name), "{outer:?}");
        assert_eq!((inner.tgid, inner.tid), (outer.tgid, outer.tid), "{inner:?} in {outer:?}");
        assert!(inner.start_ns >= outer.start_ns && end_ns(inner) <= end_ns(outer), "{inner:?} in {outer:?}");
        if !is_last_error(outer) {
            assert_eq!(inner.failed(), outer.failed(), "{inner:?} in {outer:?}");
        }
        *children.entry(parent).or_default() += 1;
    }
    for outer in trace.of(pid).filter(|c| c.api == api) {
        assert_eq!(outer.parent, None, "{outer:?}");
        let made = children.get(&outer.id).copied().unwrap_or(0);
        assert_eq!(made, u32::from(inner_of(outer).is_some()), "inner calls of {outer:?}");
    }
}

/// The CUDA driver function that a call of the runtime, or of HIP, calls.
fn inner_of(outer: &Call) -> Option<&'static str> {
    let name = cuda_function(&outer.name).unwrap_or(&outer.name);
    let kind = argument(outer, "kind");
    let kind = kind.and_then(|v| CopyKind::ALL.into_iter().find(|k| *v == Argument::Name(k.as_str().into())));
    kind.map_or_else(|| inner_call(name), |kind| inner_copy_call(name, kind))
}

/// The direction in the arguments of a copy.
fn asked_kind(call: &Call) -> &str {
    match argument(call, "kind") {
        Some(Argument::Name(kind)) => kind,
        _ => "unknown",
    }
}

/// Checks that copies with direction `Default` have the direction that follows from the addresses.
pub fn assert_resolved(trace: &Recording, pid: u32) {
    let left_open = |c: &&Call| c.class == Class::Memcpy && asked_kind(c) == DEFAULT && !c.failed();
    for call in outermost(trace, pid).filter(left_open) {
        let reported = call.effect.transfer().map(|transfer| (transfer.direction, transfer.host));
        assert_eq!(reported, Some((CopyDirection::HostToDevice, HostMemory::Pageable)), "{call:?}");
    }
}

pub fn argument<'a>(call: &'a Call, name: &str) -> Option<&'a Argument> {
    call.args.as_ref()?.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

fn end_ns(call: &Call) -> u64 {
    call.start_ns + call.duration_ns().unwrap_or_else(|| panic!("it did not return: {call:?}"))
}

fn assert_memory(trace: &Recording, ledger: &Value) {
    let pid = pid_of(ledger);
    let mut kinds: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    for call in trace.of(pid).filter(|c| affects_memory(c)) {
        let (kind, amounts) = match (call.effect.allocation(), call.effect.freed()) {
            (Some(allocation), _) => (allocation.kind, [1, 0, allocation.bytes, 0]),
            (_, Some(freed)) => (freed.kind, [0, freed.allocations, 0, freed.bytes]),
            _ => continue,
        };
        let row = kinds.entry(kind.as_str().to_owned()).or_default();
        row.iter_mut().zip(amounts).for_each(|(sum, n)| *sum += n);
        assert!(call.parent.is_none() && !call.failed(), "counted twice or failed: {call:?}");
    }
    for (kind, printed) in ledger["memory"].as_object().into_iter().flatten() {
        let fields = ["allocations", "frees", "allocated_bytes", "freed_bytes"];
        let expected = fields.map(|f| number(&printed[f]));
        let got = kinds.remove(kind).unwrap_or_default();
        assert_eq!(got, expected, "{fields:?} of {kind}");
        let live = (number(&printed["live"]), number(&printed["live_bytes"]));
        assert_eq!((got[0] - got[1], got[2] - got[3]), live, "live {kind}");
    }
    assert_eq!(kinds, BTreeMap::new(), "kinds that the ledger does not have");

    let failed = |class| outermost(trace, pid).filter(|c| c.class == class && c.failed()).count() as u64;
    assert_eq!(failed(Class::Alloc), number(&ledger["failed_allocations"]), "failed allocations");
    assert_eq!(failed(Class::Free), number(&ledger["failed_frees"]), "failed frees");
    let null = |c: &&Call| c.class == Class::Free && !c.failed() && c.effect.freed().is_none();
    assert_eq!(
        outermost(trace, pid).filter(null).count() as u64,
        number(&ledger["null_frees"]),
        "free(NULL)"
    );
}

fn assert_copies(trace: &Recording, ledger: &Value) {
    let pid = pid_of(ledger);
    let mut kinds: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    let mut memset = [0; 2];
    for call in outermost(trace, pid) {
        let is_async = usize::from(call.name.ends_with("Async"));
        let bytes = call.moved_bytes();
        match call.class {
            Class::Memset => memset[is_async] += bytes,
            Class::Memcpy => {
                let asked = asked_kind(call);
                let kind = call.effect.transfer().map(|transfer| transfer.direction.as_str());
                assert!(kind == Some(asked) || asked == DEFAULT, "{call:?}");
                let row = kinds.entry(asked.to_owned()).or_default();
                row[is_async] += 1;
                row[2 + is_async] += bytes;
            }
            _ => {}
        }
    }
    for (kind, printed) in ledger["copies"].as_object().into_iter().flatten() {
        let fields = ["sync", "async", "sync_bytes", "async_bytes"];
        let got = kinds.remove(kind).unwrap_or_default();
        assert_eq!(got, fields.map(|f| number(&printed[f])), "{fields:?} of {kind}");
    }
    assert_eq!(kinds, BTreeMap::new(), "kinds that the ledger does not have");
    let printed = &ledger["memset_bytes"];
    assert_eq!(memset, [number(&printed["sync"]), number(&printed["async"])], "bytes set");
}

fn assert_launches(trace: &Recording, ledger: &Value, apis: &[Api]) {
    for &api in apis {
        let mut launches = Counts::new();
        for call in trace.of(pid_of(ledger)).filter(|c| c.api == api && c.class == Class::Launch) {
            let shape = call.effect.launch().map(|launch| (launch.grid, launch.block));
            let kernel = KERNELS.iter().find(|(_, grid, block)| shape == Some((Some(*grid), Some(*block))));
            let (name, ..) = kernel.unwrap_or_else(|| panic!("no kernel has this shape: {call:?}"));
            *launches.entry((*name).to_owned()).or_default() += 1;
        }
        let mut printed = counts_of(&ledger["launches"]);
        printed.retain(|_, n| *n > 0);
        assert_eq!(launches, printed, "launches by shape, {api}");
    }
}
