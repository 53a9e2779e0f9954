//! Licence expressions as SPDX writes them: `OR`, `AND`, `WITH` and brackets, `OR` binding least.

use anyhow::{Result, bail, ensure};

/// Whether a choice among the `OR`s leaves only licences that `allowed` accepts.
///
/// An exception (`WITH`) only adds permissions, so the licence before it decides.
pub(crate) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    // before expressions were agreed on, a slash stood for OR
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allowed };
    let answer = parser.any_of()?;
    ensure!(parser.words.is_empty(), "`{}` stands where OR, AND or the end should", parser.words[0]);
    Ok(answer)
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn any_of(&mut self) -> Result<bool> {
        let mut answer = self.all_of()?;
        while self.take("OR") {
            // parsed whatever the answer so far: all of the expression must be well formed
            answer |= self.all_of()?;
        }
        Ok(answer)
    }

    fn all_of(&mut self) -> Result<bool> {
        let mut answer = self.one()?;
        while self.take("AND") {
            answer &= self.one()?;
        }
        Ok(answer)
    }

    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let answer = self.any_of()?;
            ensure!(self.take(")"), "a bracket is not closed");
            return Ok(answer);
        }
        let answer = (self.allowed)(self.name()?);
        if self.take("WITH") {
            self.name()?;
        }
        Ok(answer)
    }

    fn name(&mut self) -> Result<&'a str> {
        let Some((word, rest)) = self.words.split_first() else { bail!("a licence is missing at the end") };
        ensure!(
            !matches!(*word, "OR" | "AND" | "WITH" | "(" | ")"),
            "`{word}` stands where a licence should"
        );
        self.words = rest;
        Ok(word)
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.words.first() == Some(&expected);
        if found {
            self.words = &self.words[1..];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_mit_and_apache(expression: &str) -> bool {
        satisfied(expression, &|licence| matches!(licence, "MIT" | "Apache-2.0")).unwrap()
    }

    #[test]
    fn one_side_of_or_is_enough_and_both_sides_of_and_are_needed() {
        assert!(with_mit_and_apache("MIT"));
        assert!(with_mit_and_apache("GPL-2.0-only OR MIT"));
        assert!(with_mit_and_apache("GPL-2.0/MIT"));
        assert!(with_mit_and_apache("MIT AND Apache-2.0"));
        assert!(!with_mit_and_apache("MIT AND GPL-2.0-only"));
    }

    #[test]
    fn and_binds_before_or_unless_brackets_say_otherwise() {
        assert!(with_mit_and_apache("MIT OR Apache-2.0 AND GPL-2.0-only"));
        assert!(!with_mit_and_apache("(MIT OR Apache-2.0) AND GPL-2.0-only"));
    }

    #[test]
    fn an_exception_leaves_the_licence_as_it_is() {
        assert!(with_mit_and_apache("Apache-2.0 WITH LLVM-exception"));
        assert!(!with_mit_and_apache("GPL-2.0-only WITH Classpath-exception-2.0"));
    }

    #[test]
    fn a_broken_expression_is_an_error_even_behind_an_allowed_licence() {
        for broken in ["", "MIT OR", "(MIT", "MIT)", "MIT Apache-2.0", "MIT OR AND", "MIT WITH"] {
            assert!(satisfied(broken, &|_| true).is_err(), "{broken:?}");
        }
    }
}
