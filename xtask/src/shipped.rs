//! The crates that are part of what is shipped: those that the shipped packages need when they run, without what only
//! builds or tests them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::metadata::{array, text};

/// The packages of this workspace whose programs and libraries are shipped.
const ROOTS: [&str; 3] = ["gpuprobe", "gpuprobe-agent", "gpuprobe-capture"];

/// A crate, and the ids of those that it needs.
#[derive(Debug)]
pub(crate) struct Shipped<'a> {
    pub(crate) package: &'a Value,
    pub(crate) needs: Vec<&'a str>,
}

impl Shipped<'_> {
    /// Whether it is part of this workspace.
    pub(crate) fn is_own(&self) -> bool {
        self.package["source"].is_null()
    }

    pub(crate) fn name(&self) -> &str {
        text(self.package, "name")
    }

    pub(crate) fn version(&self) -> &str {
        text(self.package, "version")
    }
}

/// All of them by id. The metadata must be that of one target.
pub(crate) fn shipped(metadata: &Value) -> Result<BTreeMap<&str, Shipped<'_>>> {
    let packages: BTreeMap<&str, &Value> =
        array(metadata, "packages").map(|package| (text(package, "id"), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        array(&metadata["resolve"], "nodes").map(|node| (text(node, "id"), node)).collect();
    let is_root = |package: &Value| ROOTS.contains(&text(package, "name")) && package["source"].is_null();
    let mut open: Vec<&str> =
        packages.iter().filter(|(_, package)| is_root(package)).map(|(id, _)| *id).collect();
    ensure!(open.len() == ROOTS.len(), "the workspace has not all of {}", ROOTS.join(", "));
    let mut found = BTreeMap::new();
    while let Some(id) = open.pop() {
        let (Some(package), Some(node)) = (packages.get(id).copied(), nodes.get(id)) else { continue };
        if found.contains_key(id) {
            continue;
        }
        let needs: BTreeSet<&str> =
            array(node, "deps").filter(|dep| is_linked(dep, &packages)).map(|dep| text(dep, "pkg")).collect();
        open.extend(&needs);
        found.insert(id, Shipped { package, needs: needs.into_iter().collect() });
    }
    Ok(found)
}

/// Whether a dependency becomes part of a program: a normal one that is no procedural macro.
fn is_linked(dep: &Value, packages: &BTreeMap<&str, &Value>) -> bool {
    let is_normal = array(dep, "dep_kinds").any(|kind| kind["kind"].is_null());
    let is_macro = packages.get(text(dep, "pkg")).is_some_and(|package| {
        array(package, "targets").any(|target| array(target, "kind").any(|kind| kind == "proc-macro"))
    });
    is_normal && !is_macro
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_builds_or_tests_a_program_is_not_part_of_it() {
        let package = |name: &str, source: Value, kind: &str| json!({"id": name, "name": name, "version": "1.0.0", "source": source, "targets": [{"kind": [kind]}]});
        let dep = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let registry = || json!("registry");
        let metadata = json!({
            "packages": [
                package("gpuprobe", Value::Null, "bin"), package("gpuprobe-agent", Value::Null, "cdylib"),
                package("gpuprobe-capture", Value::Null, "lib"), package("linked", registry(), "lib"),
                package("deep", registry(), "lib"), package("macro", registry(), "proc-macro"),
                package("builds", registry(), "lib"), package("tests", registry(), "lib"),
            ],
            "resolve": {"nodes": [
                {"id": "gpuprobe", "deps": [dep("gpuprobe-capture", Value::Null), dep("macro", Value::Null), dep("tests", json!("dev"))]},
                {"id": "gpuprobe-agent", "deps": []},
                {"id": "gpuprobe-capture", "deps": [dep("linked", Value::Null), dep("builds", json!("build"))]},
                {"id": "linked", "deps": [dep("deep", Value::Null)]},
                {"id": "deep", "deps": []}, {"id": "macro", "deps": []}, {"id": "builds", "deps": []}, {"id": "tests", "deps": []},
            ]},
        });
        let found = shipped(&metadata).unwrap();
        let names: Vec<&str> = found.keys().copied().collect();
        assert_eq!(names, ["deep", "gpuprobe", "gpuprobe-agent", "gpuprobe-capture", "linked"]);
        assert_eq!(found["gpuprobe-capture"].needs, ["linked"]);
    }
}
