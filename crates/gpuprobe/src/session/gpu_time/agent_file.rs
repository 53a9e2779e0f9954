//! Where the library of the agent is, and how a command gets it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use gpuprobe_event::agent::LIBRARY;

/// Names the file instead of the usual places.
const VARIABLE: &str = "GPUPROBE_AGENT";
/// libcuda loads what this names when a program initializes CUDA.
pub(crate) const CUDA_INJECTION: &str = "CUDA_INJECTION64_PATH";
/// NVTX loads what this names at its first call.
const NVTX_INJECTION: &str = "NVTX_INJECTION64_PATH";
/// Where packages have it.
const INSTALLED: &str = "/usr/lib/gpuprobe";

/// The variables by which a command loads the agent.
pub(crate) fn environment() -> Result<Vec<(&'static str, OsString)>> {
    if let Some(other) = env::var_os(CUDA_INJECTION) {
        bail!(
            "--gpu-time: {CUDA_INJECTION} names {} already: another tool is loaded into the command, and CUPTI serves only \
             one; unset it, or leave out --gpu-time",
            Path::new(&other).display()
        );
    }
    let file = find()?.into_os_string();
    let mut variables = vec![(CUDA_INJECTION, file.clone())];
    // the ranges of another tool stay with it
    if env::var_os(NVTX_INJECTION).is_none() {
        variables.push((NVTX_INJECTION, file));
    }
    Ok(variables)
}

/// The file of the agent.
pub(crate) fn find() -> Result<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE) {
        let path = PathBuf::from(named);
        if path.is_absolute() && path.is_file() {
            return Ok(path);
        }
        bail!("{VARIABLE} names {}, which is not the absolute path of a file", path.display());
    }
    let own = env::current_exe().unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.to_owned(), folder.join("../lib/gpuprobe"), PathBuf::from(INSTALLED)];
    let found = places.iter().map(|place| place.join(LIBRARY)).find(|path| path.is_file());
    let Some(found) = found else {
        bail!(
            "--gpu-time: there is no {LIBRARY} in {}, {} or {INSTALLED}: `make build` makes it, and {VARIABLE} names another \
             place",
            places[0].display(),
            places[1].display()
        );
    };
    Ok(found.canonicalize().unwrap_or(found))
}
