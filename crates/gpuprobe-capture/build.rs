//! Compiles the BPF programs and generates the types of the wire from their type information.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

/// v3 has atomic operations that return a value; every kernel this runs on knows it.
const FLAGS: &str = "-Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        _ => "x86",
    };
    let args = FLAGS.split(' ').map(str::to_owned).chain([format!("-D__TARGET_ARCH_{arch}")]);
    let built = SkeletonBuilder::new()
        .source("bpf/gpuprobe.bpf.c")
        .obj(out.join("gpuprobe.bpf.o"))
        .clang_args(args)
        .build_and_generate(out.join("wire.skel.rs"));
    println!("cargo:rerun-if-changed=bpf");
    // for the test that compiles them for every architecture
    println!("cargo:rustc-env=GPUPROBE_BPF_FLAGS={FLAGS}");
    if let Err(error) = built {
        // the chain ends in what clang printed; a panic would bury it under a backtrace
        eprintln!("the BPF programs did not compile: {error:#}");
        std::process::exit(1);
    }
}
