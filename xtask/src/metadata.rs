//! What `cargo metadata` says about the workspace and everything it depends on.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::files;

pub(crate) fn read() -> Result<Value> {
    read_with(&[])
}

/// The same for one target only.
pub(crate) fn read_for(target: &str) -> Result<Value> {
    read_with(&["--filter-platform", target])
}

fn read_with(options: &[&str]) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(options)
        .current_dir(files::root())
        .output()
        .context("cargo metadata did not start")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("cargo metadata wrote no JSON")
}

/// The packages of the workspace.
pub(crate) fn members(metadata: &Value) -> Vec<&Value> {
    let members: BTreeSet<&str> = array(metadata, "workspace_members").filter_map(Value::as_str).collect();
    array(metadata, "packages").filter(|package| members.contains(text(package, "id"))).collect()
}

/// The array called `key`, empty when there is none.
pub(crate) fn array<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// The string called `key`, empty when it is null or missing.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}
