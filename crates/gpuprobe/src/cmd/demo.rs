//! `gpuprobe demo`: runs an embedded program under the probes, with embedded stand-in CUDA libraries.

use std::path::Path;

use anyhow::Result;
use gpuprobe_discover::{HostPaths, Inspector};
use gpuprobe_event::Api;
use nix::unistd::geteuid;

use crate::cli::{DemoArgs, RecordingArgs, UserArgs};
use crate::cmd::embedded;
use crate::cmd::run::{probes, record};
use crate::session::record::recording::print_trace_path;
use crate::terminal::notes::note;

/// The program with the libraries and the C library inside, compressed: a statically linked gpuprobe also runs where there
/// is none.
#[cfg(target_feature = "crt-static")]
const FILES: [(&str, &[u8]); 1] =
    [("demo", include_bytes!(concat!(env!("OUT_DIR"), "/demo/demo_static.gz")))];
/// The program, and the libraries that it loads from its own folder, compressed.
#[cfg(not(target_feature = "crt-static"))]
const FILES: [(&str, &[u8]); 3] = [
    ("demo", include_bytes!(concat!(env!("OUT_DIR"), "/demo/demo.gz"))),
    ("libcudart.so.12", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcudart.so.12.gz"))),
    ("libcuda.so.1", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcuda.so.1.gz"))),
];

pub(crate) fn run(args: &DemoArgs) -> Result<u8> {
    // first, so that without privileges this error is the only output
    let mut recording =
        RecordingArgs { attach: args.attach.clone(), quiet: true, ..RecordingArgs::default() };
    let probes = probes(&recording)?;
    let folder = embedded::folder("demo")?;
    for (name, bytes) in FILES {
        embedded::write(&folder.path().join(name), bytes)?;
    }
    note!(
        "A small training program runs for about three seconds. It is ordinary C: its CUDA calls go to stand-in"
    );
    note!("libraries, so that no GPU is needed, and it is not modified to be observed. Its own output:\n");
    let trace = folder.path().join("trace.jsonl");
    recording.output = Some(args.output.clone().unwrap_or(trace));
    let command = [folder.path().join("demo").into_os_string()];
    // its folder is private to the user of gpuprobe
    let user = UserArgs { as_root: geteuid().is_root(), ..UserArgs::default() };
    let recorded = record(&command, &user, probes, &recording)?;
    let status = recorded.status;
    note!("\nand this is what gpuprobe saw:\n");
    let trace = recorded.print()?;
    if args.output.is_some() {
        print_trace_path(&trace);
    }
    note!("\n{}", next_step());
    Ok(status)
}

/// What to try next, depending on whether libcuda is installed.
fn next_step() -> String {
    let scan = Inspector::new().of_host(Path::new("/proc"), &HostPaths::default());
    match scan.libraries.iter().find(|l| l.kind == Api::Driver) {
        Some(driver) => format!(
            "{} is installed here: trace a real program with `sudo gpuprobe run -- python train.py`",
            driver.path.display()
        ),
        None => "On a machine with an NVIDIA GPU: `sudo gpuprobe run -- python train.py`".to_owned(),
    }
}
