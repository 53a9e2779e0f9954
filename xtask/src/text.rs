//! No file names a path of the machine it was written on or the host of a package registry: the first mean nothing
//! elsewhere, the second are the user's to choose.

use anyhow::Result;

use crate::{Findings, files};

// Written in pieces, so that this file passes its own check.
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("deb.debian", ".org"),
];
const PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// The line that cargo writes for every package of the usual registry.
const LOCK_LINE: &str = concat!("source = \"registry+https://github.com/rust-lang/crates", ".io-index\"");

pub(crate) fn check() -> Result<Findings> {
    let tracked = files::tracked()?;
    let mut problems = Vec::new();
    for name in &tracked {
        for (line, number) in files::read(name)?.lines().zip(1..) {
            let exempt = name.ends_with("Cargo.lock") && line == LOCK_LINE;
            if let Some(needle) = found(line).filter(|_| !exempt) {
                problems.push(format!("{name}:{number} contains {needle}"));
            }
        }
    }
    Ok(Findings { looked_at: format!("{} files", tracked.len()), problems })
}

fn found(line: &str) -> Option<&'static str> {
    let host = HOSTS.iter().find(|host| line.contains(**host));
    host.or_else(|| PATHS.iter().find(|path| has_absolute(line, path))).copied()
}

/// Whether `path` occurs as the start of an absolute path: the root of a process, `/proc/PID` and then `root`, is not
/// the home of a user.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before =
            line[..at].strip_suffix("file://").map_or_else(|| line[..at].chars().next_back(), |_| None);
        before.is_none_or(|c| !c.is_alphanumeric() && !"}>])*/._-".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_path_is_found_wherever_it_starts() {
        let path = PATHS[1];
        for line in
            [format!("{path}x"), format!("cd {path}x"), format!("\"{path}x\""), format!("file://{path}x")]
        {
            assert_eq!(found(&line), Some(path), "{line}");
        }
    }

    #[test]
    fn the_root_of_a_process_is_not_a_machine_path() {
        let path = PATHS[1];
        for before in ["/proc/7", "/proc/self", "{pid}", "/proc/<pid>", "/proc/*"] {
            assert_eq!(found(&format!("{before}{path}usr/lib")), None, "{before}");
        }
    }

    #[test]
    fn a_registry_host_is_found() {
        assert_eq!(found(&format!("https://{}/simple", HOSTS[1])), Some(HOSTS[1]));
        assert_eq!(found("https://github.com/"), None);
    }
}
