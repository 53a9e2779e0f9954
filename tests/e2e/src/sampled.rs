//! Programs that wait in calls, and what `gpuprobe stacks --json` says about their threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_standin::{Cuda, Library};
use serde_json::Value;

use crate::process::{Finished, Talk, finish, gpuprobe, shown};
use crate::recording::number;
use crate::{compile, fixtures, python};

/// Microseconds, for the variables of the stand-ins: longer than any test takes.
pub const FOR_EVER: &str = "600000000";

/// A stand-in library.
pub fn library(library: Library) -> PathBuf {
    fixtures::standins(Cuda::Cuda12).library(library)
}

/// Compiles a source of these tests into a folder, with a stand-in library.
pub fn compiled(folder: &Path, source: &str, options: &[&str], with: Library) -> PathBuf {
    let program = folder.join(source.split('.').next().unwrap_or(source));
    let standins = fixtures::standins(Cuda::Cuda12);
    let mut compiler = Command::new(if source.ends_with(".cpp") { "c++" } else { "cc" });
    compiler.args(["-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options);
    compiler.arg("-o").arg(&program).arg(compile::source(source)).arg(library(with));
    compile::run(compiler.arg(format!("-Wl,-rpath,{}", shown(&standins.dir))));
    program
}

/// A running program that prints its pid first. It is killed when this is dropped.
#[derive(Debug)]
pub struct Started {
    pub talk: Talk,
    pub pid: u32,
}

impl Started {
    pub fn new(command: &[&str], environment: &[&str]) -> Self {
        println!("{environment:?} {command:?}");
        // set by `env`, because some variables are removed from the environment of what is started here
        let mut talk = Talk::start(Command::new("env").args(environment).args(command));
        let line = talk.line();
        let said: u32 = line.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(said, talk.pid(), "the pid on the host");
        Self { talk, pid: said }
    }

    /// One of the scripts in `python/` that load a library.
    pub fn python(
        interpreter: &Path,
        script: &str,
        loads: Library,
        args: &[&str],
        environment: &[&str],
    ) -> Self {
        let arguments = python::arguments(script, &library(loads), args);
        let command: Vec<String> = [shown(interpreter)].into_iter().chain(arguments).collect();
        Self::new(&command.iter().map(String::as_str).collect::<Vec<_>>(), environment)
    }
}

/// The number of the only line of a source that contains this text.
pub fn line_of(source: &Path, text: &str) -> u64 {
    let all = fs::read_to_string(source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let found: Vec<usize> =
        (1..).zip(all.lines()).filter(|(_, line)| line.contains(text)).map(|(n, _)| n).collect();
    let [line] = found[..] else { panic!("{text} in {}: {found:?}", source.display()) };
    line as u64
}

/// `gpuprobe stacks --json` with these options, which must succeed.
pub fn stacks(options: &[&str]) -> (Value, Finished) {
    let finished = finish(gpuprobe(&["stacks", "--json"]).args(options));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert_eq!(finished.stderr, "");
    let report = finished.json();
    let [report] = &report[..] else { panic!("{}", finished.stdout) };
    (report.clone(), finished)
}

/// What it says about one process.
pub fn process(pid: u32, options: &[&str]) -> Value {
    let number = pid.to_string();
    let (report, _) = stacks(&[&["-d", &number], options].concat());
    let processes = list(&report["processes"]);
    let [process] = processes else { panic!("{report}") };
    assert_eq!(process["pid"], pid, "{report}");
    process.clone()
}

/// The only group of threads of a process, of which all could be read.
pub fn only_group(process: &Value) -> &Value {
    let [group] = list(&process["groups"]) else { panic!("{process}") };
    assert_eq!((&process["problem"], &process["python_problem"]), (&Value::Null, &Value::Null));
    group
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or_else(|| panic!("no list: {value}"), Vec::as_slice)
}

/// The names of the functions on a stack, the innermost first. Those without a name are empty.
pub fn functions(group: &Value) -> Vec<&str> {
    list(&group["stack"]).iter().map(|frame| frame["function"].as_str().unwrap_or_default()).collect()
}

/// The Python frames of a stack.
pub fn python_frames(group: &Value) -> Vec<(&str, &str, u64)> {
    let frames = list(&group["stack"]).iter().filter(|frame| frame["python"] == true);
    frames.map(|frame| (text(&frame["function"]), text(&frame["file"]), number(&frame["line"]))).collect()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}
