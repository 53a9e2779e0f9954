//! The archive for bug reports that `gpuprobe doctor --support` writes: its form, and what is removed from its texts.

mod archive;
mod redact;

pub use archive::archive;
pub use redact::{Redactor, own_metrics, without_credentials};
