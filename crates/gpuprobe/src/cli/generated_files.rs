//! The manual pages and shell completions in `packaging/generated`. They are made from the command line's definition
//! here, in a test, so that the program does not contain what makes them. `GPUPROBE_BLESS=1 cargo test` writes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::Cli;

/// Programs for administrators.
const SECTION: &str = "8";
/// The string `Aq`, which clap_mangen uses for an apostrophe.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
const FILES: &str = "\
.SH FILES
.TP
/etc/gpuprobe/gpuprobe.toml
Settings of the daemon.
";
const STATUS: &str = "\
.SH EXIT STATUS
0 success; 2 invalid usage; 1 any other error, with one line that says what failed.
\\fBgpuprobe run\\fR returns the status of its command.
";

/// The command line without what its help hides, which completions would list.
pub(super) fn visible() -> Command {
    let all = Cli::command();
    let mut command = Command::new("gpuprobe")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true);
    for part in all.get_subcommands().filter(|part| !part.is_hide_set()) {
        command = command.subcommand(part.clone());
    }
    command.build();
    command
}

fn page(command: &Command) -> String {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let name = command.get_display_name().unwrap_or("gpuprobe").to_owned();
    let man = Man::new(command.clone()).section(SECTION);
    let mut out = Vec::new();
    man.render_name_section(&mut out).unwrap();
    man.render_synopsis_section(&mut out).unwrap();
    man.render_description_section(&mut out).unwrap();
    man.render_options_section(&mut out).unwrap();
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out).unwrap();
    }
    // clap_mangen's title has no place for an empty date, and it repeats its first lines in every section
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("{APOSTROPHE}.TH {} {SECTION} \"\" \"gpuprobe {version}\"\n", name.to_uppercase());
    text += &String::from_utf8(out).unwrap().replace(APOSTROPHE, "").replace(" \n", "\n");
    text += &verbatim("EXAMPLES", examples.lines().skip(1));
    if name == "gpuprobe" {
        text += &verbatim("EXAMPLES", super::examples::TOP.lines().skip(1));
        text += &verbatim("NOTES", super::examples::TOP_AFTER.lines());
        text += FILES;
        text += STATUS;
    } else {
        text += ".SH SEE ALSO\n\\fBgpuprobe\\fR(8)\n";
    }
    text
}

/// A section of lines that are not filled; empty without lines.
fn verbatim<'a>(title: &str, lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> =
        lines.map(|line| line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")).collect();
    if lines.is_empty() {
        return String::new();
    }
    let lines = lines.iter().map(|line| format!("\\&{line}\n")).collect::<String>();
    format!(".SH {title}\n.nf\n{lines}.fi\n")
}

fn files() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut command = visible();
    for (shell, name) in
        [(Shell::Bash, "gpuprobe"), (Shell::Zsh, "_gpuprobe"), (Shell::Fish, "gpuprobe.fish")]
    {
        let mut out = Vec::new();
        generate(shell, &mut command, "gpuprobe", &mut out);
        files.insert(
            Path::new("completions").join(shell.to_string()).join(name),
            String::from_utf8(out).unwrap(),
        );
    }
    files.insert("man/gpuprobe.8".into(), page(&command));
    for part in command.get_subcommands() {
        files.insert(format!("man/gpuprobe-{}.8", part.get_name()).into(), page(part));
    }
    files
}

#[test]
fn manual_pages_and_completions_match_the_command_line() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/generated");
    let is_blessed = std::env::var_os("GPUPROBE_BLESS").is_some();
    if is_blessed {
        fs::remove_dir_all(&folder).ok();
    }
    for (name, text) in files() {
        let path = folder.join(name);
        if is_blessed {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{} is out of date: run this test with GPUPROBE_BLESS=1", path.display());
    }
}

#[test]
fn hidden_options_and_subcommands_are_not_completed() {
    for (name, text) in files() {
        assert!(!text.contains("__guard") && !text.contains("__reader"), "{}", name.display());
    }
}
