//! Turning CUPTI's collection on and off.

use std::ffi::c_void;
use std::ptr;

use gpuprobe_event::agent::GraphRecords;

use crate::buffers::{BUFFER_BYTES, POOL};
use crate::cupti::{Cupti, Failure, Kind};
use crate::{guard, wakeup};

/// What is recorded.
fn kinds(graphs: GraphRecords) -> impl Iterator<Item = Kind> {
    let whole = (graphs == GraphRecords::Whole).then_some(Kind::Graph);
    Kind::OPERATIONS.into_iter().chain(whole)
}

/// If any call fails, nothing stays enabled.
pub(super) fn enable(cupti: &Cupti, graphs: GraphRecords) -> Result<(), Failure> {
    if !POOL.map() {
        return Err(Failure::without_code("there is no memory for CUPTI's buffers".to_owned()));
    }
    cupti.register(request_buffer, complete_buffer)?;
    POOL.read_completed(true);
    for (enabled, kind) in kinds(graphs).enumerate() {
        if let Err(failure) = cupti.enable(kind) {
            // the first failure is the one to report
            kinds(graphs).take(enabled).for_each(|kind| drop(cupti.disable(kind)));
            POOL.read_completed(false);
            return Err(failure);
        }
    }
    Ok(())
}

/// A kind that cannot be disabled costs time, and there is nothing else to try.
pub(super) fn disable(cupti: &Cupti, graphs: GraphRecords) {
    kinds(graphs).for_each(|kind| drop(cupti.disable(kind)));
}

/// CUPTI calls it on the program's threads.
extern "C" fn request_buffer(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    let (taken, size) = match guard::run(None, || POOL.take()) {
        Some(taken) => (taken, BUFFER_BYTES),
        // CUPTI counts the records that it drops then
        None => (ptr::null_mut(), 0),
    };
    // SAFETY: CUPTI passes valid addresses for its results.
    unsafe {
        buffer.write(taken);
        bytes.write(size);
        most_records.write(0);
    }
}

/// CUPTI calls it on a thread of its own, and inside of its functions.
extern "C" fn complete_buffer(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid_bytes: usize) {
    guard::run((), || {
        if POOL.complete(buffer, valid_bytes) {
            wakeup::AGENT.next();
        }
    });
}
