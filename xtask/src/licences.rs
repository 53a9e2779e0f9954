//! Every dependency can be shipped under permissive terms, and every BPF file says its own.

use anyhow::Result;
use serde_json::Value;

use crate::metadata::{self, text};
use crate::{Findings, files, spdx};

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
];

/// Package, licence, and why it is taken all the same. MPL-2.0 belongs here, one package at a time: it obliges
/// whoever ships a changed copy of its files, so each should be known.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

const BPF_SOURCES: &str = "crates/gpuprobe-capture/bpf/";

pub(crate) fn check() -> Result<Findings> {
    let metadata = metadata::read()?;
    let (_, foreign) = metadata::packages(&metadata);
    let mut problems: Vec<String> =
        foreign.iter().filter_map(|package| problem(package, EXCEPTIONS)).collect();
    let tracked = files::tracked()?;
    let bpf: Vec<&String> = tracked.iter().filter(|name| is_bpf(name)).collect();
    for name in &bpf {
        if !names_its_licence(&files::read(name)?) {
            problems.push(format!("{name} does not begin with an SPDX-License-Identifier line"));
        }
    }
    let looked_at = format!("{} packages, {} BPF files", foreign.len(), bpf.len());
    Ok(Findings { looked_at, problems })
}

fn problem(package: &Value, exceptions: &[(&str, &str, &str)]) -> Option<String> {
    let name = text(package, "name");
    let licence = text(package, "license");
    let version = text(package, "version");
    if licence.is_empty() {
        return Some(format!("{name} {version} names no licence"));
    }
    let excepted =
        |id: &str| exceptions.iter().any(|&(package, licence, _)| (package, licence) == (name, id));
    match spdx::satisfied(licence, &|id| ALLOWED.contains(&id) || excepted(id)) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name} {version} is under {licence}, which is not in the list")),
        Err(error) => Some(format!("{name} {version} is under `{licence}`: {error}")),
    }
}

fn is_bpf(name: &str) -> bool {
    name.starts_with(BPF_SOURCES) && (name.ends_with(".c") || name.ends_with(".h"))
}

fn names_its_licence(source: &str) -> bool {
    source.lines().next().is_some_and(|line| line.contains("SPDX-License-Identifier: "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_package_needs_a_licence_from_the_list() {
        let package = |licence: Value| json!({ "name": "some", "version": "1.2.0", "license": licence });
        assert_eq!(problem(&package(json!("LGPL-2.1-only OR BSD-2-Clause")), &[]), None);
        let copyleft = problem(&package(json!("GPL-3.0-only")), &[]);
        assert_eq!(copyleft.as_deref(), Some("some 1.2.0 is under GPL-3.0-only, which is not in the list"));
        let silent = problem(&package(Value::Null), &[]);
        assert_eq!(silent.as_deref(), Some("some 1.2.0 names no licence"));
    }

    #[test]
    fn an_exception_is_for_one_package_and_one_licence() {
        let package =
            |name: &str, licence: &str| json!({ "name": name, "version": "1.0.0", "license": licence });
        let exceptions = [("some", "MPL-2.0", "unchanged")];
        assert_eq!(problem(&package("some", "MPL-2.0"), &exceptions), None);
        assert!(problem(&package("other", "MPL-2.0"), &exceptions).is_some());
        assert!(problem(&package("some", "GPL-3.0-only"), &exceptions).is_some());
    }

    #[test]
    fn the_licence_of_a_source_is_on_its_first_line() {
        assert!(names_its_licence("/* SPDX-License-Identifier: MIT */\nint x;\n"));
        assert!(!names_its_licence("/* about */\n/* SPDX-License-Identifier: MIT */\n"));
        assert!(!names_its_licence(""));
    }
}
