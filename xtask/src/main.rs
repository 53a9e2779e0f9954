//! Checks that cargo alone does not make: `cargo xtask all`, or one by name. Also writes what releases contain besides
//! programs.
#![forbid(unsafe_code)]

mod cycles;
mod deps;
mod files;
mod imports;
mod licence_headers;
mod links;
mod markdown;
mod metadata;
mod modules;
mod names;
mod release_files;
mod rust_library;
mod sbom;
mod shipped;
mod size;
mod system_packages;
mod text;
mod third_party;
mod version;
mod words;

use std::process::ExitCode;

use anyhow::Result;

/// What a check looked at and what it found wrong, one line each.
#[derive(Debug)]
struct Findings {
    looked_at: String,
    problems: Vec<String>,
}

type Check = (&'static str, &'static str, fn() -> Result<Findings>);

const CHECKS: &[Check] = &[
    ("deps", "workspace crates use each other only as the design allows", deps::check),
    ("modules", "folders do not import each other in a circle", modules::check),
    ("names", "no two files of a crate have the same name", names::check),
    ("size", "source files are short", size::check),
    ("licences", "BPF files name their licence", licence_headers::check),
    ("words", "retired words are not used", words::check),
    (
        "links",
        "links lead to pages and headings, pages are in the book, questions have answers",
        links::check,
    ),
    ("version", "files name the version of Cargo.toml", version::check),
    ("text", "files name no machine's paths and no package registry", text::check),
];

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        return usage();
    };
    if release_files::NAMES.contains(&&*name) {
        return match release_files::write(&name, &std::env::args().skip(2).collect::<Vec<_>>()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{name}: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let chosen: Vec<&Check> = CHECKS.iter().filter(|check| name == "all" || name == check.0).collect();
    if chosen.is_empty() {
        return usage();
    }
    // every check runs, so that one round of corrections can answer them all
    let failed = chosen.into_iter().filter(|check| !passes(check)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passes((name, _, check): &Check) -> bool {
    report(name, check())
}

fn report(name: &str, found: Result<Findings>) -> bool {
    let findings = match found {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            return false;
        }
    };
    let Findings { looked_at, problems } = findings;
    if problems.is_empty() {
        println!("{name}: ok ({looked_at})");
        return true;
    }
    println!("{name}: FAILED ({looked_at})");
    for problem in problems {
        println!("  {problem}");
    }
    false
}

fn usage() -> ExitCode {
    eprintln!("usage: cargo xtask CHECK\n\n  all       every check below");
    for (name, about, _) in CHECKS {
        eprintln!("  {name:<9} {about}");
    }
    eprintln!("\nfor releases: cargo xtask third-party|sbom TARGET [PACKAGE=VERSION=COPYRIGHT...]");
    ExitCode::from(2)
}
