//! The log of libbpf.

use std::sync::Mutex;

use libbpf_rs::PrintLevel;

/// What libbpf logged, for error messages.
static LOG: Mutex<String> = Mutex::new(String::new());

fn append_log(_level: PrintLevel, text: String) {
    const MAX_BYTES: usize = 1 << 20;
    if let Ok(mut log) = LOG.lock()
        && log.len() < MAX_BYTES
    {
        log.push_str(&text);
    }
}

/// Runs something with libbpf, and also returns what it logged.
pub(crate) fn with_log<T>(load: impl FnOnce() -> T) -> (T, String) {
    libbpf_rs::set_print(Some((PrintLevel::Warn, append_log)));
    let result = load();
    let log = LOG.lock().map(|mut s| std::mem::take(&mut *s)).unwrap_or_default();
    (result, log)
}

/// Runs something with libbpf, and discards what it logged.
pub(crate) fn without_log<T>(load: impl FnOnce() -> T) -> T {
    with_log(load).0
}

/// The last meaningful lines of a verifier log, which may be very long.
pub(crate) fn last_lines(log: &str) -> String {
    let is_useful = |line: &&str| {
        let line = line.trim();
        !line.is_empty()
            && !line.contains("-- BEGIN")
            && !line.contains("-- END")
            && !line.starts_with("processed ")
    };
    let lines: Vec<_> = log.lines().filter(is_useful).collect();
    let tail = &lines[lines.len().saturating_sub(6)..];
    if tail.is_empty() { "no reason was given".to_owned() } else { tail.join("\n  ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_the_verifier_log_are_the_reason() {
        let log = "-- BEGIN PROG LOAD LOG --\n0: (b7) r0 = 0\nR2 unbounded memory access\nprocessed 12 insns\n-- END\n";
        assert_eq!(last_lines(log), "0: (b7) r0 = 0\n  R2 unbounded memory access");
        assert_eq!(last_lines(""), "no reason was given");
    }
}
