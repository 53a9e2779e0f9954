//! Removes what identifies people and programs from texts that others will read.

use std::collections::BTreeSet;
use std::fmt::Write;

use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a hash: enough to tell the names of one host apart.
const HASH_BYTES: usize = 4;
/// What is followed by the name or the path of a program in messages of the Linux kernel and of NVIDIA's modules, and what
/// ends it: the first of these that follows at all, because names may contain spaces.
const BEFORE_NAMES: [(&str, &[&str]); 7] = [
    ("comm=\"", &["\""]),
    ("exe=\"", &["\""]),
    ("name=\"", &["\""]),
    ("profile=\"", &["\""]),
    ("proctitle=\"", &["\""]),
    ("the client '", &["' (pid", "'"]),
    ("Comm: ", &[" Tainted: ", " Not tainted", " "]),
];
/// The same for what is not quoted. The Linux kernel's audit writes names with spaces in hexadecimal digits.
const BEFORE_WORDS: [&str; 6] = ["name=", "comm=", "exe=", "profile=", "proctitle=", "process name "];
/// What ends a name in a message about an Xid.
const AFTER_NAME_OF_XID: [&str; 2] = [", Ch ", ", "];
/// The Linux kernel cuts the names of processes.
const MOST_NAME_BYTES: usize = 15;
/// Folders whose entries are named after users.
const FOLDERS_OF_USERS: [&str; 2] = ["/home/", "/Users/"];
/// Labels of metrics that say nothing about what a host runs.
const HARMLESS_LABELS: [&str; 10] =
    ["cause", "code", "event", "le", "reason", "result", "signal", "state", "tier", "version"];

/// Replaces the names of processes and home folders by hashes. Within one archive the same name has the same hash; in two
/// archives it has not, so that names cannot be guessed by hashing a list of them.
#[derive(Debug)]
pub struct Redactor {
    /// `None` if nothing is replaced.
    key: Option<Key>,
    /// Names of processes, to be replaced wherever they stand as a word.
    names: BTreeSet<String>,
}

impl Redactor {
    /// With a random key; without one nothing is replaced.
    pub fn new(key: Option<[u8; 32]>, names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().filter(|name| !name.is_empty()).collect();
        Self { key: key.map(|key| Key::new(HMAC_SHA256, &key)), names }
    }

    /// With a random key, which is not kept.
    pub fn with_random_key(names: impl IntoIterator<Item = String>) -> std::io::Result<Self> {
        let mut key = [0; 32];
        let filled = SystemRandom::new().fill(&mut key);
        filled.map_err(|_unspecified| std::io::Error::other("the Linux kernel returned none"))?;
        Ok(Self::new(Some(key), names))
    }

    /// What stands for a name.
    pub fn name(&self, name: &str) -> String {
        let Some(key) = &self.key else { return name.to_owned() };
        let mut text = String::from("name-");
        for byte in sign(key, name.as_bytes()).as_ref().iter().take(HASH_BYTES) {
            // writing to a string cannot fail
            write!(text, "{byte:02x}").ok();
        }
        text
    }

    /// A text with paths, but without the names of users in them.
    pub fn paths(&self, text: &str) -> String {
        FOLDERS_OF_USERS.iter().fold(text.to_owned(), |text, folder| {
            self.replace_after(&text, folder, |rest| {
                rest.find(|c: char| c == '/' || c.is_whitespace() || "\"',:;)".contains(c))
            })
        })
    }

    /// A message of the kernel log without the names of processes.
    pub fn message(&self, text: &str) -> String {
        if self.key.is_none() {
            return text.to_owned();
        }
        let text = self.process_before_pid(text);
        let text = self.replace_first(&text, "uprobe: ", name_before_pid);
        let text = self.replace_first(&text, "Lockdown: ", name_before_restriction);
        let mut text = self.paths(&text);
        for (mark, ends) in BEFORE_NAMES {
            text = self.replace_after(&text, mark, |rest| first_of(rest, ends));
        }
        let is_nvidia = text.contains("NVRM: ");
        for mark in BEFORE_WORDS {
            text = self.replace_after(&text, mark, |rest| match rest {
                // it has been replaced
                _ if rest.starts_with('"') => Some(0),
                _ if is_nvidia && mark == "name=" => first_of(rest, &AFTER_NAME_OF_XID),
                _ => rest.find(|c: char| ",;\"".contains(c) || c.is_whitespace()),
            });
        }
        for name in &self.names {
            text = replace_word(&text, name, &self.name(name));
        }
        text
    }

    /// Replaces what follows each mark, up to where it ends, or all of it.
    fn replace_after(&self, text: &str, mark: &str, end: impl Fn(&str) -> Option<usize>) -> String {
        if self.key.is_none() {
            return text.to_owned();
        }
        let mut parts = text.split(mark);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_at(end(part).unwrap_or(part.len()));
            out.push_str(mark);
            out.push_str(&if name.is_empty() { String::new() } else { self.name(name) });
            out.push_str(rest);
        }
        out
    }

    /// Replaces what follows the first mark, if an end is found.
    fn replace_first(&self, text: &str, mark: &str, end: impl Fn(&str) -> Option<usize>) -> String {
        let Some((before, after)) = text.split_once(mark) else { return text.to_owned() };
        match end(after).filter(|end| *end > 0) {
            Some(end) => format!("{before}{mark}{}{}", self.name(&after[..end]), &after[end..]),
            None => text.to_owned(),
        }
    }

    /// `python[123]: segfault at ...`, `traps: python[123] trap ...`, `python[123] is installing a program ...`: the name may
    /// contain spaces.
    fn process_before_pid(&self, text: &str) -> String {
        let (prefix, rest) = text.strip_prefix("traps: ").map_or(("", text), |rest| ("traps: ", rest));
        for (at, _) in rest.match_indices('[') {
            let (name, after) = rest.split_at(at);
            let after_pid = after[1..].trim_start_matches(|c: char| c.is_ascii_digit());
            let has_pid = after_pid.len() + 1 < after.len();
            let is_name = after_pid.starts_with("]: ")
                || after_pid.starts_with("] ")
                    && name.len() <= MOST_NAME_BYTES
                    && !name.ends_with(char::is_whitespace);
            if has_pid && is_name && !name.is_empty() {
                return format!("{prefix}{}{after}", self.name(name));
            }
        }
        text.to_owned()
    }
}

/// Where the first of these texts that is there at all begins.
fn first_of(text: &str, ends: &[&str]) -> Option<usize> {
    ends.iter().find_map(|end| text.find(end))
}

/// `python:123 failed to ...`.
fn name_before_pid(text: &str) -> Option<usize> {
    let is_pid = |at: usize| {
        let after = text[at + 1..].trim_start_matches(|c: char| c.is_ascii_digit());
        after.len() + at + 1 < text.len() && (after.is_empty() || after.starts_with(' '))
    };
    text.match_indices(':').map(|(at, _)| at).find(|at| is_pid(*at))
}

/// `python: use of bpf to read kernel RAM is restricted; ...`.
fn name_before_restriction(text: &str) -> Option<usize> {
    let end = text.find(" is restricted").unwrap_or(text.len());
    text[..end].rfind(": ")
}

/// Replaces a word where no letter, digit or underscore is next to it.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(word) {
        let (before, from) = rest.split_at(at);
        let after = &from[word.len()..];
        let before_is_part = before.chars().next_back().or(out.chars().next_back()).is_some_and(is_part);
        let is_inside = before_is_part || after.chars().next().is_some_and(is_part);
        out.push_str(before);
        out.push_str(if is_inside { word } else { by });
        rest = after;
    }
    out + rest
}

/// A URL without user, password and query; other texts as they are.
pub fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// The metrics about gpuprobe itself: those without a label that could name a process, a container, a user or code.
pub fn own_metrics(text: &str) -> String {
    let is_harmless = |line: &&str| match line.split_once('{') {
        _ if line.starts_with('#') => false,
        Some((_, rest)) => rest
            .rsplit_once('}')
            .is_some_and(|(labels, _)| label_names(labels).all(|name| HARMLESS_LABELS.contains(&name))),
        None => true,
    };
    text.lines().filter(is_harmless).map(|line| format!("{line}\n")).collect()
}

/// The names in `a="1",b="x\"y"`.
fn label_names(labels: &str) -> impl Iterator<Item = &str> {
    let mut rest = labels;
    std::iter::from_fn(move || {
        let (name, value) = rest.split_once("=\"")?;
        let mut is_escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        rest = value.get(end? + 1..)?.trim_start_matches(',');
        Some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        Redactor::new(Some([7; 32]), ["secret_job".to_owned(), "tmux: server".to_owned()])
    }

    #[test]
    fn names_are_gone_and_the_same_name_has_the_same_hash() {
        let redactor = redactor();
        let hash = redactor.name("secret_job");
        assert!(hash.starts_with("name-") && hash.len() == 13, "{hash}");
        assert_ne!(hash, redactor.name("secret_jo"));
        assert_ne!(
            hash,
            Redactor::new(Some([8; 32]), []).name("secret_job"),
            "each archive has its own hashes"
        );
        for (message, expected) in [
            (
                "NVRM: Xid (PCI:0000:0f:00): 31, pid=43, name=secret_job, Ch 8",
                "NVRM: Xid (PCI:0000:0f:00): 31, pid=43, name=HASH, Ch 8",
            ),
            ("secret_job[43]: segfault at 0 in libcuda.so.1", "HASH[43]: segfault at 0 in libcuda.so.1"),
            ("uprobe: secret_job:43 has no slot", "uprobe: HASH:43 has no slot"),
            ("not_secret_job2 my_secret_job", "not_secret_job2 my_secret_job"),
            ("Comm: secret_job Tainted", "Comm: HASH Tainted"),
            ("secret_job secret_job", "HASH HASH"),
        ] {
            assert_eq!(redactor.message(message).replace(&hash, "HASH"), expected);
        }
        let spaced = redactor.message("tmux: server[9]: trap invalid opcode");
        assert!(!spaced.contains("tmux") && spaced.ends_with("[9]: trap invalid opcode"), "{spaced}");
        let unknown = redactor.message("NVRM: Xid (PCI:0000:0f:00): 13, pid='<unknown>', name=exited, Ch 8");
        assert!(!unknown.contains("exited"), "{unknown}");
    }

    #[test]
    fn names_of_processes_that_have_exited_are_gone() {
        let redactor = Redactor::new(Some([7; 32]), []);
        for name in ["secret_job", "secret job", "secret: job"] {
            let hash = redactor.name(name);
            let path = redactor.name(&format!("/x/{name}"));
            for message in [
                "audit: type=1400 audit(1.2:3): pid=43 comm=\"NAME\" exe=\"PATH\" lockdown_reason=\"bpf\"",
                "audit: apparmor=\"DENIED\" profile=\"NAME\" name=\"PATH\" pid=43 comm=\"NAME\" class=\"bpf\"",
                "NVRM: Xid (PCI:0000:0f:00): 31, pid=43, name=NAME, Ch 8, intr 0",
                "NVRM: Xid (PCI:0000:0f:00): 79, pid=43, name=NAME, GPU has fallen off the bus.",
                "NVRM: Xid (PCI:0000:0f:00): 43, pid=43, name=NAME",
                "NVRM: API mismatch: the client 'NAME' (pid 43)",
                "Lockdown: NAME: use of bpf to read kernel RAM is restricted; see man kernel_lockdown.7",
                "uprobe: NAME:43 failed to register uprobe",
                "uprobe: NAME:43 has no slot",
                "NAME[43] is installing a program with bpf_probe_write_user helper that may corrupt user memory!",
                "NAME[43]: segfault at 0 ip 0 sp 0 error 4 in libcuda.so.1[7f00+1000]",
                "traps: NAME[43] trap invalid opcode ip:7f00 sp:7f00 error:0 in libcuda.so.1[7f00+1000]",
                "CPU: 3 PID: 43 Comm: NAME Tainted: P OE 6.1.0 nvidia",
                "CPU: 3 UID: 0 PID: 43 Comm: NAME Not tainted 6.12.0 nvidia",
            ] {
                let with = |name: &str, path: &str| message.replace("NAME", name).replace("PATH", path);
                let redacted = redactor.message(&with(name, &format!("/x/{name}")));
                assert_eq!(redacted, with(&hash, &path));
            }
        }
        let hexadecimal = redactor.message("audit: comm=736563726574206A6F62 exe=2F78 bpf");
        assert!(!hexadecimal.contains("7365") && hexadecimal.ends_with(" bpf"), "{hexadecimal}");
        for message in [
            "BPF: [4711] STRUCT task",
            "nvidia 0000:01:00.0: enabling device",
            "uprobe: ready",
            "Lockdown: x",
        ] {
            assert_eq!(redactor.message(message), message);
        }
    }

    #[test]
    fn users_are_not_in_paths() {
        let text = "/home/alice/venv/lib/libcudart.so.12 (runtime)\nread /home/bob: denied";
        let out = redactor().paths(text);
        assert!(!out.contains("alice") && !out.contains("bob"), "{out}");
        assert!(out.contains("/venv/lib/libcudart.so.12 (runtime)\n") && out.ends_with(": denied"), "{out}");
        assert_eq!(redactor().paths("/usr/lib/x /home/"), "/usr/lib/x /home/");
    }

    #[test]
    fn nothing_is_replaced_without_a_key() {
        let full = Redactor::new(None, ["job".to_owned()]);
        let text = "job[1]: /home/alice name=job";
        assert_eq!((full.message(text).as_str(), full.paths(text).as_str()), (text, text));
        assert_eq!(full.name("job"), "job");
    }

    #[test]
    fn urls_lose_their_credentials() {
        for (url, expected) in [
            ("https://me:secret@host:4318/v1?token=x#y", "https://host:4318/v1"),
            ("http://me@host", "http://host"),
            ("http://host/a@b", "http://host/a@b"),
            ("127.0.0.1:9000", "127.0.0.1:9000"),
        ] {
            assert_eq!(without_credentials(url), expected);
        }
    }

    #[test]
    fn only_metrics_about_gpuprobe_are_kept() {
        let text = "# HELP gpuprobe_events_lost_total Lost.\ngpuprobe_events_lost_total{cause=\"ring\"} 0\n\
                    gpuprobe_calls_total{pid=\"7\",process=\"secret\"} 3\n\
                    gpuprobe_x{cause=\"a\\\"b\",process=\"secret\"} 1\n\
                    gpuprobe_build_info{version=\"0.1.0\"} 1\nprocess_open_fds 9\n\
                    broken{cause=\"x\n";
        assert_eq!(
            own_metrics(text),
            "gpuprobe_events_lost_total{cause=\"ring\"} 0\ngpuprobe_build_info{version=\"0.1.0\"} 1\nprocess_open_fds 9\n"
        );
    }
}
