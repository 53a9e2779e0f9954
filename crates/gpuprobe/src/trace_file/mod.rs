//! Reads and writes trace files, and creates output files without following what other users planted.

mod destination;
mod disk_space;
mod file_names;
pub(crate) mod input;
mod limits;
pub(crate) mod output_file;
mod read_ahead;
mod room;
pub(crate) mod several;
mod sink;
pub(crate) mod traces;
mod writer;

pub(crate) use self::destination::{Destination, is_stdout};
pub(crate) use self::limits::Limits;
pub(crate) use self::writer::{Finished, TraceFile};
