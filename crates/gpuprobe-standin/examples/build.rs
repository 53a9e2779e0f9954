//! Builds the stand-ins into a folder: `cargo run -p gpuprobe-standin --example build -- DIR [demo|hip]`.

use std::path::Path;

use gpuprobe_standin::{BuildOptions, Prologue, build};

fn main() {
    let dir = std::env::args().nth(1).expect("usage: build DIR [demo|hip]");
    let options = match std::env::args().nth(2).as_deref() {
        Some("demo") => BuildOptions::demo(),
        Some("hip") => BuildOptions::hip(Prologue::default()),
        _ => BuildOptions::default(),
    };
    match build(Path::new(&dir), &options) {
        Ok(built) => println!("{}", built.dir.display()),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
