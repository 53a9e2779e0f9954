//! Recordings on demand: a daemon records one process for a while into a directory of limited size.
//!
//! The daemon may neither load BPF programs nor execute programs after its start. So it starts a process before, the
//! recorder, which sleeps until it gets an order, and makes each recording in a process of its own, with the code of
//! `gpuprobe record`. The daemon's own probes and counters are not involved.

mod busiest;
mod directory;
mod messages;
mod order_checks;
mod recorder_loop;
mod recording_name;
mod service;

pub(crate) use self::directory::mark_as_being_written;
pub(crate) use self::messages::{Report, send};
pub(crate) use self::recorder_loop::Recorder;
pub(crate) use self::service::{OnDemand, RecorderProcess};
