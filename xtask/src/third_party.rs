//! The licences of everything that is shipped, as one text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::metadata::text;
use crate::shipped::{Shipped, shipped};
use crate::system_packages::SystemPackage;

/// How files with licences begin, in any case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];
/// Sources of other projects in crates, with licences of their own.
const BUNDLED: [(&str, &str); 2] = [("libbpf-sys", "libbpf"), ("zstd-sys", "zstd")];
const LINE: &str = "================================================================================";

/// The list of packages with their licences, then each text once with the packages that it is from.
pub(crate) fn third_party(metadata: &Value, system: &[SystemPackage]) -> Result<String> {
    let shipped = shipped(metadata)?;
    let mut list = String::from(
        "gpuprobe is licensed under Apache-2.0 or MIT, at your option, and its BPF programs also under GPL-2.0-only. It\n\
         contains the following. A statically linked gpuprobe also contains the libraries of Debian at the end; their\n\
         sources are those of Debian's packages of these versions, and gpuprobe can be linked with others by `make static`.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in shipped.values().filter(|one| !one.is_own()) {
        let name = format!("{} {}", one.name(), one.version());
        let licence = Some(text(one.package, "license")).filter(|licence| !licence.is_empty());
        list += &format!("{name}: {}\n", licence.unwrap_or("see its text below"));
        for text in licence_texts(one)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for package in system {
        list += &format!("{} {} (Debian)\n", package.name, package.version);
        texts.entry(package.copyright()?).or_default().push(package.name.clone());
    }
    for (text, packages) in by_first_package(texts) {
        list += &format!("\n{LINE}\n{}\n{LINE}\n\n{}\n", packages.join(", "), text.trim_end());
    }
    Ok(list)
}

fn by_first_package(texts: BTreeMap<String, Vec<String>>) -> Vec<(String, Vec<String>)> {
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|a, b| a.1.cmp(&b.1));
    texts
}

fn licence_texts(one: &Shipped<'_>) -> Result<Vec<String>> {
    let manifest = PathBuf::from(text(one.package, "manifest_path"));
    let folder = manifest.parent().unwrap_or(Path::new("/"));
    let bundled = BUNDLED.iter().filter(|(name, _)| *name == one.name()).map(|(_, sub)| folder.join(sub));
    let folders = [folder.to_owned(), folder.join("LICENSES")].into_iter().chain(bundled);
    let mut files = Vec::new();
    for folder in folders.filter(|folder| folder.is_dir()) {
        let all = folder.ends_with("LICENSES");
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let entries = entries.flatten().map(|entry| entry.path());
        files.extend(entries.filter(|path| path.is_file() && (all || is_licence(path))));
    }
    files.sort();
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim().to_owned())
    };
    files.iter().map(read).collect()
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    NAMES.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_licences_are_found_by_their_names() {
        for name in ["LICENSE", "LICENSE-MIT.txt", "licence.md", "COPYING", "UNLICENSE"] {
            assert!(is_licence(Path::new(name)), "{name}");
        }
        assert!(!is_licence(Path::new("README.md")));
    }
}
