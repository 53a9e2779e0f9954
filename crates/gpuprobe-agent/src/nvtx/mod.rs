//! Ranges and marks of NVTX. The program calls the callbacks here; the agent's thread gets what is finished.

mod callbacks;
mod open_ranges;
mod ring;
mod strings;
mod tables;
mod text;
mod thread_ranges;

pub(crate) use callbacks::{set_recorded, take_dropped};
pub(crate) use ring::{FinishedRange, RING};
pub(crate) use tables::{ExportTables, install};
