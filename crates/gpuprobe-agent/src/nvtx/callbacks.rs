//! The functions that NVTX calls on the program's threads. While no probe is attached, they return at once.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gpuprobe_event::agent::RangeKind;

use super::open_ranges::{OPEN, ProcessRange};
use super::ring::{FinishedRange, RING};
use super::strings::STRINGS;
use super::text::Text;
use super::thread_ranges::{self, OpenRange};
use crate::{guard, monotonic};

/// `NVTX_NO_PUSH_POP_TRACKING`
const NOT_TRACKED: c_int = -2;

/// The number of the collection; even while nothing is recorded.
static COLLECTION: AtomicU32 = AtomicU32::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Whether ranges are recorded from now on.
pub(crate) fn set_recorded(are_recorded: bool) {
    let mut now = COLLECTION.load(Ordering::Acquire);
    while (now % 2 == 1) != are_recorded {
        let next = now.wrapping_add(1);
        match COLLECTION.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(other) => now = other,
        }
    }
}

/// Ranges for which there was no room, since the last call.
pub(crate) fn take_dropped() -> u64 {
    DROPPED.swap(0, Ordering::Relaxed)
}

/// The number of the collection, if there is one.
fn collection() -> Option<u32> {
    let number = COLLECTION.load(Ordering::Relaxed);
    (number % 2 == 1).then_some(number)
}

/// A function of NVTX, by its number in the table.
pub(super) struct Callback {
    pub(super) number: u32,
    pub(super) function: Function,
}

pub(super) struct Function(pub(super) *const c_void);

// SAFETY: the address of a function.
unsafe impl Sync for Function {}

macro_rules! callbacks {
    ($($number:literal => $function:ident,)*) => {
        [$(Callback { number: $number, function: Function($function as *const c_void) },)*]
    };
}

/// `NVTX_CBID_CORE_*`
pub(super) static CORE: [Callback; 11] = callbacks! {
    1 => mark_ex,
    2 => mark_a,
    3 => mark_w,
    4 => range_start_ex,
    5 => range_start_a,
    6 => range_start_w,
    7 => range_end,
    8 => range_push_ex,
    9 => range_push_a,
    10 => range_push_w,
    11 => range_pop,
};

/// `NVTX_CBID_CORE2_*`
pub(super) static CORE2: [Callback; 10] = callbacks! {
    1 => domain_mark_ex,
    2 => domain_range_start_ex,
    3 => domain_range_end,
    4 => domain_range_push_ex,
    5 => domain_range_pop,
    10 => domain_register_string_a,
    11 => domain_register_string_w,
    12 => domain_create_a,
    13 => domain_create_w,
    14 => domain_destroy,
};

/// `nvtxEventAttributes_t`
#[repr(C)]
struct Attributes {
    version: u16,
    bytes: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

const COLOR_ARGB: i32 = 1;
const MESSAGE_BYTES: i32 = 1;
const MESSAGE_WIDE: i32 = 2;
const MESSAGE_REGISTERED: i32 = 3;

type Domain = *const c_void;

/// What a program says about a range.
enum Message {
    Bytes(*const c_char),
    Wide(*const libc::wchar_t),
    Attributes(*const Attributes),
}

impl Message {
    /// # Safety
    ///
    /// The pointers are those that a program passed to NVTX: null, or valid by its rules.
    unsafe fn read(&self) -> (Text, u32) {
        // SAFETY: as promised by the caller; the size says whether the message is there.
        unsafe {
            match self {
                Self::Bytes(text) => (Text::of_bytes(*text), 0),
                Self::Wide(text) => (Text::of_wide(*text), 0),
                Self::Attributes(attributes) => {
                    let Some(attributes) = attributes.as_ref() else { return (Text::EMPTY, 0) };
                    if usize::from(attributes.bytes) < size_of::<Attributes>() {
                        return (Text::EMPTY, 0);
                    }
                    let color = if attributes.color_type == COLOR_ARGB { attributes.color } else { 0 };
                    let text = match attributes.message_type {
                        MESSAGE_BYTES => Text::of_bytes(attributes.message.cast()),
                        MESSAGE_WIDE => Text::of_wide(attributes.message.cast()),
                        MESSAGE_REGISTERED => STRINGS.text(attributes.message),
                        _ => Text::EMPTY,
                    };
                    (text, color)
                }
            }
        }
    }
}

fn range(domain: Domain, message: &Message) -> OpenRange {
    // SAFETY: a program passed the message to NVTX.
    let (name, color) = unsafe { message.read() };
    OpenRange { start_ns: monotonic::now_ns(), domain: STRINGS.text(domain), name, color }
}

fn finish(kind: RangeKind, tid: u32, range: &OpenRange, end_ns: u64) {
    let OpenRange { start_ns, domain, name, color } = *range;
    if !RING.add(&FinishedRange { kind, tid, start_ns, end_ns, domain, name, color }) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts what was not done.
fn or_dropped<T>(done: Option<T>) -> Option<T> {
    if done.is_none() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
    done
}

fn mark(domain: Domain, message: &Message) {
    let Some(collection) = collection() else { return };
    guard::run((), || {
        let mark = range(domain, message);
        if let Some(tid) = or_dropped(thread_ranges::with_own(collection, |own| own.tid)) {
            finish(RangeKind::Mark, tid, &mark, mark.start_ns);
        }
    });
}

fn push(domain: Domain, message: &Message) -> c_int {
    let Some(collection) = collection() else { return NOT_TRACKED };
    guard::run(NOT_TRACKED, || {
        let new = range(domain, message);
        let depth = or_dropped(thread_ranges::with_own(collection, |own| own.push(new)).flatten());
        depth.map_or(NOT_TRACKED, |depth| depth as c_int)
    })
}

fn pop(domain: Domain) -> c_int {
    let Some(collection) = collection() else { return NOT_TRACKED };
    guard::run(NOT_TRACKED, || {
        let end_ns = monotonic::now_ns();
        let domain = STRINGS.text(domain).id;
        let popped = thread_ranges::with_own(collection, |own| Some((own.tid, own.pop(domain)?)));
        // one that was pushed before the collection began is not known
        let Some((tid, (range, left))) = popped.flatten() else { return NOT_TRACKED };
        finish(RangeKind::Nested, tid, &range, end_ns);
        left as c_int
    })
}

fn start(domain: Domain, message: &Message) -> u64 {
    let Some(collection) = collection() else { return 0 };
    guard::run(0, || {
        let range = range(domain, message);
        let tid = or_dropped(thread_ranges::with_own(collection, |own| own.tid));
        let id = tid.map(|tid| OPEN.begin(ProcessRange { range, tid, collection }));
        or_dropped(id.filter(|id| *id != 0)).unwrap_or(0)
    })
}

fn end(id: u64) {
    // also while nothing is recorded, so that its place is free again
    if id == 0 {
        return;
    }
    guard::run((), || {
        let end_ns = monotonic::now_ns();
        if let Some(ended) = OPEN.end(id).filter(|ended| Some(ended.collection) == collection()) {
            finish(RangeKind::Process, ended.tid, &ended.range, end_ns);
        }
    });
}

fn register(text: Text) -> *const c_void {
    STRINGS.handle(text)
}

extern "C" fn mark_ex(attributes: *const Attributes) {
    mark(std::ptr::null(), &Message::Attributes(attributes));
}

extern "C" fn mark_a(text: *const c_char) {
    mark(std::ptr::null(), &Message::Bytes(text));
}

extern "C" fn mark_w(text: *const libc::wchar_t) {
    mark(std::ptr::null(), &Message::Wide(text));
}

extern "C" fn range_start_ex(attributes: *const Attributes) -> u64 {
    start(std::ptr::null(), &Message::Attributes(attributes))
}

extern "C" fn range_start_a(text: *const c_char) -> u64 {
    start(std::ptr::null(), &Message::Bytes(text))
}

extern "C" fn range_start_w(text: *const libc::wchar_t) -> u64 {
    start(std::ptr::null(), &Message::Wide(text))
}

extern "C" fn range_end(id: u64) {
    end(id);
}

extern "C" fn range_push_ex(attributes: *const Attributes) -> c_int {
    push(std::ptr::null(), &Message::Attributes(attributes))
}

extern "C" fn range_push_a(text: *const c_char) -> c_int {
    push(std::ptr::null(), &Message::Bytes(text))
}

extern "C" fn range_push_w(text: *const libc::wchar_t) -> c_int {
    push(std::ptr::null(), &Message::Wide(text))
}

extern "C" fn range_pop() -> c_int {
    pop(std::ptr::null())
}

extern "C" fn domain_mark_ex(domain: Domain, attributes: *const Attributes) {
    mark(domain, &Message::Attributes(attributes));
}

extern "C" fn domain_range_start_ex(domain: Domain, attributes: *const Attributes) -> u64 {
    start(domain, &Message::Attributes(attributes))
}

extern "C" fn domain_range_end(_: Domain, id: u64) {
    end(id);
}

extern "C" fn domain_range_push_ex(domain: Domain, attributes: *const Attributes) -> c_int {
    push(domain, &Message::Attributes(attributes))
}

extern "C" fn domain_range_pop(domain: Domain) -> c_int {
    pop(domain)
}

extern "C" fn domain_register_string_a(_: Domain, text: *const c_char) -> *const c_void {
    // SAFETY: a program passed the text to NVTX.
    guard::run(std::ptr::null(), || register(unsafe { Text::of_bytes(text) }))
}

extern "C" fn domain_register_string_w(_: Domain, text: *const libc::wchar_t) -> *const c_void {
    // SAFETY: a program passed the text to NVTX.
    guard::run(std::ptr::null(), || register(unsafe { Text::of_wide(text) }))
}

extern "C" fn domain_create_a(text: *const c_char) -> Domain {
    // SAFETY: a program passed the text to NVTX.
    guard::run(std::ptr::null(), || register(unsafe { Text::of_bytes(text) }))
}

extern "C" fn domain_create_w(text: *const libc::wchar_t) -> Domain {
    // SAFETY: a program passed the text to NVTX.
    guard::run(std::ptr::null(), || register(unsafe { Text::of_wide(text) }))
}

/// Another domain of the same name has the same handle.
extern "C" fn domain_destroy(_: Domain) {}
