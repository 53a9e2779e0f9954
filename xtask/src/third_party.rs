//! The licences of everything that is shipped, as one text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::metadata::{array, text};
use crate::rust_library::RustLibrary;
use crate::shipped::{Shipped, shipped};
use crate::system_packages::{SystemPackage, common_licences};

/// How files with licences begin, in any case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];
/// Sources of other projects in crates, with licences of their own.
const BUNDLED: [(&str, &str); 2] = [("libbpf-sys", "libbpf"), ("zstd-sys", "zstd")];
const LINE: &str = "================================================================================";

/// The list of packages with their licences, then each text once with the packages that it is from.
pub(crate) fn third_party(metadata: &Value, rust: &RustLibrary, system: &[SystemPackage]) -> Result<String> {
    let shipped = shipped(metadata)?;
    let mut list = String::from(
        "gpuprobe is licensed under Apache-2.0 or MIT, at your option, and its BPF programs also under GPL-2.0-only. It\n\
         contains the following.\n",
    );
    if !system.is_empty() {
        list += "The sources of Debian's libraries are those of its packages of these versions, and gpuprobe can be linked\n\
                 with others by `make static`.\n";
    }
    list.push('\n');
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in shipped.values().filter(|one| !one.is_own()) {
        let name = format!("{} {}", one.name(), one.version());
        let licence = Some(text(one.package, "license")).filter(|licence| !licence.is_empty());
        list += &format!("{name}: {}\n", licence.unwrap_or("see its text below"));
        let mut own = licence_texts(one)?;
        if own.is_empty() {
            own = standard_texts(one, rust)?;
        }
        for text in own {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    list += &format!("rust-std {}, Rust's standard library: MIT OR Apache-2.0\n", rust.version);
    let (summary, in_rust) = rust.licences()?;
    texts.entry(summary).or_default().push(format!("rust-std {}", rust.version));
    for (name, text) in in_rust {
        texts.entry(text).or_default().push(name);
    }
    let mut of_system = Vec::new();
    for package in system {
        let licence = package.licence().unwrap_or("see its text below");
        list += &format!("{} {} (Debian): {licence}\n", package.name, package.version);
        let text = package.text()?;
        texts.entry(text.clone()).or_default().push(package.name.clone());
        of_system.push(text);
    }
    for (name, text) in common_licences(&of_system)? {
        texts.entry(text).or_default().push(format!("{name}, which texts of Debian's packages refer to"));
    }
    for (text, packages) in by_first_package(texts) {
        list += &format!("\n{LINE}\n{}\n{LINE}\n\n{}\n", packages.join(", "), text.trim_end());
    }
    Ok(list)
}

/// The standard texts of the licences of a crate that has no file with them.
fn standard_texts(one: &Shipped<'_>, rust: &RustLibrary) -> Result<Vec<String>> {
    let (name, licence) = (one.name(), text(one.package, "license"));
    let Some(texts) = rust.standard_texts(licence) else {
        bail!(
            "{name} has no file with its licence, and rustc comes without the standard text of `{licence}`"
        );
    };
    let authors: Vec<&str> = array(one.package, "authors").filter_map(Value::as_str).collect();
    let authors = if authors.is_empty() { "not named".to_owned() } else { authors.join(", ") };
    let note = |(licence, text): (String, String)| {
        format!(
            "{name} has no file with its licence. This is the standard text of {licence}. Authors of the crate: {authors}.\n\n{text}"
        )
    };
    Ok(texts.into_iter().map(note).collect())
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
