//! The libraries of all vendors in one process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::notes::attached;
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::{Run, bpf_test, compile, fixtures};
use gpuprobe_standin::{Cuda, ExportList, Library};

/// If something else kept the machine busy, the measurement is repeated.
const TRIES: usize = 5;

/// Maps each library that it is given.
const PROGRAM: &str = "
    #include <dlfcn.h>
    int main(int argc, char **argv)
    {
        for (int i = 1; i < argc; i++)
            if (!dlopen(argv[i], RTLD_NOW))
                return i;
        return 0;
    }";

/// A library with the functions of the catalogue for OpenCL 3.0: the loader of a distribution may have fewer.
fn opencl(folder: &std::path::Path) -> (PathBuf, usize) {
    let exports = gpuprobe_event::catalogue().exports(gpuprobe_event::Api::OpenCl, "3.0");
    let names: Vec<&str> = exports.map(|function| function.name).collect();
    let text: String = names.iter().map(|name| format!("int {name}(void) {{ return 0; }}\n")).collect();
    fs::write(folder.join("opencl.c"), text).unwrap();
    let options = ["-O1", "-shared", "-fPIC", "opencl.c", "-o", "libOpenCL.so.1"];
    compile::run(Command::new("cc").args(options).current_dir(folder));
    (folder.join("libOpenCL.so.1"), names.len())
}

#[bpf_test(tiers(session, multi), alone)]
fn every_function_of_cuda_hip_and_opencl_is_attached_in_less_than_three_tenths_of_a_second(tier: &str) {
    let folder = fixtures::folder();
    let program = folder.path().join("program");
    fs::write(folder.path().join("program.c"), PROGRAM).unwrap();
    let options = ["-O1", "program.c", "-ldl", "-o", "program"];
    compile::run(Command::new("cc").args(options).current_dir(folder.path()));
    let cuda = fixtures::standins(Cuda::Cuda12);
    let of = |library: Library| ExportList::of(library).names.len();
    let libraries = [
        (cuda.libcuda.clone(), of(Library::Driver)),
        (fixtures::hip().library(Library::Hip), of(Library::Hip)),
        opencl(folder.path()),
    ];
    let paths: Vec<String> = libraries.iter().map(|(path, _)| shown(path)).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let run = Run::new(&program).options(&["-v", "-e", "*", "--attach", tier]).args(&paths);
    let is_quick = (0..TRIES).any(|_| {
        let outcome = run.outcome();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        let took = libraries.each_ref().map(|(path, exports)| {
            let (functions, took) = attached(&outcome.finished.stderr, path);
            assert_eq!(functions, *exports, "functions of {}", path.display());
            took
        });
        let functions = libraries.each_ref().map(|(_, exports)| *exports);
        println!("{functions:?} functions by {tier}: {took:?}");
        took.iter().sum::<Duration>() < Duration::from_millis(300)
    });
    assert!(is_quick, "see above");
}
