//! What distinguishes copies: their direction, and the host memory that they touch.

use serde::Serialize;

/// An enum whose variants have fixed words in traces and metrics.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $row_name:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub enum $name { $($(#[$row])* #[serde(rename = $word)] $row_name,)* }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$row_name,)*];

            /// The word in traces and metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$row_name => $word,)* }
            }

            /// The inverse of `as_str`.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$row_name),)* _ => None }
            }
        }
    };
}

pub(crate) use words;

words! {
    /// The direction of a copy.
    CopyDirection {
        /// Host to host.
        HostToHost = "H2H",
        /// Host to device.
        HostToDevice = "H2D",
        /// Device to host.
        DeviceToHost = "D2H",
        /// Within one device.
        DeviceToDevice = "D2D",
        /// From one device to another.
        Peer = "P2P",
        /// A memset, which copies nothing.
        Fill = "memset",
        /// Between addresses about which nothing is known.
        Unknown = "unknown",
    }
}

impl CopyDirection {
    /// Whether it is a known direction of a copy.
    pub fn is_known(self) -> bool {
        !matches!(self, Self::Fill | Self::Unknown)
    }
}

words! {
    /// The host memory that a copy touches.
    HostMemory {
        /// No host memory.
        Nothing = "none",
        /// Locked for the device, so that it is copied directly.
        Pinned = "pinned",
        /// Ordinary memory of the program, which is copied twice.
        Pageable = "pageable",
        /// Managed memory.
        Managed = "managed",
        /// Pinned before the probes were attached, or not at all.
        Unknown = "unknown",
    }
}

impl HostMemory {
    /// The value for a copy whose host memory was not recorded: unknown if one end is the host.
    pub fn unknown_for(direction: CopyDirection) -> Self {
        match direction {
            CopyDirection::DeviceToDevice | CopyDirection::Peer | CopyDirection::Fill => Self::Nothing,
            _ => Self::Unknown,
        }
    }

    /// Whether host memory is involved and its kind is known.
    pub fn is_known(self) -> bool {
        !matches!(self, Self::Nothing | Self::Unknown)
    }
}
