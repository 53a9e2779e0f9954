//! The names of recordings: `gpuprobe_TIME_HOST_PROCESS_PID.jsonl.zst`. They sort by time, and tell the recordings of
//! gpuprobe from other files in the directory.

use std::time::{SystemTime, UNIX_EPOCH};

use gpuprobe_output::timestamp::timestamp;

const PREFIX: &str = "gpuprobe_";
const EXTENSION: &str = ".jsonl.zst";
/// A hidden file of this name is being written.
const PARTIAL: &str = ".partial_";
const INCOMPLETE: &str = "_incomplete";
/// `20261119T005012.123Z`
const TIME_LENGTH: usize = 20;
/// Most bytes of a host name in a file name. The names of processes are shorter.
const MOST_OF_A_NAME: usize = 64;

/// The file name of a recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordingName(String);

impl RecordingName {
    pub(super) fn new(at: SystemTime, host: &str, process: &str, pid: u32) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let second = timestamp(since.as_secs() as f64, 0).replace(['-', ':'], "").replace(' ', "T");
        let (millis, host, process) = (since.subsec_millis(), escaped(host), escaped(process));
        Self(format!("{PREFIX}{second}.{millis:03}Z_{host}_{process}_{pid}{EXTENSION}"))
    }

    /// The recording of a file with this name; `None` for any other file.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let stem = name.strip_prefix(PREFIX)?.strip_suffix(EXTENSION)?;
        let stem = stem.strip_suffix(INCOMPLETE).unwrap_or(stem);
        let (time, rest) = stem.split_at_checked(TIME_LENGTH)?;
        let (names, pid) = rest.strip_prefix('_')?.rsplit_once('_')?;
        let is_time = time.bytes().zip(b"ddddddddTdddddd.dddZ").all(|(byte, form)| match form {
            b'd' => byte.is_ascii_digit(),
            form => byte == *form,
        });
        let is_valid = is_time && names.bytes().all(is_plain_or_escape) && pid.parse::<u32>().is_ok();
        is_valid.then(|| Self(name.to_owned()))
    }

    /// The recording that a file with this name was to become.
    pub(super) fn of_partial(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(PARTIAL)?)
    }

    /// The name of the file while it is written.
    pub(super) fn partial(&self) -> String {
        format!("{PARTIAL}{}", self.0)
    }

    /// The name of a file that was not completed.
    pub(super) fn incomplete(&self) -> String {
        let stem = self.0.strip_suffix(EXTENSION).unwrap_or(&self.0);
        format!("{stem}{INCOMPLETE}{EXTENSION}")
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_+".contains(&byte)
}

fn is_plain_or_escape(byte: u8) -> bool {
    is_plain(byte) || byte == b'%'
}

/// Processes choose their names, so other characters than those of ordinary file names are written as `%XX`.
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for byte in name.bytes() {
        let more = if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        if escaped.len() + more.len() > MOST_OF_A_NAME {
            break;
        }
        escaped.push_str(&more);
    }
    if escaped.is_empty() { "unknown".to_owned() } else { escaped }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn name(seconds: f64, host: &str, process: &str, pid: u32) -> RecordingName {
        RecordingName::new(UNIX_EPOCH + Duration::from_secs_f64(seconds), host, process, pid)
    }

    #[test]
    fn a_name_says_when_where_and_what() {
        let named = name(1_733_143_016.062_5, "node-1.example", "python3", 77);
        assert_eq!(named.as_str(), "gpuprobe_20241202T123656.062Z_node-1.example_python3_77.jsonl.zst");
        let later = name(1_733_143_016.5, "node-1.example", "a", 1);
        assert!(named < later && later < name(1_733_143_017.0, "node-1.example", "A", 1), "by time");
    }

    #[test]
    fn names_of_processes_are_escaped() {
        for (process, expected) in [
            ("a b", "a%20b"),
            ("../x", "..%2Fx"),
            ("a_b", "a_b"),
            ("100%", "100%25"),
            ("\u{1b}[2J\n", "%1B%5B2J%0A"),
            ("ä", "%C3%A4"),
            ("", "unknown"),
        ] {
            let named = name(0.0, "h", process, 1);
            assert_eq!(named.as_str(), format!("gpuprobe_19700101T000000.000Z_h_{expected}_1.jsonl.zst"));
            assert_eq!(RecordingName::parse(named.as_str()), Some(named));
        }
        let long = name(0.0, &"ä".repeat(500), &"x".repeat(500), u32::MAX);
        assert!(long.partial().len() + INCOMPLETE.len() < 255, "{long:?}");
        assert!(RecordingName::parse(long.as_str()).is_some());
    }

    #[test]
    fn only_names_of_recordings_are_recognized() {
        let named = name(1.0, "h", "p_q", 7);
        assert_eq!(RecordingName::of_partial(&named.partial()), Some(named.clone()));
        assert!(RecordingName::parse(&named.partial()).is_none());
        assert!(RecordingName::parse(&named.incomplete()).is_some());
        assert_eq!(named.incomplete(), "gpuprobe_19700101T000001.000Z_h_p_q_7_incomplete.jsonl.zst");
        for other in [
            "",
            "gpuprobe_",
            "trace_20241202123656.jsonl.zst",
            "gpuprobe_19700101T000001.000Z_h_p_7.jsonl",
            "gpuprobe_19700101T000001.000Z_h_p_x.jsonl.zst",
            "gpuprobe_19700101T000001.000Z_7.jsonl.zst",
            "gpuprobe_19700101_000001.000Z_h_p_7.jsonl.zst",
            "gpuprobe_19700101T000001.000Z_h/../x_p_7.jsonl.zst",
            "gpuprobe_19700101T000001.000Z_h\n_p_7.jsonl.zst",
            "gpuprobe_äää101T000001.000Z_h_p_7.jsonl.zst",
        ] {
            assert_eq!(RecordingName::parse(other), None, "{other}");
        }
    }
}
