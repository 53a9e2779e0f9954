//! Folders of a crate are components: they do not import each other in a circle, and a circle of files stays small.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::imports::{self, Import};
use crate::{Findings, cycles, files};

/// A parent and its two halves may need each other; more files than that are no longer read one at a time.
const MOST_FILES_IN_A_CYCLE: usize = 3;

/// A module path from the crate's root: `["attach", "uprobe"]`; the root itself is empty.
type Module = Vec<String>;

/// The modules of one crate, each with its file and imports.
#[derive(Default)]
struct Crate {
    name: String,
    files: BTreeMap<Module, String>,
    imports: BTreeMap<Module, Vec<Import>>,
}

pub(crate) fn check() -> Result<Findings> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    let mut test_modules = Vec::new();
    for file in files::tracked()? {
        let Some((name, module)) = module_of(&file) else { continue };
        let text = files::read(&file)?;
        let source = imports::code_without_tests(&text);
        for child in &source.test_modules {
            test_modules.push((name.to_owned(), [module.as_slice(), std::slice::from_ref(child)].concat()));
        }
        let crate_ = crates.entry(name.to_owned()).or_default();
        name.clone_into(&mut crate_.name);
        crate_.imports.insert(module.clone(), imports::find(&source.code));
        crate_.files.insert(module, file);
    }
    for (name, module) in test_modules {
        if let Some(crate_) = crates.get_mut(&name) {
            crate_.files.retain(|other, _| !other.starts_with(&module));
            crate_.imports.retain(|other, _| !other.starts_with(&module));
        }
    }
    let problems = crates.values().flat_map(Crate::problems).collect();
    let count: usize = crates.values().map(|crate_| crate_.files.len()).sum();
    Ok(Findings { looked_at: format!("{count} files in {} crates", crates.len()), problems })
}

/// The crate and the module of a source file; nothing for what is no part of a library or binary.
fn module_of(file: &str) -> Option<(&str, Module)> {
    let (name, inside) = file.split_once("/src/")?;
    let path = inside.strip_suffix(".rs")?;
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if matches!(module.last()?.as_str(), "mod" | "lib" | "main") {
        module.pop();
    }
    Some((name, module))
}

impl Crate {
    fn problems(&self) -> Vec<String> {
        let edges = self.edges();
        let mut problems = Vec::new();
        for cycle in cycles::find(&edges) {
            if cycle.len() > MOST_FILES_IN_A_CYCLE {
                let names: Vec<&str> = cycle.iter().map(|module| self.files[module].as_str()).collect();
                problems.push(format!("{} files import each other: {}", cycle.len(), names.join(" ")));
            }
        }
        for folder in self.folders() {
            for cycle in cycles::find(&self.edges_between_children(&folder, &edges)) {
                let example = self.example(&folder, &cycle, &edges);
                problems.push(format!(
                    "{}/src/{}: {} import each other, for example {example}",
                    self.name,
                    folder.join("/"),
                    cycle.join(" and ")
                ));
            }
        }
        problems
    }

    /// Which module uses something that is defined in which other one.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut edges = BTreeMap::new();
        for (module, imports) in &self.imports {
            let used = imports
                .iter()
                .filter(|import| import.is_used)
                .filter_map(|import| self.resolve(module, &import.path, 0));
            let others: BTreeSet<Module> = used.filter(|other| other != module).collect();
            edges.insert(module.clone(), others);
        }
        edges
    }

    /// The module that defines what a path names, through re-exports.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        // a re-export that leads to itself
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => from.split_last()?.1.to_vec(),
            child if self.files.contains_key(&child_of(from, child)) => child_of(from, child),
            _ => return None,
        };
        for (index, name) in rest.iter().enumerate() {
            let child = child_of(&at, name);
            if name == "super" {
                at.pop();
            } else if self.files.contains_key(&child) {
                at = child;
            } else {
                let exported = self.imports.get(&at)?.iter().find(|import| import.exports(name));
                return match exported {
                    Some(import) => {
                        let path = [import.path.as_slice(), &rest[index + 1..]].concat();
                        self.resolve(&at, &path, depth + 1)
                    }
                    None => Some(at),
                };
            }
        }
        Some(at)
    }

    /// Every module that has others below it.
    fn folders(&self) -> BTreeSet<Module> {
        self.files
            .keys()
            .filter_map(|module| module.split_last())
            .map(|(_, parent)| parent.to_vec())
            .collect()
    }

    /// The imports between the children of a folder, each with all that is below it. What is in the folder's own `mod.rs` belongs to
    /// no child. A circle of files without a folder among them is left to the limit for files.
    fn edges_between_children(
        &self,
        folder: &Module,
        edges: &BTreeMap<Module, BTreeSet<Module>>,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let mut between: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
            let (Some(from), Some(to)) = (below(folder, from), below(folder, to)) else { continue };
            if from != to && self.is_folder(folder, from) && self.is_folder(folder, to) {
                between.entry(from.to_owned()).or_default().insert(to.to_owned());
                between.entry(to.to_owned()).or_default();
            }
        }
        between
    }

    fn is_folder(&self, parent: &Module, name: &str) -> bool {
        let folder = child_of(parent, name);
        self.files.keys().any(|module| module.len() > folder.len() && module.starts_with(&folder))
    }

    /// One import of the circle for each two folders in it.
    fn example(
        &self,
        folder: &Module,
        cycle: &[String],
        edges: &BTreeMap<Module, BTreeSet<Module>>,
    ) -> String {
        let mut seen = BTreeSet::new();
        let mut shown = Vec::new();
        for (from, to) in edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
            let (Some(a), Some(b)) = (below(folder, from), below(folder, to)) else { continue };
            let both = [a, b].into_iter().all(|name| cycle.iter().any(|other| other == name));
            if a != b && both && seen.insert((a, b)) {
                shown.push(format!("{} -> {}", from.join("::"), to.join("::")));
            }
        }
        shown.join(", ")
    }
}

fn child_of(parent: &[String], name: &str) -> Module {
    let mut child = parent.to_vec();
    child.push(name.to_owned());
    child
}

/// The child of a folder in which a module is.
fn below<'a>(folder: &[String], module: &'a [String]) -> Option<&'a str> {
    module.strip_prefix(folder)?.first().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_of(sources: &[(&str, &str)]) -> Crate {
        let mut made = Crate { name: "a".into(), ..Crate::default() };
        for (file, text) in sources {
            let (_, module) =
                module_of(&format!("a/src/{file}")).map(|(name, module)| (name.to_owned(), module)).unwrap();
            made.imports.insert(module.clone(), imports::find(&imports::code_without_tests(text).code));
            made.files.insert(module, (*file).to_owned());
        }
        made
    }

    #[test]
    fn folders_that_import_each_other_are_found() {
        let problems = made_of(&[
            ("lib.rs", "mod load; mod ring;"),
            ("load/mod.rs", "mod config; pub(crate) use config::Config;"),
            ("load/config.rs", "use crate::ring::Reader; pub(crate) struct Config(Reader);"),
            ("ring/mod.rs", "mod reader; pub(crate) use reader::Reader;"),
            ("ring/reader.rs", "pub(crate) struct Reader; fn f(_: crate::load::Config) {}"),
        ])
        .problems();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("load and ring import each other"), "{problems:?}");
        assert!(problems[0].contains("load::config -> ring::reader"), "{problems:?}");
    }

    #[test]
    fn a_cycle_of_four_files_is_found_and_one_of_three_is_allowed() {
        let circle = |files: usize| {
            let names = ["a", "b", "c", "d"];
            let texts: Vec<(String, String)> = (0..files)
                .map(|i| {
                    (
                        format!("{}.rs", names[i]),
                        format!("use super::{}::X;  fn f(_: X) {{}}", names[(i + 1) % files]),
                    )
                })
                .collect();
            let texts: Vec<(&str, &str)> =
                texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            made_of(&texts).problems()
        };
        assert!(circle(3).is_empty());
        assert_eq!(circle(4), ["4 files import each other: a.rs b.rs c.rs d.rs"]);
    }

    #[test]
    fn tests_and_re_exports_are_no_imports() {
        let problems = made_of(&[
            ("lib.rs", "mod a; mod b; pub use a::one::A; pub use b::two::B;"),
            ("a/one.rs", "use crate::B; pub struct A(B);"),
            ("b/two.rs", "pub struct B; #[cfg(test)] mod tests { use crate::A; }"),
        ])
        .problems();
        assert!(problems.is_empty(), "{problems:?}");
    }
}
