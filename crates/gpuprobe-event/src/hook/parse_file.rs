//! Parses hook files, which are TOML. Errors name the line and what would be right.
//!
//! Positions are the spans of the toml crate. serde's derived parsers are not used: their messages do not say what
//! would be right, and which keys are allowed depends on other keys.

use std::ops::Range;

use glob::Pattern;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{HookError, Hooks, LibraryHook, LinuxHook, LinuxHookPoint, SourceLine, signature};

/// All keys of a hook.
const KEYS: [&str; 25] = [
    "library",
    "function",
    "kernel",
    "tracepoint",
    "class",
    "args",
    "returns",
    "error",
    "size",
    "count",
    "ptr",
    "memory",
    "dst",
    "src",
    "kind",
    "async",
    "waits",
    "stream",
    "launches",
    "grid",
    "block",
    "shared",
    "names",
    "name",
    "nothrow",
];

/// Adds the hooks of a file.
pub(super) fn file(hooks: &mut Hooks, file: &str, text: &str) -> Result<(), HookError> {
    let source = Source { file, text };
    let parsed = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.wrong(at, error.message().to_owned())
    })?;
    for (key, value) in parsed.get_ref() {
        let only = || source.wrong(key.span().start, "a hook file contains only [[hook]] tables");
        let rows = match value.get_ref() {
            DeValue::Array(rows) if key.get_ref() == "hook" => rows,
            _ => return Err(only()),
        };
        for row in rows.iter() {
            let DeValue::Table(table) = row.get_ref() else { return Err(only()) };
            hook(hooks, &Row { source, table, at: row.span().start })?;
        }
    }
    Ok(())
}

fn hook(hooks: &mut Hooks, row: &Row<'_>) -> Result<(), HookError> {
    row.only_keys(&KEYS, &format!("is not a known key: one of {}", KEYS.join(", ")))?;
    let source_line = row.source.source_line(row.at);
    let (library, function) = (row.pattern("library")?, row.pattern("function")?);
    let (kernel, tracepoint) = (row.flag("kernel")?, row.text("tracepoint")?);
    let signature = match (kernel, tracepoint) {
        (false, None) => signature::of(row)?,
        (_, tracepoint) => {
            row.only_keys(&signature::KERNEL_KEYS, "is only for library functions")?;
            signature::in_kernel(row, tracepoint.is_some())?
        }
    };
    match (library, function, kernel, tracepoint) {
        (Some(library), Some(function), false, None) => {
            let hook = LibraryHook { library, function, signature, source_line };
            let same =
                |other: &&LibraryHook| (&other.library, &other.function) == (&hook.library, &hook.function);
            if let Some(other) = hooks.libraries.iter().find(same) {
                return Err(row.duplicate("function", hook.function.as_str(), &other.source_line));
            }
            hooks.libraries.push(hook);
        }
        (None, Some(function), true, None) => {
            let point = LinuxHookPoint::Function(function);
            in_kernel(hooks, row, "function", LinuxHook { point, signature, source_line })?;
        }
        (None, None, false, Some(name)) => {
            let point = tracepoint_of(row, name)?;
            in_kernel(hooks, row, "tracepoint", LinuxHook { point, signature, source_line })?;
        }
        _ => {
            let message =
                "a hook has `library` and `function`, or `kernel = true` and `function`, or `tracepoint`";
            return Err(row.source.wrong(row.at, message));
        }
    }
    Ok(())
}

fn in_kernel(hooks: &mut Hooks, row: &Row<'_>, key: &str, hook: LinuxHook) -> Result<(), HookError> {
    if let Some(other) = hooks.kernel.iter().find(|other| other.point == hook.point) {
        return Err(row.duplicate(key, &hook.point.to_string(), &other.source_line));
    }
    hooks.kernel.push(hook);
    Ok(())
}

fn tracepoint_of(row: &Row<'_>, text: &str) -> Result<LinuxHookPoint, HookError> {
    match text.split_once(':') {
        Some((group, name)) if !group.is_empty() && !name.is_empty() => {
            Ok(LinuxHookPoint::Tracepoint { group: group.to_owned(), name: name.to_owned() })
        }
        _ => {
            Err(row
                .wrong("tracepoint", "a tracepoint is written as `group:name`, such as `sched:sched_switch`"))
        }
    }
}

/// The file being parsed.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn source_line(self, at: usize) -> SourceLine {
        let line = 1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        SourceLine { file: self.file.to_owned(), line }
    }

    pub(super) fn wrong(self, at: usize, message: impl Into<String>) -> HookError {
        // a message of the parser may have several lines, and the file may contain control characters
        let message = message.into().split_whitespace().collect::<Vec<_>>().join(" ");
        let message =
            message.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        HookError { source_line: self.source_line(at), message }
    }
}

/// Strings of a list, each with its position.
pub(super) type Texts<'a> = Vec<(&'a str, Range<usize>)>;

/// One `[[hook]]` table.
pub(super) struct Row<'a> {
    source: Source<'a>,
    table: &'a DeTable<'a>,
    at: usize,
}

impl<'a> Row<'a> {
    fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.iter().find(|(known, _)| known.get_ref() == key).map(|(_, value)| value)
    }

    /// An error in the value of a key; in the whole hook if the key is absent.
    pub(super) fn wrong(&self, key: &str, message: impl Into<String>) -> HookError {
        let named = self.table.iter().find(|(known, _)| known.get_ref() == key);
        self.source.wrong(named.map_or(self.at, |(key, _)| key.span().start), message)
    }

    fn duplicate(&self, key: &str, what: &str, at: &SourceLine) -> HookError {
        self.wrong(key, format!("`{what}` is already hooked at {at}"))
    }

    /// An error if there are other keys than these.
    fn only_keys(&self, keys: &[&str], why_not: &str) -> Result<(), HookError> {
        match self.table.iter().find(|(key, _)| !keys.contains(&&**key.get_ref())) {
            Some((key, _)) => {
                Err(self.source.wrong(key.span().start, format!("`{}` {why_not}", key.get_ref())))
            }
            None => Ok(()),
        }
    }

    /// An error in a part of a value.
    pub(super) fn wrong_at(&self, span: &Range<usize>, message: impl Into<String>) -> HookError {
        self.source.wrong(span.start, message)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, HookError> {
        match self.get(key).map(Spanned::get_ref) {
            None => Ok(None),
            Some(DeValue::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, format!("`{key}` must be a string"))),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, HookError> {
        match self.get(key).map(Spanned::get_ref) {
            None => Ok(false),
            Some(DeValue::Boolean(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(key, format!("`{key}` must be true or false"))),
        }
    }

    /// A list of strings, each with its position.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Texts<'a>>, HookError> {
        let wrong = || self.wrong(key, format!("`{key}` must be a list of strings"));
        let Some(value) = self.get(key) else { return Ok(None) };
        let DeValue::Array(values) = value.get_ref() else { return Err(wrong()) };
        let text = |value: &'a Spanned<DeValue<'a>>| match value.get_ref() {
            DeValue::String(text) => Ok((&**text, value.span())),
            _ => Err(wrong()),
        };
        values.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    fn pattern(&self, key: &str) -> Result<Option<Pattern>, HookError> {
        let pattern = |text: &str| {
            Pattern::new(text).map_err(|error| self.wrong(key, format!("`{text}` is not a glob: {error}")))
        };
        self.text(key)?.map(pattern).transpose()
    }
}
