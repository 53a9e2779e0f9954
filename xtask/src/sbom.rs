//! The list of what a release consists of (SBOM), in the JSON form of CycloneDX.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use crate::metadata::text;
use crate::rust_library::RustLibrary;
use crate::shipped::{Shipped, shipped};
use crate::system_packages::SystemPackage;

const FORMAT_VERSION: &str = "1.5";

/// The list for the metadata of one target, at a time in the form of RFC 3339.
pub(crate) fn sbom(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    rust: &RustLibrary,
    system: &[SystemPackage],
    time: &str,
) -> Result<Value> {
    let shipped = shipped(metadata)?;
    let (own, others): (Vec<_>, Vec<_>) = shipped.values().partition(|one| one.is_own());
    let version = own.first().map_or("", |one| one.version());
    let main = format!("pkg:generic/gpuprobe@{version}");
    let mut direct: Vec<String> = own
        .iter()
        .flat_map(|one| &one.needs)
        .filter_map(|id| shipped.get(id))
        .filter(|one| !one.is_own())
        .map(reference)
        .chain([rust.reference()])
        .chain(system.iter().map(SystemPackage::reference))
        .collect();
    direct.sort();
    direct.dedup();
    let mut dependencies = vec![json!({"ref": main, "dependsOn": direct})];
    dependencies.extend(others.iter().map(|one| {
        let needs: Vec<String> = one.needs.iter().filter_map(|id| shipped.get(id)).map(reference).collect();
        json!({"ref": reference(one), "dependsOn": needs})
    }));
    let crates = others.iter().map(|one| component(one, checksums));
    let libraries = [rust.component()].into_iter().chain(system.iter().map(SystemPackage::component));
    let components: Vec<Value> = crates.chain(libraries).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": FORMAT_VERSION,
        "version": 1,
        "metadata": {
            "timestamp": time,
            "component": {
                "type": "application", "name": "gpuprobe", "version": version, "bom-ref": main, "purl": main,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn reference(one: &Shipped<'_>) -> String {
    format!("pkg:cargo/{}@{}", one.name(), one.version().replace('+', "%2B"))
}

fn component(one: &Shipped<'_>, checksums: &BTreeMap<(String, String), String>) -> Value {
    let mut component = json!({
        "type": "library", "name": one.name(), "version": one.version(),
        "bom-ref": reference(one), "purl": reference(one),
    });
    // old crates separate licences by a slash
    let licence = text(one.package, "license").replace('/', " OR ");
    if !licence.is_empty() {
        component["licenses"] = json!([{"expression": licence}]);
    }
    if let Some(sum) = checksums.get(&(one.name().to_owned(), one.version().to_owned())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

/// The checksums of crates in a lock file, by name and version.
pub(crate) fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let begin = format!("{key} = \"");
        let line = block.lines().find_map(|line| line.strip_prefix(&begin))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let of_block =
        |block: &str| Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?));
    lock.split("[[package]]").filter_map(of_block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_has_its_version_licence_checksum_and_needs() {
        let package = |name: &str, source: Value, licence: &str| json!({"id": name, "name": name, "version": "1.2.0+x", "source": source, "license": licence, "targets": []});
        let dep = |name: &str| json!({"pkg": name, "dep_kinds": [{"kind": null}]});
        let metadata = json!({
            "packages": [
                package("gpuprobe", Value::Null, "MIT"), package("gpuprobe-agent", Value::Null, "MIT"),
                package("gpuprobe-capture", Value::Null, "MIT"), package("a", json!("registry"), "MIT/Apache-2.0"),
                package("b", json!("registry"), "ISC"),
            ],
            "resolve": {"nodes": [
                {"id": "gpuprobe", "deps": [dep("gpuprobe-capture"), dep("a")]}, {"id": "gpuprobe-agent", "deps": []},
                {"id": "gpuprobe-capture", "deps": [dep("a")]}, {"id": "a", "deps": [dep("b")]}, {"id": "b", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.0+x\"\nchecksum = \"5e\"\n\n[[package]]\nname = \"own\"\n";
        let system = [SystemPackage::parse("libelf-dev=0.1=/copyright").unwrap()];
        let rust = RustLibrary::for_tests("", &[]);
        let list = sbom(&metadata, &checksums(lock), &rust, &system, "2026-01-01T00:00:00Z").unwrap();
        let a = "pkg:cargo/a@1.2.0%2Bx";
        assert_eq!(
            list["components"][0],
            json!({
                "type": "library", "name": "a", "version": "1.2.0+x", "bom-ref": a, "purl": a,
                "licenses": [{"expression": "MIT OR Apache-2.0"}], "hashes": [{"alg": "SHA-256", "content": "5e"}],
            })
        );
        assert_eq!(list["components"].as_array().unwrap().len(), 4);
        let main = "pkg:generic/gpuprobe@1.2.0+x";
        let (libelf, std) = ("pkg:deb/debian/libelf-dev@0.1", "pkg:generic/rust-std@1.0.0");
        assert_eq!(list["dependencies"][0], json!({"ref": main, "dependsOn": [a, libelf, std]}));
        assert_eq!(list["dependencies"][1], json!({"ref": a, "dependsOn": ["pkg:cargo/b@1.2.0%2Bx"]}));
    }
}
