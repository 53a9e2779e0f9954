//! Removes the address ranges of exited processes from the BPF trie. Every step through a trie starts at its root, so
//! a pass over a large one takes seconds: a separate thread does it, and nothing waits for it. Keys contain the
//! process, so remaining entries do no harm.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use gpuprobe_event::counters::ProcessKey;
use libbpf_rs::{Map, MapHandle};

use crate::error::CaptureError;
use crate::tables::process_rows::remove_of;
use crate::wire::gp_range_key;

type Exited = HashSet<ProcessKey>;

#[derive(Debug)]
struct Thread {
    exited: Sender<Exited>,
    thread: JoinHandle<Result<(), CaptureError>>,
}

/// The thread. It is started when it is first needed, with the privileges of the caller at that time.
#[derive(Debug, Default)]
pub(crate) struct RangeSweeper(Option<Thread>);

impl RangeSweeper {
    /// Removes the ranges of these processes from the map, without waiting for it.
    pub(crate) fn sweep(&mut self, ranges: &Map<'_>, exited: Exited) -> Result<(), CaptureError> {
        if exited.is_empty() {
            return Ok(());
        }
        if self.0.is_none() {
            self.0 = Some(start(ranges)?);
        }
        let has_failed = self.0.as_ref().is_some_and(|thread| thread.exited.send(exited).is_err());
        match self.0.take_if(|_| has_failed).map(|thread| thread.thread.join()) {
            Some(Ok(result)) => result,
            _ => Ok(()),
        }
    }
}

fn start(ranges: &Map<'_>) -> Result<Thread, CaptureError> {
    let map = MapHandle::try_from(ranges).map_err(CaptureError::bpf("share a BPF table"))?;
    let (exited, more) = channel();
    let thread = thread::Builder::new().name("sweeper".to_owned()).spawn(move || sweep_all(&map, &more));
    let thread = thread.map_err(libbpf_rs::Error::from);
    Ok(Thread { exited, thread: thread.map_err(CaptureError::bpf("start a thread"))? })
}

/// One pass over the map for all processes that exited since the last.
fn sweep_all(map: &MapHandle, more: &Receiver<Exited>) -> Result<(), CaptureError> {
    while let Ok(mut exited) = more.recv() {
        more.try_iter().for_each(|others| exited.extend(others));
        remove_of::<gp_range_key>(map, &exited)?;
    }
    Ok(())
}
