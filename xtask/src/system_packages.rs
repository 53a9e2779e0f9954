//! Libraries of the system that are linked into a statically linked gpuprobe, as Debian packages them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The licences of what is linked, by the begin of the package's name. The packages have programs and documentation, too.
const LICENCES: [(&str, &str); 4] = [
    ("libelf-dev", "LGPL-3.0-or-later OR GPL-2.0-or-later"),
    ("zlib1g-dev", "Zlib"),
    ("libc6-dev", "LGPL-2.1-or-later"),
    ("libgcc-", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];
/// Where Debian has texts that the licences of packages only refer to.
const COMMON: &str = "/usr/share/common-licenses/";

/// A package of development files, whose static library is used.
#[derive(Debug)]
pub(crate) struct SystemPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The file with its licences.
    pub(crate) copyright: PathBuf,
}

impl SystemPackage {
    /// From `NAME=VERSION=COPYRIGHT`, as packaging/static/linked prints it.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, '=');
        let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        let parsed = part().zip(part()).zip(part());
        let ((name, version), copyright) =
            parsed.with_context(|| format!("{text} is not NAME=VERSION=COPYRIGHT"))?;
        Ok(Self { name, version, copyright: copyright.into() })
    }

    pub(crate) fn reference(&self) -> String {
        format!("pkg:deb/debian/{}@{}", self.name, self.version.replace(':', "%3A").replace('+', "%2B"))
    }

    pub(crate) fn licence(&self) -> Option<&'static str> {
        LICENCES.iter().find(|(begin, _)| self.name.starts_with(begin)).map(|(_, licence)| *licence)
    }

    pub(crate) fn component(&self) -> Value {
        let reference = self.reference();
        let mut component = json!({
            "type": "library", "name": self.name, "version": self.version, "bom-ref": reference, "purl": reference,
        });
        if let Some(licence) = self.licence() {
            component["licenses"] = json!([{"expression": licence}]);
        }
        component
    }

    /// Its licences, in its own words.
    pub(crate) fn text(&self) -> Result<String> {
        read(&self.copyright)
    }
}

/// The texts that these licences refer to, by name.
pub(crate) fn common_licences<'a>(
    texts: impl IntoIterator<Item = &'a String>,
) -> Result<Vec<(String, String)>> {
    let mut found = BTreeSet::new();
    for name in texts.into_iter().flat_map(|text| common_names(text)) {
        // names without a version are links to the newest one
        let path = fs::canonicalize(Path::new(COMMON).join(name));
        found.insert(path.with_context(|| format!("there is no {COMMON}{name}"))?);
    }
    let of = |path: &PathBuf| {
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), read(path)?))
    };
    found.iter().map(of).collect()
}

fn common_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(COMMON).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c)).unwrap_or(rest.len());
        // it may end a sentence
        rest[..end].trim_end_matches('.')
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_a_version_a_file_and_a_licence() {
        let libc = SystemPackage::parse("libc6-dev-arm64-cross=2.36-8cross1=/a=b/copyright").unwrap();
        assert_eq!(
            (libc.version.as_str(), libc.copyright.as_path()),
            ("2.36-8cross1", Path::new("/a=b/copyright"))
        );
        assert_eq!(libc.component()["licenses"][0]["expression"], "LGPL-2.1-or-later");
        assert!(
            SystemPackage::parse("libelf-dev=0.1").is_err() && SystemPackage::parse("libelf-dev").is_err()
        );
        let zlib = SystemPackage::parse("zlib1g-dev=1:1.2.13.dfsg-1=/c").unwrap();
        assert_eq!(zlib.reference(), "pkg:deb/debian/zlib1g-dev@1%3A1.2.13.dfsg-1");
    }

    #[test]
    fn common_licences_are_found_in_sentences() {
        let text = format!("in `{COMMON}GPL', version 3 in {COMMON}LGPL-2.1.\n{COMMON}GFDL-1.2");
        assert_eq!(common_names(&text).collect::<Vec<_>>(), ["GPL", "LGPL-2.1", "GFDL-1.2"]);
    }
}
