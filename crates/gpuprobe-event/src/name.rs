//! Names of functions, fields and errors.

use std::borrow::Cow;

/// Usually a static name of the catalogue, but owned if it was read from a trace file.
pub type Name = Cow<'static, str>;
