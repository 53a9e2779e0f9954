//! Runs the task iterator and reads what it writes.

use gpuprobe_event::Tgid;
use libbpf_rs::{IterOpts, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use crate::error::CaptureError;
use crate::load::libbpf_log::{last_lines, with_log};
use crate::load::requirements::check_machine;
use crate::tables::task_iterator::read_bytes;
use crate::wire::object_handles::{open_maps, open_programs, program_of};
use crate::wire::{MapName, ProgramName, from_bytes, gp_thread_sample, object};

/// The most bytes that one round may have: some thousands of threads. Further threads are counted.
const ROUND_BYTES: u64 = 256 << 20;

/// The task iterator, loaded without any other program.
#[derive(Debug)]
pub struct ThreadIterator {
    link: Link,
    processes: MapHandle,
    chosen: Vec<Tgid>,
    _object: Object,
}

/// A thread as the iterator wrote it.
#[derive(Debug)]
pub(crate) struct RawThread {
    pub(crate) head: gp_thread_sample,
    /// A copy of the stack from the stack pointer on.
    pub(crate) stack: Vec<u8>,
}

impl ThreadIterator {
    /// Loads it. This needs privileges that reading does not.
    pub fn new() -> Result<Self, CaptureError> {
        check_machine(None)?;
        let (loaded, log) = with_log(|| open().and_then(OpenObject::load));
        let object = loaded.map_err(|source| CaptureError::Load { reason: last_lines(&log), source })?;
        let program = program_of(&object, ProgramName::SampleThreads)?;
        let link = program.attach_iter_with_opts(IterOpts::None).map_err(CaptureError::bpf(READ))?;
        let name = MapName::SampledProcesses.as_str();
        // the object has few of its maps, so their positions are not those of the names
        let map = object.maps().find(|map| map.name() == name).ok_or(CaptureError::NotLoaded(name))?;
        let processes = MapHandle::try_from(&map).map_err(CaptureError::bpf(READ))?;
        Ok(Self { link, processes, chosen: Vec::new(), _object: object })
    }

    /// The threads of these processes, and whether there may be more.
    pub(crate) fn read(&mut self, processes: &[Tgid]) -> Result<(Vec<RawThread>, bool), CaptureError> {
        self.choose(processes)?;
        let bytes = read_bytes(&self.link, ROUND_BYTES).map_err(CaptureError::bpf(READ))?;
        Ok((threads(&bytes), bytes.len() as u64 == ROUND_BYTES))
    }

    fn choose(&mut self, processes: &[Tgid]) -> Result<(), CaptureError> {
        if self.chosen == processes {
            return Ok(());
        }
        for old in std::mem::take(&mut self.chosen) {
            // it may have been the only one that fitted
            self.processes.delete(&old.0.to_ne_bytes()).ok();
        }
        for tgid in processes {
            let (key, value) = (tgid.0.to_ne_bytes(), 1u32.to_ne_bytes());
            self.processes.update(&key, &value, MapFlags::ANY).map_err(CaptureError::bpf(READ))?;
            self.chosen.push(*tgid);
        }
        Ok(())
    }
}

const READ: &str = "read the threads of processes";

/// Opens the object with the iterator and its maps only.
fn open() -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("gpuprobe")?.open_memory(&object()?)?;
    for (name, mut program) in open_programs(&mut object) {
        program.set_autoload(name == ProgramName::SampleThreads);
    }
    for (name, mut map) in open_maps(&mut object) {
        map.set_autocreate(matches!(name, MapName::SampledProcesses | MapName::ThreadCopy))?;
    }
    Ok(object)
}

/// Splits what the iterator wrote. A record that is cut off is omitted.
fn threads(mut bytes: &[u8]) -> Vec<RawThread> {
    let mut threads = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(size_of::<gp_thread_sample>()) {
        let head: gp_thread_sample = from_bytes(head);
        let Some((stack, rest)) = rest.split_at_checked(head.length as usize) else { break };
        threads.push(RawThread { head, stack: stack.to_vec() });
        bytes = rest;
    }
    threads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::as_bytes;

    #[test]
    fn records_are_split_and_a_cut_one_is_omitted() {
        let head = |tid, length| gp_thread_sample { tid, length, ..gp_thread_sample::default() };
        let mut bytes = Vec::new();
        for (tid, length) in [(1, 0), (2, 16), (3, 8)] {
            bytes.extend(as_bytes(&head(tid, length)));
            bytes.extend(vec![tid as u8; length as usize]);
        }
        let found = |bytes: &[u8]| -> Vec<(u32, usize)> {
            threads(bytes).iter().map(|thread| (thread.head.tid, thread.stack.len())).collect()
        };
        assert_eq!(found(&bytes), [(1, 0), (2, 16), (3, 8)]);
        assert_eq!(found(&bytes[..bytes.len() - 1]), [(1, 0), (2, 16)]);
        assert_eq!(found(&bytes[..10]), []);
    }
}
