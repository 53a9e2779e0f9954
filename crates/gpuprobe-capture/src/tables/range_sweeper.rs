//! Takes the addresses of processes that ended out of the kernel's trie. A step through a trie begins at its root, so a look
//! at all of a large one takes seconds: a thread of its own does it, and nobody waits. Keys name the process, so what is
//! still there is in nobody's way.

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

/// The thread, which begins when there is something to do: it has the privileges of who gives it that.
#[derive(Debug, Default)]
pub(crate) struct RangeSweeper(Option<Thread>);

impl RangeSweeper {
    /// Has the addresses of these taken out of the map, some time later.
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
    let map = MapHandle::try_from(ranges).map_err(CaptureError::bpf("share a table of the kernel side"))?;
    let (exited, more) = channel();
    let thread = thread::Builder::new().name("sweeper".to_owned()).spawn(move || sweep_all(&map, &more));
    let thread = thread.map_err(libbpf_rs::Error::from);
    Ok(Thread { exited, thread: thread.map_err(CaptureError::bpf("start a thread"))? })
}

/// One look at the map for all that have ended since the last.
fn sweep_all(map: &MapHandle, more: &Receiver<Exited>) -> Result<(), CaptureError> {
    while let Ok(mut exited) = more.recv() {
        more.try_iter().for_each(|others| exited.extend(others));
        remove_of::<gp_range_key>(map, &exited)?;
    }
    Ok(())
}
