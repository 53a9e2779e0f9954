//! Reads the current environment of a program from its memory, where the program may have changed it. The environment
//! at its start is in `/proc/PID/environ`.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::mapped_file::{load_bias, open_mapped, read_maps};
use super::maps::{CodeRange, code_ranges};
use super::process_memory::{Memory, ProcessMemory};
use crate::access::{self, path_from_proc};
use crate::elf::{Elf, Table};

/// Programs with more variables are given up.
const VARIABLE_LIMIT: usize = 1 << 14;
const VALUE_LIMIT: usize = 1 << 16;
const C_LIBRARIES: [&[u8]; 3] = [b"libc.so", b"libc-", b"ld-musl"];

/// The most bytes of an environment that are read: more than the Linux kernel allows by default.
const ENVIRONMENT_LIMIT: u64 = 16 << 20;

/// The value of a variable at the start of the program of a process.
pub fn variable_at_start(proc_root: &Path, pid: u32, name: &str) -> Option<String> {
    let path = proc_root.join(pid.to_string()).join("environ");
    let [value] = at_start(&path, [format!("{name}=").as_bytes()])?;
    String::from_utf8(value?).ok()
}

/// The values of these variables at the start of a program, each name given with its `=`; `None` if the environment
/// cannot be read completely.
pub(crate) fn at_start<const N: usize>(path: &Path, names: [&[u8]; N]) -> Option<[Option<Vec<u8>>; N]> {
    let text = access::contents(path, ENVIRONMENT_LIMIT).ok()?;
    // an exited process has none
    if text.is_empty() || text.len() as u64 == ENVIRONMENT_LIMIT {
        return None;
    }
    // if a name occurs twice, a program sees the first
    let value = |name: &[u8]| text.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(name));
    Some(names.map(|name| value(name).map(<[u8]>::to_vec)))
}

/// The values of these variables, each name given with its `=`; `None` if they cannot be read.
pub(crate) fn current<const N: usize>(
    folder: &Path,
    pid: u32,
    names: [&[u8]; N],
) -> Option<[Option<Vec<u8>>; N]> {
    let address = address_of_environ(folder, pid)?;
    let memory = ProcessMemory::new(folder);
    let mut table = memory.word(address)?;
    let mut values = [const { None }; N];
    if table == 0 {
        // the program cleared it
        return Some(values);
    }
    for _ in 0..VARIABLE_LIMIT {
        let variable = memory.word(table)?;
        if variable == 0 {
            return Some(values);
        }
        for (name, value) in names.iter().zip(&mut values) {
            // if a name occurs twice, a program sees the first
            if value.is_none() && memory.begins(variable, name) {
                *value = Some(memory.text(variable.checked_add(name.len() as u64)?, VALUE_LIMIT)?);
            }
        }
        table = table.checked_add(8)?;
    }
    None
}

/// The address of the variable `environ`: in the executable if it was linked there, else in the C library.
fn address_of_environ(folder: &Path, pid: u32) -> Option<u64> {
    let text = read_maps(folder, pid).ok()?;
    let exe = path_from_proc(fs::read_link(folder.join("exe")).ok()?.as_os_str().as_bytes());
    let is_exe = |range: &CodeRange| range.file.as_ref().is_some_and(|m| m.file.path == exe);
    let is_library = |range: &CodeRange| {
        let name = range.file.as_ref().and_then(|m| m.file.path.file_name());
        name.is_some_and(|name| C_LIBRARIES.iter().any(|begin| name.as_bytes().starts_with(begin)))
    };
    let program = code_ranges(&text).filter(is_exe).take(1);
    let libraries = code_ranges(&text).filter(is_library);
    program.chain(libraries).find_map(|range| in_file(folder, &range))
}

fn in_file(folder: &Path, range: &CodeRange) -> Option<u64> {
    let (file, _) = open_mapped(folder, range.file.as_ref()?).ok()?;
    let elf = Elf::parse(&file).ok()?;
    let symbols = elf.symbols(Table::Dynamic, &|name| name == b"environ" || name == b"__environ").ok()?;
    let variable = symbols.iter().find(|symbol| !symbol.is_function)?;
    Some(load_bias(range, &elf)?.wrapping_add(variable.address))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    struct Started(Child);

    impl Drop for Started {
        fn drop(&mut self) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }

    #[test]
    fn an_unchanged_environment_is_the_one_at_the_start() {
        let long = "x".repeat(3 * 4096);
        let mut command = Command::new("sleep");
        command.arg("60").env_clear().stdout(Stdio::null());
        command.envs([("A", "1"), ("GPUPROBE_TEST", "2,3"), ("GPUPROBE_TESTED", &long), ("EMPTY", "")]);
        let child = Started(command.spawn().unwrap());
        let pid = child.0.id();
        let folder = Path::new("/proc").join(pid.to_string());
        let names: [&[u8]; 4] = [b"GPUPROBE_TEST=", b"GPUPROBE_TESTED=", b"EMPTY=", b"NONE="];
        let start = Instant::now();
        let values = loop {
            // wait until it is executed and its libraries are loaded
            let is_it = fs::read_link(folder.join("exe")).is_ok_and(|exe| exe.ends_with("sleep"));
            match current(&folder, pid, names).filter(|values| is_it && values[0].is_some()) {
                Some(values) => break values,
                None => assert!(start.elapsed() < Duration::from_secs(20), "its environment is not found"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let expected = [Some(b"2,3".to_vec()), Some(long.into_bytes()), Some(Vec::new()), None];
        assert_eq!(values, expected);
    }

    #[test]
    fn an_exited_process_has_no_environment() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(current(folder.path(), 7, [b"A="]), None);
    }
}
