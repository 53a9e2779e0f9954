//! Which workspace crate may use which: data flows one way, so a stage uses types from its left, never its right.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;

use crate::Findings;
use crate::metadata::{self, array, text};

struct Rule {
    package: &'static str,
    uses: &'static [&'static str],
    builds_with: &'static [&'static str],
    tests_with: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule { package: "gpuprobe-event", uses: &[], builds_with: &[], tests_with: &[] },
    Rule {
        package: "gpuprobe-agent",
        uses: &["gpuprobe-event"],
        builds_with: &[],
        tests_with: &["gpuprobe-standin"],
    },
    Rule { package: "gpuprobe-discover", uses: &["gpuprobe-event"], builds_with: &[], tests_with: &[] },
    Rule {
        package: "gpuprobe-capture",
        uses: &["gpuprobe-event", "gpuprobe-discover"],
        builds_with: &[],
        // its benchmark takes calls all the way
        tests_with: &["gpuprobe-analysis"],
    },
    Rule { package: "gpuprobe-analysis", uses: &["gpuprobe-event"], builds_with: &[], tests_with: &[] },
    Rule {
        package: "gpuprobe-output",
        uses: &["gpuprobe-event", "gpuprobe-analysis"],
        builds_with: &[],
        tests_with: &[],
    },
    Rule {
        package: "gpuprobe",
        uses: &[
            "gpuprobe-event",
            "gpuprobe-discover",
            "gpuprobe-capture",
            "gpuprobe-analysis",
            "gpuprobe-output",
        ],
        // the demo's libraries are made when the binary is
        builds_with: &["gpuprobe-standin"],
        tests_with: &[],
    },
    Rule { package: "gpuprobe-standin", uses: &["gpuprobe-event"], builds_with: &[], tests_with: &[] },
    Rule {
        package: "gpuprobe-e2e",
        // a recording's summary is made again of its lines
        uses: &["gpuprobe-event", "gpuprobe-analysis", "gpuprobe-standin", "gpuprobe-test-macros"],
        builds_with: &[],
        tests_with: &["gpuprobe-event", "gpuprobe-standin"],
    },
    Rule { package: "gpuprobe-test-macros", uses: &[], builds_with: &[], tests_with: &[] },
    Rule { package: "xtask", uses: &[], builds_with: &[], tests_with: &[] },
];

pub(crate) fn check() -> Result<Findings> {
    Ok(findings(&metadata::read()?))
}

fn findings(metadata: &Value) -> Findings {
    let members = metadata::members(metadata);
    let names: BTreeSet<&str> = members.iter().map(|package| text(package, "name")).collect();
    let mut problems = Vec::new();
    let mut edges = 0;
    for package in members {
        let name = text(package, "name");
        let Some(rule) = RULES.iter().find(|rule| rule.package == name) else {
            problems.push(format!("{name} has no rule: add one to xtask/src/deps.rs"));
            continue;
        };
        let inside = array(package, "dependencies").filter(|used| names.contains(text(used, "name")));
        for used in inside {
            edges += 1;
            problems.extend(forbidden(rule, used));
        }
    }
    Findings { looked_at: format!("{edges} edges between {} crates", names.len()), problems }
}

fn forbidden(rule: &Rule, used: &Value) -> Option<String> {
    // cargo leaves the kind of an ordinary dependency null
    let (listed, how) = match text(used, "kind") {
        "build" => (rule.builds_with, "build with"),
        "dev" => (rule.tests_with, "test with"),
        _ => (rule.uses, "use"),
    };
    let name = text(used, "name");
    (!listed.contains(&name)).then(|| format!("{} must not {how} {name}", rule.package))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workspace(of: &str, uses: &str, kind: Option<&str>) -> Value {
        json!({
            "workspace_members": ["a", "b"],
            "packages": [
                { "id": "a", "name": of, "dependencies": [
                    { "name": uses, "kind": kind },
                    { "name": "serde", "kind": null },
                ] },
                { "id": "b", "name": uses, "dependencies": [] },
                { "id": "c", "name": "serde", "dependencies": [] },
            ],
        })
    }

    #[test]
    fn an_edge_to_the_right_is_reported() {
        let found = findings(&workspace("gpuprobe-analysis", "gpuprobe-output", None));
        assert_eq!(found.problems, ["gpuprobe-analysis must not use gpuprobe-output"]);
        assert_eq!(found.looked_at, "1 edges between 2 crates");
    }

    #[test]
    fn a_listed_edge_is_not_reported() {
        let found = findings(&workspace("gpuprobe-output", "gpuprobe-analysis", None));
        assert!(found.problems.is_empty(), "{:?}", found.problems);
    }

    #[test]
    fn an_edge_is_allowed_only_in_the_kind_that_lists_it() {
        let built = findings(&workspace("gpuprobe", "gpuprobe-standin", Some("build")));
        assert!(built.problems.is_empty(), "{:?}", built.problems);
        let used = findings(&workspace("gpuprobe", "gpuprobe-standin", None));
        assert_eq!(used.problems, ["gpuprobe must not use gpuprobe-standin"]);
        let tested = findings(&workspace("gpuprobe-output", "gpuprobe-analysis", Some("dev")));
        assert_eq!(tested.problems, ["gpuprobe-output must not test with gpuprobe-analysis"]);
    }

    #[test]
    fn a_crate_without_a_rule_is_reported() {
        let found = findings(&workspace("gpuprobe-new", "gpuprobe-event", None));
        assert_eq!(found.problems, ["gpuprobe-new has no rule: add one to xtask/src/deps.rs"]);
    }
}
