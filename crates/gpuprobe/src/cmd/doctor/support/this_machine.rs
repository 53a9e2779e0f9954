//! Versions and settings of this machine, and the names of its processes.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use gpuprobe_capture::NvmlVersions;
use gpuprobe_output::units::printable;

/// Files with one line, or a few, that are shown as they are.
const FILES: [&str; 9] = [
    "/proc/version",
    "/proc/driver/nvidia/version",
    "/proc/sys/kernel/perf_event_paranoid",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/kernel/kptr_restrict",
    "/proc/sys/kernel/dmesg_restrict",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/net/core/bpf_jit_enable",
    "/sys/kernel/security/lockdown",
];

pub(super) fn versions(nvml: &Result<NvmlVersions, String>) -> String {
    let linked = if cfg!(target_feature = "crt-static") { "statically" } else { "dynamically" };
    let mut out =
        format!("gpuprobe {} ({}, {linked} linked)\n", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    match nvml {
        Ok(nvml) => line(&mut out, "NVML", &format!("{} (driver {})", nvml.library, nvml.driver)),
        Err(error) => line(&mut out, "NVML", error),
    }
    line(&mut out, "distribution", &field("/etc/os-release", "PRETTY_NAME=", 0));
    line(&mut out, "memory", &field("/proc/meminfo", "MemTotal:", 0));
    let cpus = std::thread::available_parallelism().map_or_else(|e| e.to_string(), |n| n.to_string());
    line(&mut out, "CPUs", &cpus);
    line(&mut out, "processor", &field("/proc/cpuinfo", "model name", 1));
    for file in FILES {
        match fs::read_to_string(file) {
            Ok(text) => text.lines().for_each(|text| line(&mut out, file, text)),
            Err(error) => line(&mut out, file, &error.to_string()),
        }
    }
    out
}

fn line(out: &mut String, what: &str, text: &str) {
    // writing to a string cannot fail
    writeln!(out, "{what}: {}", printable(text.trim())).ok();
}

/// The rest of the first line that begins so, without this many separators.
fn field(file: &str, begin: &str, separators: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or("not known");
    let rest = rest.trim().chars().skip(separators).collect::<String>();
    rest.trim().trim_matches('"').to_owned()
}

/// The name of a process; `None` if it has exited.
pub(super) fn name(proc_root: &Path, pid: u32) -> Option<String> {
    let name = fs::read(proc_root.join(pid.to_string()).join("comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// The names of all processes but gpuprobe's own and threads of the Linux kernel.
pub(super) fn process_names(proc_root: &Path) -> Vec<String> {
    let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_command = |pid: &u32| {
        // empty for threads of the Linux kernel
        fs::read(proc_root.join(pid.to_string()).join("cmdline")).is_ok_and(|words| !words.is_empty())
    };
    let names = pids.filter(has_command).filter_map(|pid| name(proc_root, pid));
    names.filter(|name| name != "gpuprobe").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_threads_of_the_kernel_have_none() {
        let names = process_names(Path::new("/proc"));
        let own = name(Path::new("/proc"), std::process::id()).unwrap();
        assert!(names.contains(&own), "{names:?}");
        assert!(!names.iter().any(|name| name == "kthreadd"), "{names:?}");
    }

    #[test]
    fn a_missing_version_is_named() {
        let text = versions(&Err("no library".to_owned()));
        assert!(text.starts_with(&format!("gpuprobe {} (", env!("CARGO_PKG_VERSION"))), "{text}");
        assert!(
            text.contains("\nNVML: no library\n") && text.contains("\n/proc/version: Linux version "),
            "{text}"
        );
    }
}
