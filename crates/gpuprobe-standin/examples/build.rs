//! Builds the stand-ins into a folder: `cargo run -p gpuprobe-standin --example build -- DIR [demo | hip | PROLOGUE]`. With
//! a prologue, such as `EndbrPush`, only the libraries and the workload `ledger`.

use std::path::Path;

use gpuprobe_standin::{BuildOptions, Parts, Prologue, build};

fn main() {
    let dir = std::env::args().nth(1).expect("usage: build DIR [demo | hip | PROLOGUE]");
    let options = match std::env::args().nth(2).as_deref() {
        None => BuildOptions::default(),
        Some("demo") => BuildOptions::demo(),
        Some("hip") => BuildOptions::hip(Prologue::default()),
        Some(name) => {
            let prologue = Prologue::ALL.into_iter().find(|prologue| format!("{prologue:?}") == name);
            let prologue = prologue.expect("the name of a prologue");
            BuildOptions { prologue, parts: Parts::Ledger, ..BuildOptions::default() }
        }
    };
    match build(Path::new(&dir), &options) {
        Ok(built) => println!("{}", built.dir.display()),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
