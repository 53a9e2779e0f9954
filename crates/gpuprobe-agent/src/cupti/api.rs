//! The functions of libcupti that the agent calls.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::{self, Display};
use std::ptr;

use super::records::Kind;

/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: there is no further record, or no further subscriber.
const MAX_LIMIT_REACHED: u32 = 12;
/// `CUPTI_ERROR_NOT_INITIALIZED`
const NOT_INITIALIZED: u32 = 15;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`
const MULTIPLE_SUBSCRIBERS: u32 = 39;

type Subscriber = *mut c_void;
type SubscriberCallback = extern "C" fn(*mut c_void, u32, u32, *const c_void);
type RequestBuffer = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type CompleteBuffer = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Declares the functions with their symbols, and how all of them are looked up.
macro_rules! functions {
    ($($field:ident: $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// The handle is that of a libcupti.
            unsafe fn look_up(library: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the handle is valid, and the symbol is text that ends.
                        let address = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                        if address.is_null() {
                            return Err(format!("it has no {}", $symbol.to_string_lossy()));
                        }
                        // SAFETY: a function of this name has these arguments in every libcupti.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    subscribe: c"cuptiSubscribe" (*mut Subscriber, SubscriberCallback, *mut c_void);
    unsubscribe: c"cuptiUnsubscribe" (Subscriber);
    register: c"cuptiActivityRegisterCallbacks" (RequestBuffer, CompleteBuffer);
    enable: c"cuptiActivityEnable" (u32);
    disable: c"cuptiActivityDisable" (u32);
    next_record: c"cuptiActivityGetNextRecord" (*mut u8, usize, *mut *mut u8);
    flush: c"cuptiActivityFlushAll" (u32);
    dropped: c"cuptiActivityGetNumDroppedRecords" (*mut c_void, u32, *mut usize);
    timestamp: c"cuptiGetTimestamp" (*mut u64);
    result_text: c"cuptiGetResultString" (u32, *mut *const c_char);
}

/// A call of CUPTI that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u32,
    text: String,
    /// CUPTI cannot be initialized; inside of `cuInit` that may mean: not yet.
    pub(crate) is_of_initialization: bool,
}

impl Failure {
    pub(crate) fn without_code(text: String) -> Self {
        Self { code: 0, text, is_of_initialization: false }
    }
}

impl Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(&self.text)
    }
}

/// The libcupti of the process. It is never unloaded.
pub(crate) struct Cupti {
    functions: Functions,
    pub(crate) file: String,
}

impl Cupti {
    /// # Safety
    ///
    /// The handle is that of a libcupti that stays loaded.
    pub(super) unsafe fn new(library: *mut c_void) -> Result<Self, String> {
        // SAFETY: as promised by the caller.
        let functions = unsafe { Functions::look_up(library) }?;
        let file = file_of(functions.subscribe as *const c_void);
        Ok(Self { functions, file })
    }

    fn check(&self, function: &str, code: u32) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let text = format!("{function} failed: {} ({code})", self.text_of(code));
        Err(Failure { code, text, is_of_initialization: false })
    }

    fn text_of(&self, code: u32) -> String {
        let mut text = ptr::null();
        // SAFETY: the pointer is valid during the call.
        let result = unsafe { (self.functions.result_text)(code, &raw mut text) };
        if result != 0 || text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: CUPTI returned a constant text.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Fails if something else in the process uses CUPTI. Initializes CUPTI at the first call.
    pub(crate) fn check_that_it_is_unused(&self) -> Result<(), Failure> {
        let mut subscriber = ptr::null_mut();
        // SAFETY: the callback is never called, because no callback is enabled.
        let code =
            unsafe { (self.functions.subscribe)(&raw mut subscriber, ignore_callback, ptr::null_mut()) };
        if matches!(code, MAX_LIMIT_REACHED | MULTIPLE_SUBSCRIBERS) {
            let text = "another profiler uses CUPTI in this process, or did and never gave it up".to_owned();
            return Err(Failure { code, text, is_of_initialization: false });
        }
        self.check("cuptiSubscribe", code)
            .map_err(|failure| Failure { is_of_initialization: code == NOT_INITIALIZED, ..failure })?;
        // SAFETY: the subscriber is the one above.
        let code = unsafe { (self.functions.unsubscribe)(subscriber) };
        self.check("cuptiUnsubscribe", code)
    }

    pub(crate) fn register(&self, request: RequestBuffer, complete: CompleteBuffer) -> Result<(), Failure> {
        // SAFETY: the callbacks keep to CUPTI's rules and are never unloaded.
        let code = unsafe { (self.functions.register)(request, complete) };
        self.check("cuptiActivityRegisterCallbacks", code)
    }

    pub(crate) fn enable(&self, kind: Kind) -> Result<(), Failure> {
        // SAFETY: it takes any number.
        let code = unsafe { (self.functions.enable)(kind.number()) };
        self.check(&format!("cuptiActivityEnable of {kind:?}"), code)
    }

    pub(crate) fn disable(&self, kind: Kind) -> Result<(), Failure> {
        // SAFETY: it takes any number.
        let code = unsafe { (self.functions.disable)(kind.number()) };
        self.check(&format!("cuptiActivityDisable of {kind:?}"), code)
    }

    /// Asks for buffers; with `forced` also for those with records of work that is not complete.
    pub(crate) fn flush(&self, forced: bool) -> Result<(), Failure> {
        // SAFETY: callbacks are registered.
        let code = unsafe { (self.functions.flush)(forced.into()) };
        self.check("cuptiActivityFlushAll", code)
    }

    /// The record after `record` in a buffer, or the first one; `None` at the end. If it fails, the rest of the buffer
    /// cannot be read.
    ///
    /// # Safety
    ///
    /// The buffer is one that CUPTI has completed with so many valid bytes, and the record is in it.
    pub(crate) unsafe fn next_record(
        &self,
        buffer: *mut u8,
        valid_bytes: usize,
        record: *mut u8,
    ) -> Result<Option<*mut u8>, Failure> {
        let mut next = record;
        // SAFETY: as promised by the caller.
        let code = unsafe { (self.functions.next_record)(buffer, valid_bytes, &raw mut next) };
        if code == MAX_LIMIT_REACHED {
            return Ok(None);
        }
        self.check("cuptiActivityGetNextRecord", code).map(|()| Some(next))
    }

    /// Records that CUPTI dropped since the last call.
    pub(crate) fn dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: the pointer is valid during the call; without a context, it is about all of them.
        let code = unsafe { (self.functions.dropped)(ptr::null_mut(), 0, &raw mut dropped) };
        if code == 0 { dropped as u64 } else { 0 }
    }

    /// The time in which records are stamped.
    pub(crate) fn timestamp(&self) -> Result<u64, Failure> {
        let mut now = 0;
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { (self.functions.timestamp)(&raw mut now) };
        self.check("cuptiGetTimestamp", code).map(|()| now)
    }
}

extern "C" fn ignore_callback(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}

/// The file of the library that an address is in.
fn file_of(address: *const c_void) -> String {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the pointer is valid during the call.
    let result = unsafe { libc::dladdr(address, &raw mut found) };
    if result == 0 || found.dli_fname.is_null() {
        return "libcupti".to_owned();
    }
    // SAFETY: the name of a library that is never unloaded.
    unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned()
}
