//! Builds the programs and the stand-in CUDA libraries of `gpuprobe demo` and `gpuprobe bench`. They are embedded in
//! the binary, so these commands need no compiler, no CUDA and no GPU.

use std::env;
use std::path::PathBuf;

use gpuprobe_standin::BuildOptions;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("demo");
    if let Err(error) = gpuprobe_standin::build(&out, &BuildOptions::demo()) {
        eprintln!("the embedded programs did not build: {error}");
        std::process::exit(1);
    }
}
