//! Lists the functions of the Linux kernel and its modules that can be probed, from the kernel's symbol table.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The most symbols that are read; a Linux kernel has some hundred thousand.
const SYMBOL_LIMIT: usize = 4 << 20;

/// A function of the Linux kernel or of a kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxFunction {
    pub name: String,
    /// The kernel module; `None` for the Linux kernel itself.
    pub module: Option<String>,
    /// Its address; several if source files have functions of the same name. 0 if the Linux kernel hides addresses.
    pub addresses: Vec<u64>,
}

impl LinuxFunction {
    /// Whether it is in a kernel module of NVIDIA.
    pub fn is_nvidia(&self) -> bool {
        self.module.as_deref().is_some_and(|module| module.starts_with("nvidia"))
    }
}

/// The functions that `is_wanted` accepts, by name and kernel module.
pub fn linux_functions(
    proc_root: &Path,
    is_wanted: impl Fn(&str, Option<&str>) -> bool,
) -> io::Result<Vec<LinuxFunction>> {
    let symbols = BufReader::with_capacity(1 << 18, File::open(proc_root.join("kallsyms"))?);
    parse(symbols, is_wanted)
}

fn parse(
    mut symbols: impl BufRead,
    is_wanted: impl Fn(&str, Option<&str>) -> bool,
) -> io::Result<Vec<LinuxFunction>> {
    let mut found: BTreeMap<String, LinuxFunction> = BTreeMap::new();
    let mut line = String::new();
    for _ in 0..SYMBOL_LIMIT {
        line.clear();
        if symbols.read_line(&mut line)? == 0 {
            break;
        }
        let Some((address, name, module)) = symbol(&line) else { continue };
        if !is_wanted(name, module) {
            continue;
        }
        let function = found.entry(name.to_owned()).or_insert_with(|| LinuxFunction {
            name: name.to_owned(),
            module: module.map(str::to_owned),
            addresses: Vec::new(),
        });
        // if two modules have the same name, the first one counts
        if function.module.as_deref() == module {
            function.addresses.push(address);
        }
    }
    Ok(found.into_values().collect())
}

/// Parses a line of kallsyms: an address, a type, a name and perhaps a module in brackets. `None` unless it is a
/// function.
fn symbol(line: &str) -> Option<(u64, &str, Option<&str>)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    if !matches!(words.next()?, "t" | "T" | "w" | "W") {
        return None;
    }
    let name = words.next().filter(|name| is_function(name))?;
    let module = words.next().and_then(|module| module.strip_prefix('[')?.strip_suffix(']'));
    Some((address, name, module))
}

/// Whether a code symbol is the beginning of a function, and not padding before one or a part that was moved away.
fn is_function(name: &str) -> bool {
    let is_part = name.split('.').skip(1).any(|part| matches!(part, "cold" | "part"));
    !is_part && !name.starts_with("__pfx_") && !name.starts_with("__cfi_")
}

/// The mount point of tracefs.
pub fn tracefs(proc_root: &Path) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string(proc_root.join("mounts")).ok()?;
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("tracefs"))?;
    mount.split(' ').nth(1).map(PathBuf::from)
}

/// The functions that ftrace can attach to; `None` if the list cannot be read.
pub fn traceable_functions(proc_root: &Path) -> Option<HashSet<String>> {
    let file = File::open(tracefs(proc_root)?.join("available_filter_functions")).ok()?;
    let mut names = HashSet::new();
    for line in BufReader::with_capacity(1 << 18, file).lines().take(SYMBOL_LIMIT) {
        names.extend(line.ok()?.split_ascii_whitespace().next().map(str::to_owned));
    }
    Some(names)
}

/// A loaded kernel module of NVIDIA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaKmod {
    pub name: String,
    /// Whether the Linux kernel has BTF type information for it.
    pub has_types: bool,
}

/// The loaded kernel modules of NVIDIA.
pub fn nvidia_kmods(proc_root: &Path, sys_root: &Path) -> Vec<NvidiaKmod> {
    let listed = std::fs::read_to_string(proc_root.join("modules")).unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let mut modules: Vec<_> = names
        .filter(|name| name.starts_with("nvidia"))
        .map(|name| NvidiaKmod {
            name: name.to_owned(),
            has_types: sys_root.join("kernel/btf").join(name).exists(),
        })
        .collect();
    modules.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "ffffffff81000000 T schedule\n\
        ffffffff81000100 t helper\n\
        ffffffff81000200 t helper\n\
        ffffffff81000300 D jiffies\n\
        ffffffff81000400 t schedule.cold\n\
        ffffffff81000500 t __pfx_schedule\n\
        nonsense\n\
        ffffffffc0000000 t nvidia_ioctl\t[nvidia]\n\
        ffffffffc0000100 t nvidia_ioctl.part.0\t[nvidia]\n\
        ffffffffc0000200 t uvm_ioctl.isra.0\t[nvidia_uvm]\n\
        ffffffffc0000300 t helper\t[nvidia_uvm]\n";

    fn named(wanted: impl Fn(&str, Option<&str>) -> bool) -> Vec<LinuxFunction> {
        parse(SYMBOLS.as_bytes(), wanted).unwrap()
    }

    #[test]
    fn data_and_parts_of_functions_are_not_functions() {
        let names: Vec<_> = named(|_, _| true).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["helper", "nvidia_ioctl", "schedule", "uvm_ioctl.isra.0"]);
        assert!(named(|_, _| false).is_empty());
    }

    #[test]
    fn functions_of_one_module_with_the_same_name_share_an_entry() {
        let found = named(|name, _| name == "helper");
        assert_eq!(found[0].addresses, [0xffff_ffff_8100_0100, 0xffff_ffff_8100_0200]);
        assert!(found[0].module.is_none() && !found[0].is_nvidia());
        let found = named(|_, module| module == Some("nvidia"));
        assert_eq!((found.len(), found[0].is_nvidia()), (1, true));
    }

    #[test]
    fn nvidia_modules_are_listed_with_their_btf() {
        let folder = std::env::temp_dir().join(format!("gpuprobe-modules-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("kernel/btf")).unwrap();
        std::fs::write(folder.join("kernel/btf/nvidia"), "").unwrap();
        std::fs::write(folder.join("modules"), "nvidia_uvm 1 0\nnvidia 1 1 nvidia_uvm\next4 1 0\n").unwrap();
        std::fs::write(folder.join("mounts"), "none /t tracefs rw 0 0\n").unwrap();
        let (found, traced) = (nvidia_kmods(&folder, &folder), tracefs(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
        let found: Vec<_> = found.iter().map(|m| (m.name.as_str(), m.has_types)).collect();
        assert_eq!(found, [("nvidia", true), ("nvidia_uvm", false)]);
        assert_eq!(traced.as_deref(), Some(Path::new("/t")));
    }
}
