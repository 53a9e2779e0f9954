//! Numbers that must not be mixed up, as types of their own.

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
    /// A process, as user space counts them: the kernel's thread group id.
    Tgid
}
id! {
    /// A thread: the kernel's pid.
    Tid
}
id! {
    /// A row of the catalogue: one signature of one function of one library.
    FunctionId
}

id! {
    /// A site: one way through a program to an allocation, with every call on it. Unique in its recording.
    SiteId
}

impl SiteId {
    /// Where it is not known how an allocation came about.
    pub const UNKNOWN: Self = Self(0);
}
