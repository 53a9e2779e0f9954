//! Counters of the endpoint: answers by status, and refused connections by reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpuprobe_analysis::{Answered, Refused, Served};

/// Why a connection was closed without a whole answer. The values of a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// All slots were taken, and it was closed for a new connection.
    CrowdedOut,
    /// It was slow to read a text of an older snapshot, and there were too many old texts.
    OldText,
    /// The client disconnected before its request or its answer was complete.
    Aborted,
    /// Its request did not arrive in time.
    SlowRequest,
    /// It did not read its answer in time.
    SlowAnswer,
    /// It sent something that is not an HTTP request.
    Malformed,
    /// Its request head is too long.
    TooLarge,
    /// It does not speak TLS, but the endpoint requires it.
    NotTls,
    /// The TLS handshake failed, for example because it has no certificate.
    Handshake,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::CrowdedOut,
        Self::OldText,
        Self::Aborted,
        Self::SlowRequest,
        Self::SlowAnswer,
        Self::Malformed,
        Self::TooLarge,
        Self::NotTls,
        Self::Handshake,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::CrowdedOut => "crowded_out",
            Self::OldText => "old_text",
            Self::Aborted => "aborted",
            Self::SlowRequest => "slow_request",
            Self::SlowAnswer => "slow_answer",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::NotTls => "not_tls",
            Self::Handshake => "tls_handshake",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    answered: Mutex<BTreeMap<u16, u64>>,
    refused: [AtomicU64; Reason::ALL.len()],
}

impl Counts {
    pub(super) fn answered(&self, code: u16) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    pub(super) fn refused(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Served {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = answered.iter().map(|(&code, &requests)| Answered { code, requests }).collect();
        let refused = Reason::ALL.map(|reason| Refused {
            reason: reason.as_str(),
            connections: self.refused[reason as usize].load(Ordering::Relaxed),
        });
        Served { requests, refused: refused.to_vec() }
    }
}
