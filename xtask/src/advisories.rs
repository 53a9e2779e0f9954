//! Known vulnerabilities of dependencies, by a copy of the RustSec advisory database: `cargo xtask advisories FOLDER`.
//! The copy is fetched by `scripts/test advisories`; nothing here uses the network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use semver::{Version, VersionReq};
use toml::de::{DeTable, DeValue};

use crate::{Findings, files};

const LOCK_FILES: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];
/// Has the advisories that were looked at and do not concern us, each with its reason.
const SETTINGS: &str = "deny.toml";

/// What an advisory says of the versions of one package.
#[derive(Debug, PartialEq, Eq)]
struct Advisory {
    id: String,
    package: String,
    /// Versions that have the fix, and those that never needed it.
    sound: Vec<VersionReq>,
    /// Not a vulnerability: unmaintained, unsound, or a notice.
    informational: Option<String>,
    is_withdrawn: bool,
}

/// Compares every locked version with every advisory.
pub(crate) fn check(database: &Path) -> Result<Findings> {
    let advisories = read(&database.join("crates"))?;
    ensure!(
        !advisories.is_empty(),
        "{} has no advisories: it is no copy of the database",
        database.display()
    );
    let settings = files::read(SETTINGS)?;
    let ignored = ignored(&settings).with_context(|| format!("cannot use {SETTINGS}"))?;
    let mut packages = BTreeSet::new();
    for name in LOCK_FILES {
        packages.extend(locked(&files::read(name)?).with_context(|| format!("cannot use {name}"))?);
    }
    let count: usize = advisories.values().map(Vec::len).sum();
    let looked_at = format!("{} packages, {count} advisories", packages.len());
    Ok(Findings { looked_at, problems: problems(&advisories, &packages, &ignored) })
}

fn problems(
    advisories: &BTreeMap<String, Vec<Advisory>>,
    packages: &BTreeSet<(String, Version)>,
    ignored: &[String],
) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, version) in packages {
        for advisory in advisories.get(name).into_iter().flatten() {
            if !advisory.concerns(version) || ignored.contains(&advisory.id) {
                continue;
            }
            match &advisory.informational {
                Some(kind) => println!("  note: {name} {version}: {} ({kind})", advisory.id),
                None => problems.push(format!(
                    "{name} {version}: {}: update it, or give a reason in {SETTINGS}",
                    advisory.id
                )),
            }
        }
    }
    problems
}

impl Advisory {
    fn concerns(&self, version: &Version) -> bool {
        !self.is_withdrawn && !self.sound.iter().any(|sound| sound.matches(version))
    }

    /// Reads the table that an advisory begins with.
    fn parse(text: &str) -> Result<Self> {
        let table = text.split_once("```toml").and_then(|(_, rest)| rest.split_once("```"));
        let (table, _) = table.context("it does not begin with a table of TOML")?;
        let table = DeTable::parse(table).map_err(|error| anyhow!("{}", error.message()))?;
        let about = get(table.get_ref(), "advisory").and_then(as_table).context("no [advisory]")?;
        let word = |key| get(about, key).and_then(as_text);
        let mut sound = Vec::new();
        if let Some(versions) = get(table.get_ref(), "versions").and_then(as_table) {
            for key in ["patched", "unaffected"] {
                for text in get(versions, key).map(texts).unwrap_or_default() {
                    sound.push(text.parse().with_context(|| format!("`{text}` is no range of versions"))?);
                }
            }
        }
        Ok(Self {
            id: word("id").context("no id")?.to_owned(),
            package: word("package").context("no package")?.to_owned(),
            sound,
            informational: word("informational").map(str::to_owned),
            is_withdrawn: get(about, "withdrawn").is_some(),
        })
    }
}

/// Every advisory below a folder, by package.
fn read(folder: &Path) -> Result<BTreeMap<String, Vec<Advisory>>> {
    let mut found: BTreeMap<String, Vec<Advisory>> = BTreeMap::new();
    let packages = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    for package in packages {
        let package = package?.path();
        if !package.is_dir() {
            continue;
        }
        for file in package.read_dir()? {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            let advisory =
                Advisory::parse(&text).with_context(|| format!("cannot read {}", path.display()))?;
            found.entry(advisory.package.clone()).or_default().push(advisory);
        }
    }
    Ok(found)
}

/// The packages of a lock file that come from elsewhere.
fn locked(text: &str) -> Result<Vec<(String, Version)>> {
    let table = DeTable::parse(text).map_err(|error| anyhow!("{}", error.message()))?;
    let mut found = Vec::new();
    for package in get(table.get_ref(), "package").and_then(DeValue::as_array).into_iter().flatten() {
        let Some(package) = as_table(package.get_ref()) else { continue };
        let word = |key| get(package, key).and_then(as_text);
        if word("source").is_some() {
            let (name, version) = word("name").zip(word("version")).context("a package without a version")?;
            found.push((name.to_owned(), version.parse().with_context(|| format!("{name} {version}"))?));
        }
    }
    Ok(found)
}

/// The ids in `advisories.ignore`, which are texts or tables with an `id`.
fn ignored(text: &str) -> Result<Vec<String>> {
    let table = DeTable::parse(text).map_err(|error| anyhow!("{}", error.message()))?;
    let list = get(table.get_ref(), "advisories").and_then(as_table).and_then(|table| get(table, "ignore"));
    let id = |value: &DeValue<'_>| {
        let named = as_table(value).and_then(|table| get(table, "id"));
        as_text(named.unwrap_or(value)).map(str::to_owned).context("an entry of `ignore` has no id")
    };
    list.and_then(DeValue::as_array).into_iter().flatten().map(|value| id(value.get_ref())).collect()
}

fn get<'a>(table: &'a DeTable<'a>, key: &str) -> Option<&'a DeValue<'a>> {
    table.iter().find(|(known, _)| known.get_ref() == key).map(|(_, value)| value.get_ref())
}

fn as_table<'a>(value: &'a DeValue<'a>) -> Option<&'a DeTable<'a>> {
    value.as_table()
}

fn as_text<'a>(value: &'a DeValue<'_>) -> Option<&'a str> {
    value.as_str()
}

fn texts<'a>(value: &'a DeValue<'a>) -> Vec<&'a str> {
    value.as_array().into_iter().flatten().filter_map(|value| as_text(value.get_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advisory(more: &str) -> Advisory {
        let text = format!(
            "```toml\n[advisory]\nid = \"RUSTSEC-2020-0001\"\npackage = \"some\"\n{more}\n[versions]\n\
             patched = [\">= 1.2.3, < 2.0.0\", \">= 2.1\"]\nunaffected = [\"< 1.0.0\"]\n```\n\n# A title\n"
        );
        Advisory::parse(&text).unwrap()
    }

    fn concerned(advisory: Advisory, ignored: &[String]) -> Vec<String> {
        let versions = ["0.9.9", "1.0.0", "1.2.2", "1.2.3", "2.0.5", "2.1.0"];
        let packages = versions.map(|version| ("some".to_owned(), version.parse().unwrap()));
        let other = ("other".to_owned(), Version::new(1, 0, 0));
        let packages = packages.into_iter().chain([other]).collect();
        problems(&BTreeMap::from([("some".to_owned(), vec![advisory])]), &packages, ignored)
    }

    #[test]
    fn versions_without_the_fix_are_found() {
        let found = concerned(advisory(""), &[]);
        let versions: Vec<_> = found.iter().filter_map(|line| line.split([' ', ':']).nth(1)).collect();
        assert_eq!(versions, ["1.0.0", "1.2.2", "2.0.5"], "{found:?}");
        assert!(found[0].contains("RUSTSEC-2020-0001"), "{found:?}");
    }

    #[test]
    fn what_is_withdrawn_ignored_or_no_vulnerability_is_none() {
        assert_eq!(concerned(advisory("withdrawn = \"2021-01-01\""), &[]), [""; 0]);
        assert_eq!(concerned(advisory("informational = \"unmaintained\""), &[]), [""; 0]);
        assert_eq!(concerned(advisory(""), &["RUSTSEC-2020-0001".to_owned()]), [""; 0]);
    }

    #[test]
    fn a_folder_that_is_no_database_is_refused() {
        let error = check(Path::new("/nowhere")).unwrap_err();
        assert_eq!(error.to_string(), "cannot list /nowhere/crates");
        assert!(Advisory::parse("# no table").is_err());
        assert!(Advisory::parse("```toml\n[advisory]\n```").is_err());
    }

    #[test]
    fn our_own_lock_files_and_settings_can_be_read() {
        for name in LOCK_FILES {
            let packages = locked(&files::read(name).unwrap()).unwrap();
            assert!(packages.len() > 50 && packages.iter().any(|(name, _)| name == "serde"), "{name}");
        }
        ignored(&files::read(SETTINGS).unwrap()).unwrap();
        let text = "[advisories]\nignore = [\"A\", { id = \"B\", reason = \"not used\" }]\n";
        assert_eq!(ignored(text).unwrap(), ["A", "B"]);
    }
}
