//! Links and headings of Markdown files.

/// A link that is not to another site, with its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) line: usize,
    /// The file, relative to that of the link; empty for a heading of the same file.
    pub(crate) path: String,
    /// The heading, if one is named.
    pub(crate) anchor: Option<String>,
}

/// The lines that are not in a fenced block, with their numbers.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number, line))
    })
}

pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // a line of an indented block, which no list of this repository's pages looks like
        if line.starts_with("    ") && !line.trim_start().starts_with(['-', '*', '[']) {
            continue;
        }
        let line = without_code(line);
        for target in
            line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
        {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) =
                target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a.to_owned())));
            found.push(Link { line: number, path: path.to_owned(), anchor });
        }
    }
    found
}

/// The anchors of the headings, as GitHub and mdBook make them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor = slug(&text_of(title.trim()));
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|one| !anchors.contains(one));
        anchors.extend(free);
    }
    anchors
}

fn slug(title: &str) -> String {
    let kept = title.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || "_- ".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// A title without the targets of its links.
fn text_of(title: &str) -> String {
    let mut parts = title.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| text.push_str(part.split_once(')').map_or(part, |(_, rest)| rest)));
    text
}

/// A line without what is in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](b.md#c) `[x](y)` [d](#e)\n```\n[no](no)\n```\n    $ echo [no](no)\n- [f](https://g)\n  [h](i)";
        let found: Vec<_> = links(text).into_iter().map(|l| (l.line, l.path, l.anchor)).collect();
        let expected = [(1, "b.md", Some("c")), (1, "", Some("e")), (7, "i", None)];
        assert_eq!(
            found,
            expected.map(|(line, path, anchor)| (line, path.to_owned(), anchor.map(str::to_owned)))
        );
    }

    #[test]
    fn anchors_are_those_of_the_book() {
        let text =
            "# Functions of your own: `--hooks FILE`\n## The [glossary](g.md), again\n## A\n## A\n#no\n";
        let expected = ["functions-of-your-own---hooks-file", "the-glossary-again", "a", "a-1"];
        assert_eq!(anchors(text), expected);
    }
}
