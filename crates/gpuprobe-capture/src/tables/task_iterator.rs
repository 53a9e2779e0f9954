//! Runs the BPF programs that visit every thread of the host, and reads what they write.

use std::io::{ErrorKind, Read};

use gpuprobe_event::counters::PendingCall;
use gpuprobe_event::{Api, FunctionId, catalogue};
use libbpf_rs::{Iter, IterOpts, Link, Object};

use super::process_rows::process_of;
use crate::error::CaptureError;
use crate::host::clock::Clock;
use crate::wire::object_handles::program_of;
use crate::wire::{ProgramName, Wire, from_bytes, gp_pending_call};

const READ: &str = "read open calls";

/// What the program writes about all threads, as records of one type.
pub(crate) fn read<T: Wire>(object: &Object, name: ProgramName) -> Result<Vec<T>, CaptureError> {
    let program = program_of(object, name)?;
    let link = program.attach_iter_with_opts(IterOpts::None).map_err(CaptureError::bpf(READ))?;
    let bytes = read_bytes(&link, u64::MAX).map_err(CaptureError::bpf(READ))?;
    Ok(bytes.chunks_exact(size_of::<T>()).map(from_bytes).collect())
}

/// What an iterator writes, at most so many bytes of it.
pub(crate) fn read_bytes(link: &Link, most: u64) -> Result<Vec<u8>, libbpf_rs::Error> {
    let mut iterator = Iter::new(link)?.take(most);
    let mut bytes = Vec::new();
    // the Linux kernel interrupts a read after a million threads without a record
    while let Err(error) = iterator.read_to_end(&mut bytes) {
        if error.kind() != ErrorKind::WouldBlock {
            return Err(error.into());
        }
    }
    Ok(bytes)
}

/// The outermost call of every thread, if it is pending. What the Linux kernel runs outside of a library call does not
/// count: threads of the CUDA driver poll its devices for as long as they live.
pub(crate) fn pending_calls(object: &Object, clock: Clock) -> Result<Vec<PendingCall>, CaptureError> {
    let rows = read(object, ProgramName::PendingCalls)?;
    Ok(rows.into_iter().filter_map(|row| pending_call(row, clock)).collect())
}

fn pending_call(row: gp_pending_call, clock: Clock) -> Option<PendingCall> {
    let function = FunctionId(row.function);
    let is_of_library = catalogue().get(function)?.api != Api::Kernel;
    is_of_library.then(|| PendingCall {
        process: process_of(row.tgid, row.instance),
        function,
        start_ns: clock.since_start(row.start_ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_outside_of_a_library_call_are_not_pending() {
        let clock = Clock::start();
        let start_ns = clock.epoch_ns() + 7;
        let row_of = |api| {
            let function = catalogue().functions().iter().find(|f| f.api == api).unwrap().id.0;
            gp_pending_call { instance: 3, tgid: 42, function, start_ns }
        };
        let found = pending_call(row_of(Api::Driver), clock).unwrap();
        assert_eq!((found.process, found.start_ns), (process_of(42, 3), 7));
        assert_eq!(pending_call(row_of(Api::Kernel), clock), None);
        let unknown = gp_pending_call { function: u32::MAX, ..row_of(Api::Driver) };
        assert_eq!(pending_call(unknown, clock), None);
    }
}
