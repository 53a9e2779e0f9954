//! What the daemon, the recorder and the process that makes a recording send to each other: one line of JSON each.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// To the recorder: record a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The file name.
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) seconds: f64,
    /// Globs of functions; the default ones of `record` if there are none.
    pub(crate) functions: Vec<String>,
}

/// From the recorder, and to it from the process that makes a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "report")]
pub(crate) enum Report {
    /// The recorder waits for orders.
    Ready,
    /// The recording runs: calls from now on are in it.
    Begun,
    /// The recording is complete.
    Made { bytes: u64, seconds: f64, why: String },
    /// The recorder cannot work, or there is no complete recording.
    Failed { reason: String },
    /// All recordings in the directory, and those deleted since the last report.
    Stored { bytes: u64, deleted: u64 },
}

/// Writes a message and flushes.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let reason = "line 1\nline 2 \"x\"".to_owned();
        let mut sent = Vec::new();
        for report in [Report::Ready, Report::Failed { reason }, Report::Stored { bytes: 1, deleted: 2 }] {
            sent.clear();
            send(&mut sent, &report).unwrap();
            assert_eq!(sent.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<Report>(&sent).unwrap(), report);
        }
    }
}
