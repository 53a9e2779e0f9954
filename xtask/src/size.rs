//! Source files are short. The length of functions is clippy's to check.

use anyhow::Result;

use crate::{Findings, files};

const LIMIT: usize = 500;
/// BPF programs share one verifier's attention and are read with it in mind.
const BPF_LIMIT: usize = 400;
const SOURCES: &[&str] = &[".rs", ".c", ".h", ".cpp", ".py"];
/// Written by a program or compared byte by byte, so their length is not a choice. Catalogue tables are no sources.
const EXEMPT: &[&str] = &["golden/", "generated/"];

pub(crate) fn check() -> Result<Findings> {
    let mut problems = Vec::new();
    let mut count = 0;
    for name in files::tracked()? {
        let Some(limit) = limit(&name) else { continue };
        count += 1;
        let lines = files::read(&name)?.lines().count();
        if lines > limit {
            problems.push(format!("{name} has {lines} lines; the limit is {limit}"));
        }
    }
    Ok(Findings { looked_at: format!("{count} files"), problems })
}

fn limit(name: &str) -> Option<usize> {
    let counted =
        SOURCES.iter().any(|end| name.ends_with(end)) && !EXEMPT.iter().any(|part| name.contains(part));
    let is_bpf = name.rsplit('/').next().is_some_and(|file| file.contains(".bpf."));
    counted.then_some(if is_bpf { BPF_LIMIT } else { LIMIT })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_file_has_its_limit() {
        assert_eq!(limit("crates/a/src/lib.rs"), Some(500));
        assert_eq!(limit("bpf/gpuprobe.h"), Some(500));
        assert_eq!(limit("bpf/call/call_entry.bpf.h"), Some(400));
        assert_eq!(limit("tools/a/parse.py"), Some(500));
        assert_eq!(limit("tests/golden/long.c"), None);
        assert_eq!(limit("catalogue/driver.tbl"), None);
        assert_eq!(limit("Cargo.lock"), None);
    }
}
