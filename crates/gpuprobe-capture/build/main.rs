//! Compiles the BPF programs, and generates from the object what user space needs: the structs and constants of the wire,
//! and the names of the maps and programs.

mod object_names;
mod wire_constants;
mod wire_structs;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::ObjectBuilder;
use libbpf_rs::btf::Btf;

/// v3 has atomic operations that return a value. Every supported Linux kernel has it.
const FLAGS: &str = "-Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        _ => "x86",
    };
    let sources = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    // the object must not depend on the folder of the sources
    let own = [format!("-D__TARGET_ARCH_{arch}"), format!("-ffile-prefix-map={sources}=.")];
    let args = FLAGS.split(' ').map(str::to_owned).chain(own);
    let object = out.join("gpuprobe.bpf.o");
    let built = SkeletonBuilder::new()
        .source("bpf/gpuprobe.bpf.c")
        .obj(&object)
        .clang_args(args)
        .build_and_generate(out.join("wire.skel.rs"));
    // a folder stands for all files below it
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=build");
    // for the test that compiles the programs for every architecture
    println!("cargo:rustc-env=GPUPROBE_BPF_FLAGS={FLAGS}");
    if let Err(error) = built {
        // the chain of errors ends with the output of clang, which a panic would bury under a backtrace
        eprintln!("the BPF programs did not compile: {error:#}");
        std::process::exit(1);
    }
    if let Err(error) = generate(&object, &out.join("contract.rs")) {
        eprintln!("the BPF object cannot be read: {error}");
        std::process::exit(1);
    }
    if let Err(error) = compress(&object, &out.join("gpuprobe.bpf.o.gz")) {
        eprintln!("the BPF object cannot be compressed: {error}");
        std::process::exit(1);
    }
}

/// Writes the contract between the BPF programs and user space, as the object has it.
fn generate(object: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let bytes = fs::read(object)?;
    let types = Btf::from_raw("gpuprobe", &bytes)?.ok_or("it has no type information")?;
    let open = ObjectBuilder::default().name("gpuprobe")?.open_memory(&bytes)?;
    let parts = [
        "// Generated from the BPF object by the build script.\n".to_owned(),
        wire_constants::constants(&types),
        wire_structs::plain(&types),
        object_names::maps(&open),
        object_names::programs(&open),
    ];
    Ok(fs::write(to, parts.join("\n"))?)
}

fn compress(object: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&fs::read(object)?)?;
    Ok(fs::write(to, encoder.finish()?)?)
}
