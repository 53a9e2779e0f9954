//! The files of hooks that the user names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use gpuprobe_event::hook::LibraryHook;
use gpuprobe_event::{HookError, Hooks};

/// Nobody writes more by hand.
const MOST_BYTES: u64 = 1 << 20;
/// What hooks of the kernel come to.
const NO_KERNEL: &str =
    "kernel functions and tracepoints cannot be hooked by a file yet: name functions of libraries";

/// Reads the files and gives what they name its rows. To be called before anything else asks what functions there are.
pub(crate) fn read(files: &[PathBuf]) -> Result<Arc<Hooks>> {
    let mut hooks = Hooks::default();
    for file in files {
        let text = text_of(file).with_context(|| format!("cannot read the hooks in {}", file.display()))?;
        hooks.parse(&file.display().to_string(), &text)?;
    }
    if let Some(hook) = hooks.kernel().first() {
        return Err(HookError { place: hook.place.clone(), message: NO_KERNEL.to_owned() }.into());
    }
    if !hooks.install() {
        bail!("the hooks came too late: the functions of CUDA had been asked for before");
    }
    Ok(Arc::new(hooks))
}

fn text_of(file: &Path) -> Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        bail!("it is larger than {MOST_BYTES} bytes");
    }
    Ok(text)
}

/// Why a hook has found nothing, where these files were seen that it may have meant.
pub(crate) fn why_unused(hook: &LibraryHook, seen: &[&str]) -> String {
    let (function, library) = (hook.function.as_str(), hook.library.as_str());
    match seen {
        [] => format!("hook {function}: no library {library} has it yet"),
        seen => format!(
            "hook {function}: not in {}: what is static, inlined or stripped has no symbol (`nm -D` lists those there are)",
            seen.join(", ")
        ),
    }
}
