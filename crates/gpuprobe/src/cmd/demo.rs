//! `gpuprobe demo`: a built-in program under the probes, on stand-in CUDA libraries that are part of this binary.

use std::path::Path;

use anyhow::Result;
use gpuprobe_discover::{HostPaths, Inspector};
use gpuprobe_event::Api;

use crate::builtin;
use crate::cli::{DemoArgs, RecordingArgs};
use crate::cmd::run::{probes, record};
use crate::notes::note;
use crate::recording::tell_place;

/// The program, and the libraries it finds beside itself.
const FILES: [(&str, &[u8]); 3] = [
    ("demo", include_bytes!(concat!(env!("OUT_DIR"), "/demo/demo"))),
    ("libcudart.so.12", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcudart.so.12"))),
    ("libcuda.so.1", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcuda.so.1"))),
];

pub(crate) fn run(args: &DemoArgs) -> Result<u8> {
    // first, so that someone without the privileges reads nothing but that
    let mut recording =
        RecordingArgs { attach: args.attach.clone(), quiet: true, ..RecordingArgs::default() };
    let probes = probes(&recording)?;
    let folder = builtin::folder("demo")?;
    for (name, bytes) in FILES {
        builtin::write(&folder.path().join(name), bytes)?;
    }
    note!(
        "A small training program runs for about three seconds. It is ordinary C: its CUDA calls go to stand-in"
    );
    note!(
        "libraries, so that no GPU is needed, and nothing in it knows that it is watched. It says of itself:\n"
    );
    let trace = folder.path().join("trace.jsonl");
    recording.output = Some(args.output.clone().unwrap_or(trace));
    let command = [folder.path().join("demo").into_os_string()];
    let recorded = record(&command, probes, &recording)?;
    let status = recorded.status;
    note!("\nand this is what gpuprobe saw:\n");
    let trace = recorded.tell()?;
    if args.output.is_some() {
        tell_place(&trace);
    }
    note!("\n{}", next_step());
    Ok(status)
}

/// What to try next, depending on whether a real driver is here.
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
