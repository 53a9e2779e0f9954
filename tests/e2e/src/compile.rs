//! Compiles small programs and libraries from sources in the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::finish;

/// The path of a source in the folder `c`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name)
}

/// Compiles a libcuda and a program that uses it. Returns the path of the program.
pub fn with_driver(folder: &Path, library: &str, program: &str) -> PathBuf {
    with_libraries(folder, &[("libcuda.so.1", library)], program)
}

/// Compiles libraries, each of which may use those before it, and a program that uses all of them. Returns the path
/// of the program.
pub fn with_libraries(folder: &Path, libraries: &[(&str, &str)], program: &str) -> PathBuf {
    let mut compiled: Vec<String> = Vec::new();
    for (soname, source) in libraries {
        let file = format!("{soname}.c");
        write(&folder.join(&file), source);
        let name = format!("-Wl,-soname,{soname}");
        let shared = ["-O2", "-shared", "-fPIC", &name, &file, "-o", soname];
        run(Command::new("cc").args(shared).args(&compiled).arg("-Wl,-rpath,$ORIGIN").current_dir(folder));
        compiled.push(format!("./{soname}"));
    }
    write(&folder.join("program.c"), program);
    let linked = ["-O0", "program.c", "-Wl,-rpath,$ORIGIN", "-o", "program"];
    run(Command::new("cc").args(linked).args(&compiled).current_dir(folder));
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
