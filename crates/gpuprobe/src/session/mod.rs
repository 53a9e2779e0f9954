//! A capture session: attaches probes, follows processes and turns what the BPF programs report into recordings and
//! snapshots.

pub(crate) mod command;
pub(crate) mod follow;
pub(crate) mod gpu_time;
pub(crate) mod host;
pub(crate) mod on_demand;
pub(crate) mod probes;
pub(crate) mod record;
pub(crate) mod signals;
pub(crate) mod threads;
