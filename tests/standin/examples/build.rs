//! Builds the stand-ins into a folder: `cargo run -p gpuprobe-standin --example build -- DIR`.

use std::path::Path;

use gpuprobe_standin::{BuildOptions, build};

fn main() {
    let dir = std::env::args().nth(1).expect("usage: build DIR");
    match build(Path::new(&dir), &BuildOptions::default()) {
        Ok(built) => println!("{}", built.dir.display()),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
