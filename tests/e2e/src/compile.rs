//! Small programs and libraries that a test compiles for itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::finish;

/// Compiles a libcuda of the test's own and a program that uses it; the path of the program.
pub fn with_driver(folder: &Path, library: &str, program: &str) -> PathBuf {
    write(&folder.join("library.c"), library);
    write(&folder.join("program.c"), program);
    let shared = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "library.c", "-o", "libcuda.so.1"];
    run(Command::new("cc").args(shared).current_dir(folder));
    let linked = ["-O0", "program.c", "./libcuda.so.1", "-Wl,-rpath,$ORIGIN", "-o", "program"];
    run(Command::new("cc").args(linked).current_dir(folder));
    folder.join("program")
}

/// Runs a compiler, which must succeed.
pub fn run(compiler: &mut Command) {
    let compiled = finish(compiler);
    assert_eq!(compiled.status, 0, "{compiler:?}: {}", compiled.stderr);
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
