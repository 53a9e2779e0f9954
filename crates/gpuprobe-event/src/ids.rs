//! Newtypes for numbers that must not be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A process: the Linux kernel's thread group id, which user space calls pid.
    Tgid
}
id! {
    /// A thread: the Linux kernel's pid.
    Tid
}
id! {
    /// A row of the catalogue: one signature of one function of one library.
    FunctionId
}

id! {
    /// A call site: a distinct call stack. Unique in its recording.
    SiteId
}

impl SiteId {
    /// The call site is not known.
    pub const UNKNOWN: Self = Self(0);
}
