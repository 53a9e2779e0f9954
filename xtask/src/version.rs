//! The version is defined in Cargo.toml; files that cannot read it there must name the same one.

use std::fs;

use anyhow::{Context, Result};

use crate::metadata::{members, text};
use crate::{Findings, files, metadata};

/// Files, and how a line with the version begins.
const FILES: [(&str, &str); 2] = [
    ("packaging/helm/gpuprobe/Chart.yaml", "version:"),
    ("packaging/helm/gpuprobe/Chart.yaml", "appVersion:"),
];

pub(crate) fn check() -> Result<Findings> {
    let metadata = metadata::read()?;
    let packages = members(&metadata);
    let version = packages.first().map_or("", |package| text(package, "version"));
    let mut problems: Vec<String> = packages
        .iter()
        .filter(|package| text(package, "version") != version)
        .map(|package| format!("{} does not take its version from the workspace", text(package, "name")))
        .collect();
    for (file, begin) in FILES {
        let path = files::root().join(file);
        let content = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if named(&content, begin) != Some(version) {
            problems.push(format!("{file}: `{begin}` is not {version}, the version in Cargo.toml"));
        }
    }
    Ok(Findings { looked_at: format!("{} packages and {} lines", packages.len(), FILES.len()), problems })
}

fn named<'a>(content: &'a str, begin: &str) -> Option<&'a str> {
    let line = content.lines().find_map(|line| line.strip_prefix(begin))?;
    Some(line.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_may_be_quoted() {
        let chart = "name: x\nversion: 0.1.0\nappVersion: \"0.2.0\"\n";
        assert_eq!((named(chart, "version:"), named(chart, "appVersion:")), (Some("0.1.0"), Some("0.2.0")));
        assert_eq!(named(chart, "kubeVersion:"), None);
    }
}
