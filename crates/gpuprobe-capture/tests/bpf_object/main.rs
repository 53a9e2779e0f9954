//! Properties of the compiled BPF programs, for every architecture.

mod architectures;
mod stack_depth;

use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;
use tempfile::TempDir;

/// The programs, compiled for an architecture.
struct Compiled {
    _folder: TempDir,
    object: PathBuf,
}

fn compile(arch: &str) -> Compiled {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let object = folder.path().join("gpuprobe.bpf.o");
    let flags = env!("GPUPROBE_BPF_FLAGS").split(' ').map(str::to_owned);
    SkeletonBuilder::new()
        .source(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/gpuprobe.bpf.c"))
        .obj(&object)
        .clang_args(flags.chain([format!("-D__TARGET_ARCH_{arch}")]))
        .build()
        .unwrap_or_else(|error| panic!("for {arch}: {error:#}"));
    Compiled { _folder: folder, object }
}
