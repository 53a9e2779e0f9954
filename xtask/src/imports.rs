//! What a source file imports, found without a full parser: every path that begins with `crate`, `super`, `self` or a name in `use`.

use std::collections::BTreeSet;

/// A path to something, and by which name the file has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// Begins with `crate`, `super`, `self`, or the name of a child module or another crate.
    pub(crate) path: Vec<String>,
    /// Whether the file uses it itself; a re-export need not.
    pub(crate) is_used: bool,
    alias: Option<String>,
    is_exported: bool,
}

impl Import {
    /// Whether other files get something by this name from here.
    pub(crate) fn exports(&self, name: &str) -> bool {
        self.is_exported && self.alias.as_deref() == Some(name)
    }
}

/// The code of a file, without what is compiled for tests alone.
pub(crate) struct Source {
    pub(crate) code: String,
    /// Child modules in files of their own that only tests have.
    pub(crate) test_modules: Vec<String>,
}

/// Comments and literals become spaces, and so does each inline module behind `#[cfg(test)]`.
pub(crate) fn code_without_tests(text: &str) -> Source {
    let mut code = without_literals(text);
    let mut test_modules = Vec::new();
    while let Some(start) = code.find("#[cfg(test)]") {
        let rest = &code[start + "#[cfg(test)]".len()..];
        let item = rest.find(['{', ';']).unwrap_or(rest.len());
        if let Some(name) = rest[..item].trim().rsplit_once("mod ").map(|(_, name)| name.trim().to_owned())
            && rest[item..].starts_with(';')
        {
            test_modules.push(name);
        }
        let end = start + "#[cfg(test)]".len() + end_of_item(rest, item);
        code.replace_range(start..end, " ");
    }
    Source { code, test_modules }
}

/// Where an item ends that has its first brace or semicolon at `at`.
fn end_of_item(code: &str, at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    code.len()
}

fn without_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string_end(rest),
            'r' if !ends_in_word(&code) => raw_string_end(rest),
            '\'' => char_end(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.push(' ');
            rest = &rest[skipped..];
        }
    }
    code
}

fn ends_in_word(code: &str) -> bool {
    code.chars().next_back().is_some_and(|last| last.is_alphanumeric() || last == '_')
}

fn string_end(rest: &str) -> usize {
    let mut escaped = false;
    for (index, char) in rest.char_indices().skip(1) {
        match char {
            '"' if !escaped => return index + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

/// 0 where no raw string begins.
fn raw_string_end(rest: &str) -> usize {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    if !rest[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
}

/// 0 for a lifetime.
fn char_end(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => rest[3..].find('\'').map_or(rest.len(), |at| at + 4),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

pub(crate) fn find(code: &str) -> Vec<Import> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    // the names that occur outside of `use`
    let mut used: BTreeSet<&str> = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            let is_exported = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
            let end = tokens[at..]
                .iter()
                .position(|token| *token == ";")
                .map_or(tokens.len(), |length| at + length);
            for (path, alias) in tree(&tokens[at + 1..end]) {
                found.push(Import { path, is_used: !is_exported, alias, is_exported });
            }
            at = end;
        } else if matches!(tokens[at], "crate" | "super" | "self") && tokens.get(at + 1) == Some(&"::") {
            let mut path = vec![tokens[at].to_owned()];
            while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|token| is_name(token))
            {
                path.push(tokens[at + 2].to_owned());
                at += 2;
            }
            found.push(Import { path, is_used: true, alias: None, is_exported: false });
        } else if at == 0 || tokens[at - 1] != "mod" {
            used.insert(tokens[at]);
        }
        at += 1;
    }
    for import in &mut found {
        import.is_used |= import.alias.as_deref().is_some_and(|name| used.contains(name));
    }
    found
}

fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while !rest.is_empty() {
        let word = rest.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(rest.len());
        let length = if word > 0 {
            word
        } else if rest.starts_with("::") {
            2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The paths of one `use`, each with the name that it gets.
fn tree(tokens: &[&str]) -> Vec<(Vec<String>, Option<String>)> {
    let mut found = Vec::new();
    let mut prefix: Vec<String> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => {
                for part in parts(&tokens[at + 1..]) {
                    for (path, alias) in tree(part) {
                        let path = if path.as_slice() == ["self"] { Vec::new() } else { path };
                        let alias = if path.is_empty() { prefix.last().cloned() } else { alias };
                        found.push(([prefix.as_slice(), &path].concat(), alias));
                    }
                }
                return found;
            }
            "as" => {
                let alias = tokens.get(at + 1).map(|name| (*name).to_owned());
                return vec![(prefix, alias)];
            }
            name if is_name(name) => prefix.push(name.to_owned()),
            _ => {}
        }
        at += 1;
    }
    let alias = prefix.last().cloned();
    found.push((prefix, alias));
    found
}

/// The parts of a group, up to its closing brace.
fn parts<'a, 'b>(tokens: &'b [&'a str]) -> Vec<&'b [&'a str]> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "{" => depth += 1,
            "}" if depth > 0 => depth -= 1,
            "}" | "," if depth == 0 => {
                if index > start {
                    found.push(&tokens[start..index]);
                }
                start = index + 1;
                if *token == "}" {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(code: &str) -> Vec<String> {
        find(code).iter().map(|import| import.path.join("::")).collect()
    }

    #[test]
    fn nested_groups_are_paths_of_their_own() {
        assert_eq!(
            paths("use crate::{a::{self, B}, c::D as E}; use super::f;"),
            ["crate::a", "crate::a::B", "crate::c::D", "super::f"]
        );
        assert_eq!(paths("fn f() { crate::a::b(1); self::c::d() }"), ["crate::a::b", "self::c::d"]);
    }

    #[test]
    fn comments_literals_and_tests_are_left_out() {
        let text = "/// crate::a\nconst X: &str = \"crate::b\"; const Y: char = '\"'; const Z: &str = r#\"crate::\"c\"#;\n\
                    #[cfg(test)]\nmod tests { use crate::d; fn f() { {} } }\nuse crate::e;\n#[cfg(test)] mod testing;";
        let source = code_without_tests(text);
        assert_eq!(paths(&source.code), ["crate::e"]);
        assert_eq!(source.test_modules, ["testing"]);
    }

    #[test]
    fn a_re_export_is_used_where_its_name_occurs_again() {
        let found = find("mod a; pub use a::{A, a}; pub(crate) use b::B; struct C(B);");
        assert_eq!(found.iter().map(|import| import.is_used).collect::<Vec<_>>(), [false, false, true]);
        assert!(found[0].exports("A") && !found[0].exports("B"));
    }
}
