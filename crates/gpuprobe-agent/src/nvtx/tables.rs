//! Puts the callbacks into the tables of NVTX. Every library with NVTX inside has its own, and initializes it by itself.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::{callbacks, thread_ranges};

/// What NVTX passes: a function that returns a table by its number.
pub(crate) type ExportTables = extern "C" fn(u32) -> *const c_void;

/// `NVTX_ETID_CALLBACKS`
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE` and `NVTX_CB_MODULE_CORE2`
const CORE: u32 = 1;
const CORE2: u32 = 5;

/// The place of the pointer by which NVTX calls a function.
type Place = *mut *const c_void;

#[repr(C)]
struct CallbackTable {
    bytes: usize,
    module: Option<extern "C" fn(u32, *mut *const Place, *mut c_uint) -> c_int>,
}

/// Whether the callbacks are in place.
pub(crate) fn install(tables: ExportTables) -> bool {
    let table = tables(CALLBACKS).cast::<CallbackTable>();
    // SAFETY: null, or a table that begins with its size.
    let module = unsafe {
        if table.is_null() || (*table).bytes < size_of::<CallbackTable>() {
            return false;
        }
        (*table).module
    };
    let Some(module) = module else { return false };
    thread_ranges::prepare();
    fill(module, CORE, &callbacks::CORE) && fill(module, CORE2, &callbacks::CORE2)
}

fn fill(
    module: extern "C" fn(u32, *mut *const Place, *mut c_uint) -> c_int,
    number: u32,
    callbacks: &[callbacks::Callback],
) -> bool {
    let (mut places, mut count) = (ptr::null(), 0);
    if module(number, &raw mut places, &raw mut count) == 0 || places.is_null() {
        return false;
    }
    for callback in callbacks.iter().filter(|callback| callback.number < count) {
        // SAFETY: NVTX passes so many pointers to the places of its functions; unused ones are null.
        unsafe {
            let place = places.add(callback.number as usize).read();
            if !place.is_null() {
                place.write(callback.function.0);
            }
        }
    }
    true
}
