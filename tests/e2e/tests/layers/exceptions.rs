//! C++ exceptions that leave a hooked function are caught where they are without gpuprobe.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::{Run, bpf_test, compile, fixtures, tiers};
use gpuprobe_event::Outcome;

const LIBRARY: &str = r#"
#include <stdexcept>
int maybe_throw(int number)
{
	if (number % 2)
		throw std::runtime_error("odd");
	return number;
}
int never_throw(int number) { return number; }
"#;

const PROGRAM: &str = r#"
#include <cstdio>
#include <stdexcept>
int maybe_throw(int);
int never_throw(int);
int main()
{
	int caught = 0;

	for (int i = 0; i < 100; i++) {
		try {
			maybe_throw(i);
		} catch (const std::runtime_error &) {
			caught++;
		}
		never_throw(i);
	}
	std::printf("{\"caught\":%d}\n", caught);
}
"#;

const HOOKS: &str = r#"
[[hook]]
library = "libthrowing.so"
function = "_Z11maybe_throwi"
args = ["number:i32"]
returns = "i32"

[[hook]]
library = "libthrowing.so"
function = "_Z11never_throwi"
args = ["number:i32"]
returns = "i32"
nothrow = true
"#;

fn compile_all(folder: &Path) {
    fs::write(folder.join("library.cpp"), LIBRARY).unwrap();
    fs::write(folder.join("program.cpp"), PROGRAM).unwrap();
    fs::write(folder.join("hooks.toml"), HOOKS).unwrap();
    let library =
        ["-O2", "-shared", "-fPIC", "-Wl,-soname,libthrowing.so", "library.cpp", "-o", "libthrowing.so"];
    compile::run(Command::new("c++").args(library).current_dir(folder));
    let program = ["-O2", "program.cpp", "./libthrowing.so", "-Wl,-rpath,$ORIGIN", "-o", "program"];
    compile::run(Command::new("c++").args(program).current_dir(folder));
}

#[bpf_test(tiers)]
fn an_exception_passes_through_a_hooked_function(tier: &str) {
    let folder = fixtures::folder();
    compile_all(folder.path());
    let hooks = shown(folder.path().join("hooks.toml"));
    let options = [tiers::options(tier, &["_Z*"]), vec!["--hooks", &hooks]].concat();
    let run = Run::new(folder.path().join("program")).options(&options);
    let outcome = run.outcome();
    assert_eq!(outcome.finished.status, 0, "{tier}: {}", outcome.finished.stderr);
    assert_eq!(outcome.printed()["caught"], 50, "{tier}");
    let calls = |name: &str, begun: bool| {
        let of = outcome.trace.calls.iter().filter(|c| c.name == name);
        of.filter(|c| (c.outcome == Outcome::Unobserved) == begun).count()
    };
    assert_eq!((calls("_Z11maybe_throwi", true), calls("_Z11maybe_throwi", false)), (100, 0), "{tier}");
    assert_eq!((calls("_Z11never_throwi", true), calls("_Z11never_throwi", false)), (0, 100), "{tier}");
    assert!(outcome.finished.stderr.contains("a C++ exception may leave it"), "{}", outcome.finished.stderr);
}
