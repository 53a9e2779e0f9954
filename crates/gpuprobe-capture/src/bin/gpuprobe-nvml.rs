//! The helper process of a statically linked gpuprobe, which carries this program: it loads NVML and writes what it
//! reads.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match gpuprobe_capture::serve_nvml(&arguments) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("gpuprobe-nvml is started by gpuprobe");
            ExitCode::from(2)
        }
    }
}
