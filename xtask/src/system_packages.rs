//! Libraries of the system that are linked into a statically linked gpuprobe, as Debian packages them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// A package of development files, whose static library is used.
#[derive(Debug)]
pub(crate) struct SystemPackage {
    pub(crate) name: String,
    pub(crate) version: String,
}

impl SystemPackage {
    /// An installed package.
    pub(crate) fn installed(name: &str) -> Result<Self> {
        let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", name]).output();
        let output = output.context("dpkg-query did not start")?;
        ensure!(output.status.success(), "the package {name} is not installed");
        Ok(Self { name: name.to_owned(), version: String::from_utf8_lossy(&output.stdout).into_owned() })
    }

    pub(crate) fn reference(&self) -> String {
        format!("pkg:deb/debian/{}@{}", self.name, self.version.replace(':', "%3A").replace('+', "%2B"))
    }

    pub(crate) fn component(&self) -> Value {
        let reference = self.reference();
        json!({
            "type": "library", "name": self.name, "version": self.version, "bom-ref": reference, "purl": reference,
        })
    }

    /// Its licences, in its own words.
    pub(crate) fn copyright(&self) -> Result<String> {
        let path = PathBuf::from("/usr/share/doc").join(&self.name).join("copyright");
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}
