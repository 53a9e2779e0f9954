//! `gpuprobe list`: the functions of the catalogue.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use glob::Pattern;
use gpuprobe_discover::{HostPaths, Inspector};
use gpuprobe_event::{Api, catalogue};

use crate::cli::ListArgs;
use crate::session::probes::linux_hooks;
use crate::terminal::stdout::print;

pub(crate) fn run(args: &ListArgs) -> Result<u8> {
    if args.driver {
        print(&of_kernel(args.glob.as_deref())?)?;
        return Ok(0);
    }
    let glob = args.glob.as_deref().unwrap_or("*");
    let pattern = Pattern::new(glob).with_context(|| format!("`{glob}` is not a valid glob"))?;
    let matching: Vec<_> = catalogue().functions().iter().filter(|f| pattern.matches(f.name)).collect();
    if matching.is_empty() {
        bail!("no function matches {glob}{}", near(glob));
    }
    let present = present();
    let mut out = String::new();
    writeln!(out, "* found on this host   ~ hot: traced only when named by -e\n")?;
    for f in matching {
        let here = if present.contains(&(f.api, f.name)) { '*' } else { ' ' };
        let hot = if f.hot { '~' } else { ' ' };
        writeln!(out, "{here}{hot} {:<8} {:<10} {:<14} {}", f.api, f.versions, f.class, f.signature())?;
    }
    print(&out)?;
    Ok(0)
}

/// What `--driver` can probe, and how; without a glob, functions of the NVIDIA kernel modules.
fn of_kernel(glob: Option<&str>) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "~ called all the time: probed only when named without a star\n")?;
    for f in catalogue().functions().iter().filter(|f| f.api == Api::Kernel) {
        if glob.is_none_or(|glob| Pattern::new(glob).is_ok_and(|p| p.matches(f.name))) {
            writeln!(out, "  {:<15} {:<10} {}", "tracepoint", f.class, f.signature())?;
        }
    }
    let found = linux_hooks::listed(glob)?;
    for line in &found {
        let noisy = if line.is_noisy { '~' } else { ' ' };
        let module = line.function.module.as_deref().map_or(String::new(), |module| format!(" [{module}]"));
        writeln!(out, "{noisy} {:<15} {:<10} {}{module}", line.how, line.class, line.function.name)?;
    }
    if found.is_empty() {
        let what = match glob {
            Some(glob) => format!("no function of the Linux kernel matches {glob}"),
            None => {
                "no NVIDIA kernel module is loaded; a glob lists any function of the Linux kernel".to_owned()
            }
        };
        writeln!(out, "\n{what}")?;
    }
    Ok(out)
}

/// The functions of the libraries on this host.
fn present() -> HashSet<(Api, &'static str)> {
    let scan = Inspector::new().of_host(Path::new("/proc"), &HostPaths::default());
    let mut names = HashSet::new();
    for library in &scan.libraries {
        for symbol in &library.functions {
            if let Some(f) = catalogue().lookup(library.kind, library.cuda_major, &symbol.name) {
                names.insert((f.api, f.name));
            }
        }
    }
    names
}

/// Names that are similar to a glob, for an error message.
fn near(glob: &str) -> String {
    let letters: String =
        glob.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>().to_lowercase();
    // shorten the name until it is part of a function name
    for length in (4..=letters.len()).rev() {
        let part = &letters[..length];
        let names = catalogue().functions().iter().map(|f| f.name);
        let names: Vec<_> = names.filter(|n| n.to_lowercase().contains(part)).take(5).collect();
        if !names.is_empty() {
            return format!("; did you mean {}?", names.join(", "));
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        assert!(near("cudamalloc").contains("cudaMalloc"));
        assert!(near("cudaMallocc*").contains("cudaMalloc"));
        assert_eq!(near("zzz"), "");
        assert_eq!(near("*"), "");
    }
}
