//! Helpers of these tests: building stand-ins and running programs.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpuprobe_standin::{BuildOptions, Built, Cuda, Parts, Prologue, build};
use serde_json::Value;

/// All libraries and workloads, with the default prologue.
pub(crate) fn all(cuda: Cuda) -> Built {
    built(BuildOptions::new(Prologue::Push, cuda))
}

/// The ledger on libraries with this prologue.
pub(crate) fn ledger(prologue: Prologue) -> Built {
    built(BuildOptions { prologue, cuda: Cuda::Cuda12, parts: Parts::Ledger })
}

/// HIP and its workloads.
pub(crate) fn hip() -> Built {
    built(BuildOptions::hip(Prologue::Push))
}

/// Builds in the target folder, once per set of options.
pub(crate) fn built(options: BuildOptions) -> Built {
    let name = format!("standin-{:?}-{:?}-{:?}", options.prologue, options.cuda, options.parts);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    build(&dir, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// A command without fault rules and library paths in its environment.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove("STANDIN_FAIL")
        .env_remove("STANDIN_DELAY")
        .env_remove("STANDIN_DELAY_AFTER")
        .env_remove("STANDIN_IOCTL")
        .env_remove("LD_LIBRARY_PATH");
    command
}

/// The output of a program, which must succeed.
pub(crate) fn stdout(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{stderr}");
    String::from_utf8(stdout).unwrap()
}

/// The JSON objects a program prints.
pub(crate) fn json(command: &mut Command) -> Vec<Value> {
    stdout(command).lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
}

/// The sum of an object's numbers.
pub(crate) fn sum(object: &Value) -> u64 {
    object.as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum()
}

/// Compiles a C file of the tests and links it with this build's runtime.
pub(crate) fn compile(built: &Built, source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let program = built.dir.join(source.file_stem().unwrap());
    stdout(
        Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-rpath,$ORIGIN"])
            .arg(format!("-DCUDA_MAJOR={}", built.options.cuda.major()))
            .arg("-I")
            .arg(built.dir.join("src/workloads"))
            .arg(source)
            .arg(&built.libcudart)
            .arg(&built.libcuda)
            .args(["-ldl", "-o"])
            .arg(&program),
    );
    program
}
