//! A file name says which file it is: within a crate it occurs once, apart from names that Rust or custom gives a meaning.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::{Findings, files};

const SOURCES: &[&str] = &[".rs", ".c", ".h"];
const GIVEN_A_MEANING: &[&str] = &["mod.rs", "tests.rs", "main.rs", "lib.rs", "build.rs"];

pub(crate) fn check() -> Result<Findings> {
    let tracked = files::tracked()?;
    let packages: Vec<&str> = tracked.iter().filter_map(|file| file.strip_suffix("/Cargo.toml")).collect();
    let mut by_name: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut count = 0;
    for file in &tracked {
        let Some((package, name)) = package_and_name(file, &packages) else { continue };
        count += 1;
        by_name.entry((package, name)).or_default().push(file);
    }
    let repeated = by_name.into_values().filter(|files| files.len() > 1);
    let problems = repeated.map(|files| format!("the same name: {}", files.join(" "))).collect();
    Ok(Findings { looked_at: format!("{count} files in {} packages", packages.len()), problems })
}

fn package_and_name<'a>(file: &'a str, packages: &[&'a str]) -> Option<(&'a str, &'a str)> {
    let (_, name) = file.rsplit_once('/')?;
    let is_source = SOURCES.iter().any(|end| name.ends_with(end)) && !GIVEN_A_MEANING.contains(&name);
    let package = packages
        .iter()
        .filter(|package| file.strip_prefix(**package).is_some_and(|rest| rest.starts_with('/')));
    is_source.then_some(())?;
    Some((package.max_by_key(|package| package.len())?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_the_innermost_package() {
        let packages = ["tests/e2e", "tests/e2e/macros"];
        assert_eq!(package_and_name("tests/e2e/src/a.rs", &packages), Some(("tests/e2e", "a.rs")));
        assert_eq!(
            package_and_name("tests/e2e/macros/src/a.rs", &packages),
            Some(("tests/e2e/macros", "a.rs"))
        );
        assert_eq!(package_and_name("tests/e2e/src/mod.rs", &packages), None);
        assert_eq!(package_and_name("tests/e2e2/a.rs", &packages), None);
    }
}
