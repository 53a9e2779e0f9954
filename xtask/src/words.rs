//! Words that this project once used in a sense of its own do not come back. docs/reference/glossary.md has their
//! replacements.

use anyhow::Result;

use crate::{Findings, files};

/// A word in any form that occurs in identifiers and prose, and what to write instead.
const RETIRED: &[(&[&str], &str)] = &[
    (&["told", "telling", "teller"], "annotate, report or show"),
    (&["held", "holdings", "kindheld"], "live (memory) or paused (processes)"),
    (&["keeper", "keepers"], "attach helper"),
    (&["tally", "tallies"], "entry count"),
    (&["aside"], "state-only"),
    (&["whoever", "nobody", "somebody", "anybody"], "the process, the caller, the user, none"),
];

/// Where a retired word is right: the file, the line's text, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("tests/e2e/tests/attach/paused.rs", "nobody", "the name of a user account"),
    ("tests/e2e/tests/recording/command_user.rs", "nobody", "the name of a user account"),
    (
        "crates/gpuprobe-event/src/trace/read/effect_fields.rs",
        "EARLIER_FIELDS",
        "a field name of earlier trace formats",
    ),
    ("docs/results/lab-notes-gpu.md", "all telling calls", "output of an earlier version, with its date"),
];

const TEXTS: &[&str] = &[
    ".rs", ".c", ".h", ".cpp", ".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".js", ".html", ".json", ".tbl",
];
/// What is compared byte by byte, comes from elsewhere, or is about the words themselves.
const NOT_CHECKED: &[&str] = &[
    "fuzz/corpus/",
    "xtask/src/words.rs",
    "vmlinux.h",
    "docs/reference/glossary.md",
    "CHANGELOG.md",
    // the same files
    "docs/project/",
    "Cargo.lock",
];

pub(crate) fn check() -> Result<Findings> {
    let mut problems = Vec::new();
    let mut count = 0;
    for name in files::tracked()?.into_iter().filter(|name| is_checked(name)) {
        count += 1;
        for (number, line) in files::read(&name)?.lines().enumerate() {
            let excepted = EXCEPTIONS.iter().any(|(file, text, _)| name == *file && line.contains(text));
            for (word, instead) in retired_words(line).filter(|_| !excepted) {
                problems.push(format!("{name}:{}: `{word}`; write {instead}", number + 1));
            }
        }
    }
    Ok(Findings { looked_at: format!("{count} files, {} exceptions", EXCEPTIONS.len()), problems })
}

fn is_checked(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let is_text = TEXTS.iter().any(|end| name.ends_with(end)) || !file.contains('.');
    is_text && !NOT_CHECKED.iter().any(|part| name.contains(part))
}

fn retired_words(line: &str) -> impl Iterator<Item = (String, &'static str)> {
    words(line).into_iter().filter_map(|word| {
        let (_, instead) = RETIRED.iter().find(|(forms, _)| forms.contains(&word.as_str()))?;
        Some((word, *instead))
    })
}

/// The words of a line in lower case; `KindHeld` and `kind_held` have two each.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for char in line.chars() {
        if !char.is_ascii_alphabetic() || (char.is_ascii_uppercase() && last.is_ascii_lowercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| char.is_ascii_alphabetic()) {
            word.push(char.to_ascii_lowercase());
        }
        last = char;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_identifiers_and_prose() {
        let found = |line: &str| retired_words(line).map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(
            found("let kind_held = KindHeld::new(MOST_HELD); // Told once"),
            ["held", "held", "held", "told"]
        );
        assert_eq!(found("withheld, upheld, asides"), [""; 0]);
    }

    #[test]
    fn texts_are_checked_and_corpora_are_not() {
        assert!(
            is_checked("scripts/test")
                && is_checked("docs/guides/trace.md")
                && is_checked("crates/a/src/lib.rs")
        );
        assert!(!is_checked("fuzz/corpus/elf/1") && !is_checked("docs/pictures/report.png"));
    }
}
