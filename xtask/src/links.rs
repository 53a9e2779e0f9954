//! Links of Markdown files lead to files and headings that exist, every page is in the book, and a new user finds the
//! answers to common questions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use crate::{Findings, files, markdown};

const BOOK: &str = "docs/SUMMARY.md";
/// A table of questions, the pages that answer them, and words of the answer.
const QUESTIONS: &str = "tests/book/questions.md";
const START: &str = "README.md";
const MOST_CLICKS: usize = 2;

/// The pages of the repository by their path.
type Pages = BTreeMap<String, String>;

pub(crate) fn check() -> Result<Findings> {
    let tracked = files::tracked()?;
    let mut pages = Pages::new();
    // links of the book to files at the root are links to the same pages
    for name in tracked.iter().filter(|name| name.ends_with(".md") && !files::is_link(name)) {
        pages.insert(name.clone(), files::read(name)?);
    }
    let exists = |path: &str| files::exists(path);
    let mut problems = Vec::new();
    let mut count = 0;
    for (name, text) in &pages {
        for link in markdown::links(text) {
            count += 1;
            let problem = target(name, &link.path, &pages, &exists)
                .and_then(|target| missing_anchor(&target, link.anchor.as_deref(), &pages));
            if let Err(problem) = problem {
                problems.push(format!("{name}:{}: {problem}", link.line));
            }
        }
    }
    problems.extend(not_in_the_book(&pages, &tracked)?);
    let questions = rows(pages.get(QUESTIONS).with_context(|| format!("{QUESTIONS} is missing"))?);
    problems.extend(questions.iter().filter_map(|question| unanswered(question, &pages)));
    let looked_at = format!("{count} links of {} pages, {} questions", pages.len(), questions.len());
    Ok(Findings { looked_at, problems })
}

/// The path of a link's target from the root of the repository.
fn target(page: &str, path: &str, pages: &Pages, exists: &dyn Fn(&str) -> bool) -> Result<String, String> {
    let target = resolved(page, path);
    if pages.contains_key(&target) || exists(&target) {
        return Ok(target);
    }
    Err(format!("there is no {target}"))
}

fn resolved(page: &str, path: &str) -> String {
    if path.is_empty() {
        return page.to_owned();
    }
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn missing_anchor(target: &str, anchor: Option<&str>, pages: &Pages) -> Result<(), String> {
    let (Some(anchor), Some(text)) = (anchor, pages.get(target)) else { return Ok(()) };
    match markdown::anchors(text).iter().any(|found| found == anchor) {
        true => Ok(()),
        false => Err(format!("{target} has no heading #{anchor}")),
    }
}

/// Every page in `docs` is a chapter, so that the book's search finds it.
fn not_in_the_book(pages: &Pages, tracked: &[String]) -> Result<Vec<String>> {
    let summary = pages.get(BOOK).with_context(|| format!("{BOOK} is missing"))?;
    let chapters: BTreeSet<String> =
        markdown::links(summary).iter().map(|link| resolved(BOOK, &link.path)).collect();
    let is_page = |name: &&String| {
        name.starts_with("docs/")
            && Path::new(name).extension().is_some_and(|end| end == "md")
            && *name != BOOK
    };
    let missing = tracked.iter().filter(is_page).filter(|name| !chapters.contains(*name));
    Ok(missing.map(|name| format!("{name} is not in {BOOK}")).collect())
}

struct Question {
    text: String,
    page: String,
    words: String,
}

fn rows(table: &str) -> Vec<Question> {
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (text, page, words) = (cells.next()?, cells.next()?, cells.next()?);
        let page = markdown::links(page).pop()?;
        Some(Question {
            text: text.to_owned(),
            page: resolved(QUESTIONS, &page.path),
            words: words.to_owned(),
        })
    })
    .collect()
}

/// What is wrong with a question: its page does not have the answer, or is too far away.
fn unanswered(question: &Question, pages: &Pages) -> Option<String> {
    let Question { text, page, words } = question;
    if !pages.get(page).is_some_and(|content| content.contains(words.as_str())) {
        return Some(format!("{QUESTIONS}: {text} {page} does not contain `{words}`"));
    }
    let mut reached = BTreeSet::from([START.to_owned()]);
    for _ in 0..MOST_CLICKS {
        let next: Vec<String> = reached
            .iter()
            .filter_map(|from| Some((from, pages.get(from)?)))
            .flat_map(|(from, content)| {
                markdown::links(content).into_iter().map(|link| resolved(from, &link.path))
            })
            .collect();
        reached.extend(next);
    }
    (!reached.contains(page))
        .then(|| format!("{QUESTIONS}: {text} {page} is more than {MOST_CLICKS} clicks away"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> Pages {
        texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_target_is_found_from_the_folder_of_its_page() {
        assert_eq!(resolved("docs/guides/a.md", "../reference/b.md"), "docs/reference/b.md");
        assert_eq!(resolved("docs/a.md", ""), "docs/a.md");
        assert_eq!(resolved("README.md", "docs/./a.md"), "docs/a.md");
        let pages = pages(&[("docs/a.md", "")]);
        assert!(target("README.md", "docs/a.md", &pages, &|_| false).is_ok());
        assert!(target("README.md", "docs/b.md", &pages, &|_| false).is_err());
    }

    #[test]
    fn a_heading_must_exist() {
        let pages = pages(&[("a.md", "# One\n")]);
        assert!(missing_anchor("a.md", Some("one"), &pages).is_ok());
        assert!(missing_anchor("a.md", Some("two"), &pages).is_err());
        assert!(missing_anchor("a.png", Some("two"), &pages).is_ok());
    }

    #[test]
    fn a_page_outside_of_the_book_is_found() {
        let pages = pages(&[("docs/SUMMARY.md", "- [A](a.md)")]);
        let tracked = ["docs/SUMMARY.md", "docs/a.md", "docs/b.md", "docs/c.png"].map(str::to_owned);
        assert_eq!(not_in_the_book(&pages, &tracked).unwrap(), ["docs/b.md is not in docs/SUMMARY.md"]);
    }

    #[test]
    fn an_answer_is_near_and_has_the_words() {
        let pages = pages(&[
            ("README.md", "[a](docs/a.md)"),
            ("docs/a.md", "[b](b.md) one"),
            ("docs/b.md", "[c](c.md) two"),
            ("docs/c.md", "three"),
        ]);
        let table = "| question | page | words |\n|---|---|---|\n| Near? | [b](../../docs/b.md) | two |\n\
                     | Far? | [c](../../docs/c.md) | three |\n| Absent? | [a](../../docs/a.md) | two |\n";
        let found: Vec<_> = rows(table).iter().map(|question| unanswered(question, &pages)).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], None);
        assert!(found[1].as_ref().is_some_and(|problem| problem.ends_with("more than 2 clicks away")));
        assert!(found[2].as_ref().is_some_and(|problem| problem.contains("does not contain")));
    }
}
