//! Builds the programs and the stand-in CUDA libraries of `gpuprobe demo` and `gpuprobe bench`. They are embedded in
//! the binary, compressed, so these commands need no compiler, no CUDA and no GPU.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use gpuprobe_standin::BuildOptions;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("demo");
    if let Err(error) = build(&out) {
        eprintln!("the embedded programs did not build: {error}");
        std::process::exit(1);
    }
}

fn build(out: &Path) -> Result<(), Box<dyn Error>> {
    gpuprobe_standin::build(out, &BuildOptions::demo())?;
    for entry in fs::read_dir(out)? {
        let file = entry?.path();
        if file.is_file() && file.extension().is_none_or(|extension| extension != "gz") {
            let mut name = file.clone().into_os_string();
            name.push(".gz");
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&fs::read(&file)?)?;
            fs::write(name, encoder.finish()?)?;
        }
    }
    Ok(())
}
