//! The pages of the book that are made from definitions in the code: the command line, losses and skips. They are made in
//! a test, like the manual pages. `GPUPROBE_BLESS=1 cargo test` writes them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use gpuprobe_discover::SkipCause;
use gpuprobe_event::LossCause;

use super::generated_files::visible;

const COMMAND_LINE: &str = "# Command line

`gpuprobe COMMAND --help` prints the same; so do the manual pages. Exit status: 0 success; 2 invalid usage; 1 any other error,
with one line that says what failed. `gpuprobe run` returns the status of its command. Times are numbers of seconds or have
a unit: `10`, `10s`, `500ms`, `2m`.

";
const LOSSES: &str = "# Losses and skips

gpuprobe prints what is missing in every summary, exports it as metrics, and writes it into traces. `0 lost` and no skipped
library mean that nothing is missing.

## Lost

`gpuprobe_events_lost_total`, by `cause`, and the last line of a summary. Which figures are incomplete then is printed with
it.

| cause | what was lost |
|---|---|
";
const SKIPS: &str = "
## Skipped

A library or function that could not be probed, so that its calls are not seen at all: `gpuprobe_libraries_skipped_total`, by
`reason`, and lines at the start of a command.

| cause | why |
|---|---|
";

fn command_line() -> String {
    let mut page = COMMAND_LINE.to_owned();
    let command = visible();
    page += "| command | |\n|---|---|\n";
    for part in command.get_subcommands() {
        let name = part.get_name();
        writeln!(page, "| [`{name}`](#gpuprobe-{name}) | {} |", about(part)).unwrap();
    }
    command.get_subcommands().for_each(|part| section(&mut page, part));
    page
}

fn about(command: &Command) -> String {
    escaped(&command.get_about().map(ToString::to_string).unwrap_or_default())
}

fn section(page: &mut String, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    write!(page, "\n## gpuprobe {}\n\n{}.\n\n```text\n{usage}\n```\n\n", command.get_name(), about(command))
        .unwrap();
    let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
    for arg in command.get_arguments().filter(shown) {
        writeln!(page, "- `{}`: {}", signature(arg), meaning(arg)).unwrap();
    }
    if let Some(examples) = command.get_after_help() {
        write!(page, "\n```text\n{examples}\n```\n").unwrap();
    }
}

/// The names of an option, with its value.
fn signature(arg: &Arg) -> String {
    let text = arg.to_string();
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {text}"),
        _ => text,
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = escaped(&help.split_whitespace().collect::<Vec<_>>().join(" "));
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        write!(text, " (one of {})", values.join(", ")).unwrap();
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if defaults.iter().any(|value| !value.is_empty())
        && !arg.is_hide_default_value_set()
        && arg.get_action().takes_values()
    {
        write!(text, " (default: `{}`)", defaults.join(" ")).unwrap();
    }
    text
}

/// Text in which Markdown finds no markup but code.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(number, part)| match number % 2 {
        0 => part.replace('*', "\\*").replace('<', "\\<").replace('[', "\\[").replace('|', "\\|"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn losses() -> String {
    let mut page = LOSSES.to_owned();
    for cause in LossCause::ALL {
        writeln!(page, "| `{}` | {} |", cause.as_str(), escaped(cause.meaning())).unwrap();
    }
    page += SKIPS;
    for cause in SkipCause::ALL {
        writeln!(page, "| `{}` | {} |", cause.as_str(), escaped(cause.meaning())).unwrap();
    }
    page
}

#[test]
fn pages_of_the_book_match_the_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, text) in [("command-line.md", command_line()), ("losses.md", losses())] {
        let path = folder.join(name);
        if std::env::var_os("GPUPROBE_BLESS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{} is out of date: run this test with GPUPROBE_BLESS=1", path.display());
    }
}

#[test]
fn markup_in_help_is_text() {
    assert_eq!(escaped("'cudaMalloc*' or `a*` <b>"), "'cudaMalloc\\*' or `a*` \\<b>");
}
