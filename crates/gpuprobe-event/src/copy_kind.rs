//! What distinguishes copies: their direction, and the host memory that they touch.

use serde::Serialize;

/// An enum whose variants have fixed words in traces and metrics.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $row_name:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub enum $name { $($(#[$row])* #[serde(rename = $word)] $row_name,)* }

        impl $name {
            /// All of them, in the order of the numbers of the kernel side.
            pub const ALL: &'static [Self] = &[$(Self::$row_name,)*];

            /// The word used in traces and metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$row_name => $word,)* }
            }

            /// What has this word.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$row_name),)* _ => None }
            }
        }
    };
}

pub(crate) use words;

words! {
    /// Which way a copy goes.
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
        /// Between addresses that nothing is known of.
        Unknown = "unknown",
    }
}

impl CopyDirection {
    /// Whether it is the known direction of a copy.
    pub fn is_told(self) -> bool {
        !matches!(self, Self::Fill | Self::Unknown)
    }
}

words! {
    /// The host memory that a copy touches.
    HostMemory {
        /// None.
        Nothing = "none",
        /// Locked for the device, so that it is copied directly.
        Pinned = "pinned",
        /// Of the program's own, which is copied twice.
        Pageable = "pageable",
        /// Managed memory.
        Managed = "managed",
        /// From before the probes came.
        Unknown = "unknown",
    }
}

impl HostMemory {
    /// That of a copy of which none is told: where it has a host end, it is not known.
    pub fn not_told(direction: CopyDirection) -> Self {
        match direction {
            CopyDirection::DeviceToDevice | CopyDirection::Peer | CopyDirection::Fill => Self::Nothing,
            _ => Self::Unknown,
        }
    }

    /// Whether there is some, and it is known of which sort.
    pub fn is_told(self) -> bool {
        !matches!(self, Self::Nothing | Self::Unknown)
    }
}
