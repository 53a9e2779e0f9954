//! What libbpf logs while it loads programs.

use std::sync::Mutex;

use libbpf_rs::PrintLevel;

/// What libbpf said, kept so that a failure can tell its reason.
static LIBBPF_SAID: Mutex<String> = Mutex::new(String::new());

fn keep_what_libbpf_says(_level: PrintLevel, text: String) {
    const KEPT: usize = 1 << 20;
    if let Ok(mut said) = LIBBPF_SAID.lock()
        && said.len() < KEPT
    {
        said.push_str(&text);
    }
}

/// Does something with libbpf; what that said of it comes back.
pub(crate) fn listening<T>(load: impl FnOnce() -> T) -> (T, String) {
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep_what_libbpf_says)));
    let done = load();
    let said = LIBBPF_SAID.lock().map(|mut s| std::mem::take(&mut *s)).unwrap_or_default();
    (done, said)
}

/// Does something with libbpf that may fail.
pub(crate) fn quietly<T>(load: impl FnOnce() -> T) -> T {
    listening(load).0
}

/// The last lines that say something, out of a verifier log that may be very long.
pub(crate) fn reason(said: &str) -> String {
    let telling = |line: &&str| {
        let line = line.trim();
        !line.is_empty()
            && !line.contains("-- BEGIN")
            && !line.contains("-- END")
            && !line.starts_with("processed ")
    };
    let lines: Vec<_> = said.lines().filter(telling).collect();
    let tail = &lines[lines.len().saturating_sub(6)..];
    if tail.is_empty() { "no reason was given".to_owned() } else { tail.join("\n  ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_last_words_are_the_reason() {
        let said = "-- BEGIN PROG LOAD LOG --\n0: (b7) r0 = 0\nR2 unbounded memory access\nprocessed 12 insns\n-- END\n";
        assert_eq!(reason(said), "0: (b7) r0 = 0\n  R2 unbounded memory access");
        assert_eq!(reason(""), "no reason was given");
    }
}
