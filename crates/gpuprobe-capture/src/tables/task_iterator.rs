//! Runs the BPF programs that visit every thread of the host, and reads what they write.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;

use gpuprobe_event::counters::{PendingCall, UnprobedReturn};
use gpuprobe_event::{Api, FunctionId, Tid, catalogue};
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

/// The outermost open call of every thread. What the Linux kernel runs outside of a library call does not
/// count: threads of the CUDA driver poll its devices for as long as they live. Launches whose return is not probed may
/// have returned.
pub(crate) fn pending_calls(object: &Object, clock: Clock) -> Result<Vec<PendingCall>, CaptureError> {
    let rows = read(object, ProgramName::PendingCalls)?;
    let may_wait = |row: &gp_pending_call| {
        row.return_slot == 0 || may_be_in_call(row.tid, row.return_slot, row.return_address)
    };
    let rows = rows.into_iter().filter(may_wait);
    Ok(rows.filter_map(|row| pending_call(row, clock)).collect())
}

/// Whether a launch whose return was not probed may not have returned: its return address is still in its place. Most of
/// what its thread does afterwards would overwrite it; its stack says for certain.
pub(crate) fn may_be_in_call(tid: u32, return_slot: u64, return_address: u64) -> bool {
    let mut address = [0; 8];
    let memory = File::open(format!("/proc/{tid}/mem"));
    memory.is_ok_and(|memory| memory.read_exact_at(&mut address, return_slot).is_ok())
        && u64::from_ne_bytes(address) == return_address
}

fn pending_call(row: gp_pending_call, clock: Clock) -> Option<PendingCall> {
    let function = FunctionId(row.function);
    let is_of_library = catalogue().get(function)?.api != Api::Kernel;
    is_of_library.then(|| PendingCall {
        process: process_of(row.tgid, row.instance),
        function,
        start_ns: clock.since_start(row.start_ns),
        unprobed: (row.return_slot != 0)
            .then_some(UnprobedReturn { tid: Tid(row.tid), slot: row.return_slot }),
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
            gp_pending_call { instance: 3, tgid: 42, function, start_ns, ..gp_pending_call::default() }
        };
        let found = pending_call(row_of(Api::Driver), clock).unwrap();
        assert_eq!((found.process, found.start_ns), (process_of(42, 3), 7));
        assert_eq!(pending_call(row_of(Api::Kernel), clock), None);
        let unknown = gp_pending_call { function: u32::MAX, ..row_of(Api::Driver) };
        assert_eq!(pending_call(unknown, clock), None);
    }
    #[test]
    fn a_launch_is_pending_while_its_return_address_is_in_its_place() {
        let slot: Box<u64> = Box::new(0x1234);
        let tid = std::process::id();
        let place = &raw const *slot as u64;
        assert!(may_be_in_call(tid, place, 0x1234));
        assert!(!may_be_in_call(tid, place, 0x1235), "another call has its place");
        assert!(!may_be_in_call(tid, 8, 0), "nothing is there");
    }
}
