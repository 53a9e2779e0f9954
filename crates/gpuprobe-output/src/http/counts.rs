//! What the endpoint counts of itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpuprobe_analysis::{Answered, Refused, Served};

/// Why a connection was cut or turned away: a value of a label, so there are few of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// There were too many, and it had kept us waiting longest.
    CrowdedOut,
    /// It was slow to take a text of an older snapshot, and there were too many of these.
    OldText,
    /// It went away before all of its request was there, or all of its answer was taken.
    Aborted,
    /// Its request did not come in time.
    SlowRequest,
    /// It did not take its answer in time.
    SlowAnswer,
    /// What it sent is no request.
    Malformed,
    /// The head of its request is too long.
    TooLarge,
    /// It does not speak TLS where that is wanted.
    NotTls,
    /// No agreement about TLS, as where it lacks a certificate.
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

    /// As they stand.
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
