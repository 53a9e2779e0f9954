//! Builds the stand-ins into a folder: `cargo run -p gpuprobe-standin --example build -- DIR [demo]`.

use std::path::Path;

use gpuprobe_standin::{BuildOptions, build};

fn main() {
    let dir = std::env::args().nth(1).expect("usage: build DIR [demo]");
    let demo = std::env::args().nth(2).is_some_and(|word| word == "demo");
    let options = if demo { BuildOptions::demo() } else { BuildOptions::default() };
    match build(Path::new(&dir), &options) {
        Ok(built) => println!("{}", built.dir.display()),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
