//! Rust's standard library, which is part of every program: its version, and its licences in the documentation of rustc.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::files;

/// The licences of the library and of the crates in it, as a page.
const PAGE: &str = "COPYRIGHT-library.html";
/// Where the page begins with the crates in the library.
const CRATES: &str = "<h2 id=\"out-of-tree-dependencies\">";
const BEFORE_LICENCE: &str = "<b>License:</b>";

#[derive(Debug)]
pub(crate) struct RustLibrary {
    pub(crate) version: String,
    page: String,
    /// Standard texts of licences, by their names in SPDX.
    texts: BTreeMap<String, String>,
}

impl RustLibrary {
    /// That of the rustc that builds this workspace.
    pub(crate) fn read() -> Result<Self> {
        let version = rustc("-vV")?;
        let version = version.lines().find_map(|line| line.strip_prefix("release: "));
        let folder = Path::new(rustc("--print=sysroot")?.trim()).join("share/doc/rust");
        let page = fs::read_to_string(folder.join(PAGE)).with_context(|| {
            format!(
                "rustc comes without the licences of its library, {}; that of rustup has them",
                folder.join(PAGE).display()
            )
        })?;
        Ok(Self {
            version: version.context("rustc -vV names no release")?.to_owned(),
            page,
            texts: texts_in(&folder.join("licenses"))?,
        })
    }

    #[cfg(test)]
    pub(crate) fn for_tests(page: &str, texts: &[(&str, &str)]) -> Self {
        let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Self { version: "1.0.0".to_owned(), page: page.to_owned(), texts }
    }

    pub(crate) fn reference(&self) -> String {
        format!("pkg:generic/rust-std@{}", self.version)
    }

    pub(crate) fn component(&self) -> Value {
        let reference = self.reference();
        json!({
            "type": "library", "name": "rust-std", "version": self.version, "bom-ref": reference, "purl": reference,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
        })
    }

    /// The standard texts of all licences in an expression of SPDX, each after its name; `None` if one is not known.
    pub(crate) fn standard_texts(&self, expression: &str) -> Option<Vec<(String, String)>> {
        let names = licences_in(expression);
        let text = |name: &str| Some((name.to_owned(), self.texts.get(name)?.clone()));
        if names.is_empty() { None } else { names.into_iter().map(text).collect() }
    }

    /// The licences of the library and what it contains, then the texts in it: each with the name of what it is for.
    pub(crate) fn licences(&self) -> Result<(String, Vec<(String, String)>)> {
        let (own, crates) = self.page.split_once(CRATES).with_context(|| format!("{PAGE} has no crates"))?;
        let mut texts = Vec::new();
        for part in own.split(BEFORE_LICENCE).skip(1) {
            let expression = part.split("</p>").next().unwrap_or_default().trim();
            let found = self.standard_texts(expression);
            let found = found.with_context(|| format!("rustc comes without the text of {expression}"))?;
            texts.extend(found.into_iter().map(|(_, text)| ("rust-std".to_owned(), text)));
        }
        for part in crates.split("<h3>").skip(1) {
            let name = part.split("</h3>").next().unwrap_or_default();
            let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
            for block in part.split("<pre>").skip(1) {
                let text = plain(block.split("</pre>").next().unwrap_or_default());
                texts.push((format!("{name} (rust-std)"), text.trim().to_owned()));
            }
        }
        texts.sort();
        texts.dedup();
        Ok((summary(&self.page), texts))
    }
}

fn rustc(option: &str) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg(option).current_dir(files::root()).output();
    let output = output.context("rustc did not start")?;
    ensure!(output.status.success(), "rustc {option}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn texts_in(folder: &Path) -> Result<BTreeMap<String, String>> {
    let cannot = || format!("cannot read {}", folder.display());
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        texts.insert(name, text.replace("\r\n", "\n").trim().to_owned());
    }
    Ok(texts)
}

/// The names of licences in an expression; old ones are separated by a slash.
fn licences_in(expression: &str) -> BTreeSet<&str> {
    let words = expression.split([' ', '/', '(', ')']);
    words.filter(|word| !word.is_empty() && !["OR", "AND", "WITH"].contains(word)).collect()
}

/// The text of a page without its style, its table of contents, and the texts of licences.
fn summary(page: &str) -> String {
    let body = page.split_once("</ul>").map_or(page, |(_, body)| body);
    let mut shown = String::new();
    for (index, part) in body.split("<details>").enumerate() {
        shown += if index == 0 { part } else { part.split_once("</details>").map_or("", |(_, rest)| rest) };
    }
    let text = plain(&shown);
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "Notices:").collect();
    lines.join("\n")
}

/// HTML without tags.
fn plain(html: &str) -> String {
    let mut out = String::new();
    for (index, part) in html.split('<').enumerate() {
        out += if index == 0 { part } else { part.split_once('>').map_or("", |(_, text)| text) };
    }
    for (name, character) in [
        ("&lt;", "<"),
        ("&#60;", "<"),
        ("&gt;", ">"),
        ("&#62;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#38;", "&"),
        ("&amp;", "&"),
    ] {
        out = out.replace(name, character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_of_the_library_and_of_its_crates_are_found() {
        let page = format!(
            "<ul>contents</ul><p>{BEFORE_LICENCE} MIT</p>\n{CRATES}Crates</h2>\n<h3>\u{1f4e6} a-1.0</h3>\n\
             <p>{BEFORE_LICENCE} Zlib</p><details><pre>\n&#34;a&#34; &lt;b&gt; &amp;lt;\n</pre></details>"
        );
        let library = RustLibrary::for_tests(&page, &[("MIT", "MIT text")]);
        let (summary, texts) = library.licences().unwrap();
        assert_eq!(summary, "License: MIT\nCrates\n\u{1f4e6} a-1.0\nLicense: Zlib");
        let texts: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(texts, [("a-1.0 (rust-std)", "\"a\" <b> &lt;"), ("rust-std", "MIT text")]);
        assert!(library.standard_texts("MIT/Zlib").is_none() && library.standard_texts("").is_none());
    }
}
