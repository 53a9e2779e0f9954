//! Compiles the BPF programs, and generates from the object what user space has to know of it: the structs and numbers of
//! the wire, and the names of its maps and programs.

mod handles;
mod numbers;
mod structs;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::ObjectBuilder;
use libbpf_rs::btf::Btf;

/// v3 has atomic operations that return a value; every kernel this runs on knows it.
const FLAGS: &str = "-Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        _ => "x86",
    };
    let args = FLAGS.split(' ').map(str::to_owned).chain([format!("-D__TARGET_ARCH_{arch}")]);
    let object = out.join("gpuprobe.bpf.o");
    let built = SkeletonBuilder::new()
        .source("bpf/gpuprobe.bpf.c")
        .obj(&object)
        .clang_args(args)
        .build_and_generate(out.join("wire.skel.rs"));
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=build");
    // for the test that compiles them for every architecture
    println!("cargo:rustc-env=GPUPROBE_BPF_FLAGS={FLAGS}");
    if let Err(error) = built {
        // the chain ends in what clang printed; a panic would bury it under a backtrace
        eprintln!("the BPF programs did not compile: {error:#}");
        std::process::exit(1);
    }
    if let Err(error) = generate(&object, &out.join("contract.rs")) {
        eprintln!("what the BPF object has cannot be told: {error}");
        std::process::exit(1);
    }
}

/// Writes what both sides agree on, as the object has it.
fn generate(object: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let bytes = fs::read(object)?;
    let types = Btf::from_raw("gpuprobe", &bytes)?.ok_or("it has no type information")?;
    let open = ObjectBuilder::default().name("gpuprobe")?.open_memory(&bytes)?;
    let parts = [
        "// Generated from the BPF object by the build script.\n".to_owned(),
        numbers::constants(&types),
        structs::plain(&types),
        handles::maps(&open),
        handles::programs(&open),
    ];
    Ok(fs::write(to, parts.join("\n"))?)
}
