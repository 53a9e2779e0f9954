//! CUPTI of the process: finding it, calling it, and reading its records. Everything here is declared from documented
//! facts; nothing of CUPTI is built in or shipped.

mod api;
mod library;
mod places;
mod records;

pub(crate) use api::{Cupti, Failure};
pub(crate) use library::find;
pub(crate) use records::{Kind, Record, read};
