//! Finds the libcupti that the process has or would load.

use std::ffi::{CString, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::api::{Cupti, Failure};
use super::places;

/// The libcupti of the process: the one that is mapped, or the one that belongs to its CUDA runtime.
pub(crate) fn find() -> Result<Cupti, Failure> {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let files = places::mapped_files(&maps);
    let majors = places::majors(&files);
    let sonames: Vec<String> = majors.iter().map(|major| format!("libcupti.so.{major}")).collect();
    let mapped = sonames.iter().find_map(|name| open(Path::new(name), libc::RTLD_NOLOAD));
    let mut not_mapped = majors.iter().flat_map(|major| {
        let mut files = places::beside_runtime(&files, *major);
        files.extend(places::in_toolkits(Path::new("/usr/local"), *major));
        files.extend(places::in_toolkits(Path::new("/opt"), *major));
        // last, where the dynamic linker looks
        files.retain(|file| file.exists());
        files.push(format!("libcupti.so.{major}").into());
        files
    });
    let library = mapped
        .or_else(|| not_mapped.find_map(|file| open(&file, 0)))
        .or_else(|| {
            let of_another_version = files.iter().filter(|file| file.contains("/libcupti.so"));
            of_another_version.into_iter().find_map(|file| open(Path::new(file), libc::RTLD_NOLOAD))
        })
        .ok_or_else(|| {
            Failure::without_code(format!(
                "there is no {}: neither in the process, nor next to its CUDA runtime, nor in /usr/local/cuda; \
                 LD_LIBRARY_PATH can name its folder",
                sonames.join(" or ")
            ))
        })?;
    // SAFETY: the file is a libcupti by its name, and it is never closed.
    unsafe { Cupti::new(library) }
        .map_err(|problem| Failure::without_code(format!("libcupti cannot be used: {problem}")))
}

fn open(file: &Path, flags: c_int) -> Option<*mut c_void> {
    let name = CString::new(file.as_os_str().as_bytes()).ok()?;
    // SAFETY: a libcupti is made to be loaded in a CUDA program at any time.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL | flags) };
    (!library.is_null()).then_some(library)
}
