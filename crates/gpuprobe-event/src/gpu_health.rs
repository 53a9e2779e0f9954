//! The health of a GPU's memory and NVLinks, as NVML reports it. It changes seldom, so it is read seldom. What NVML
//! does not report is `None`, never zero.

use serde::{Deserialize, Serialize};

/// What is wrong, or was, with a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHealth {
    pub rows: RemappedRows,
    pub pages: RetiredPages,
    /// Sorted by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLink>,
}

/// Rows of the memory that spare rows have replaced, on Ampere and later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Because of errors that were corrected.
    pub corrected: Option<u64>,
    pub uncorrected: Option<u64>,
    /// Whether a row will be remapped at the next reset of the GPU.
    pub is_pending: Option<bool>,
    /// Whether a row could not be remapped.
    pub has_failed: Option<bool>,
}

/// Pages of the memory that are no longer used, on GPUs before Ampere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredPages {
    /// Because of several corrected errors of a single bit.
    pub corrected: Option<u64>,
    /// Because of an error of two bits.
    pub uncorrected: Option<u64>,
    /// Whether a page will be retired at the next reset of the GPU.
    pub is_pending: Option<bool>,
}

/// An error counter of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinkError {
    /// Packets that were sent again.
    Replay,
    /// Times at which the link was brought up again after an error.
    Recovery,
    /// Received packets with a wrong checksum.
    Crc,
    // from here on Blackwell and later, which lack those above
    MalformedPacket,
    BufferOverrun,
    Receive,
    ReceiveRemote,
    ReceiveGeneral,
    LocalIntegrity,
    TransmitDiscard,
    RecoverySuccessful,
    RecoveryFailed,
    /// Errors after the correction by FEC.
    Effective,
    Symbol,
}

impl NvLinkError {
    /// All of them, in the order of [`NvLink::errors`].
    pub const ALL: [Self; 14] = [
        Self::Replay,
        Self::Recovery,
        Self::Crc,
        Self::MalformedPacket,
        Self::BufferOverrun,
        Self::Receive,
        Self::ReceiveRemote,
        Self::ReceiveGeneral,
        Self::LocalIntegrity,
        Self::TransmitDiscard,
        Self::RecoverySuccessful,
        Self::RecoveryFailed,
        Self::Effective,
        Self::Symbol,
    ];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Recovery => "recovery",
            Self::Crc => "crc",
            Self::MalformedPacket => "malformed_packet",
            Self::BufferOverrun => "buffer_overrun",
            Self::Receive => "receive",
            Self::ReceiveRemote => "receive_remote",
            Self::ReceiveGeneral => "receive_general",
            Self::LocalIntegrity => "local_integrity",
            Self::TransmitDiscard => "transmit_discard",
            Self::RecoverySuccessful => "recovery_successful",
            Self::RecoveryFailed => "recovery_failed",
            Self::Effective => "effective",
            Self::Symbol => "symbol",
        }
    }
}

/// One of the NVLinks of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    pub number: u32,
    /// A link is down if nothing is connected to it, or after an error.
    pub is_up: bool,
    /// What follows is `None` for a link that is down.
    pub bytes_per_second: Option<u64>,
    /// Payload that was received since the NVIDIA kernel module was loaded.
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
    /// Counters by [`NvLinkError`].
    pub errors: [Option<u64>; NvLinkError::ALL.len()],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_nvlink_is_at_its_place_and_has_a_word_of_its_own() {
        assert!(NvLinkError::ALL.iter().enumerate().all(|(at, error)| *error as usize == at));
        let words: std::collections::BTreeSet<_> =
            NvLinkError::ALL.iter().map(|error| error.as_str()).collect();
        assert_eq!(words.len(), NvLinkError::ALL.len());
    }
}
