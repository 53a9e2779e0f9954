//! Which of its two memory allocators a PyTorch process uses. With `cudaMallocAsync` each tensor is an allocation of
//! the CUDA driver, and PyTorch reports none of them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::environ;
use super::mapped_file::read_maps;
use super::maps::code_ranges;

/// PyTorch's library with both allocators.
const LIBRARY: &[u8] = b"libc10_cuda.so";
/// The settings of the allocator. The first one takes precedence; before PyTorch 2.9 there is only the second.
const SETTINGS: [&[u8]; 2] = [b"PYTORCH_ALLOC_CONF=", b"PYTORCH_CUDA_ALLOC_CONF="];

/// Whether a process uses PyTorch's `cudaMallocAsync` backend; `None` if it has not loaded PyTorch, or cannot be read.
/// PyTorch reads its settings when it is loaded, and they are read here from the memory of the process: a program may
/// have set them itself.
pub fn uses_cuda_malloc_async(proc_root: &Path, pid: u32) -> Option<bool> {
    let folder = proc_root.join(pid.to_string());
    let maps = read_maps(&folder, pid).ok()?;
    let is_library = |name: &[u8]| name.starts_with(LIBRARY);
    let mut files = code_ranges(&maps).filter_map(|range| range.file);
    files.find(|m| m.file.path.file_name().is_some_and(|name| is_library(name.as_bytes())))?;
    let [first, second] = environ::current(&folder, pid, SETTINGS)?;
    Some(first.or(second).is_some_and(|settings| selects_cuda_malloc_async(&settings)))
}

/// Whether the settings, such as `backend:cudaMallocAsync,max_split_size_mb:64`, select this backend.
fn selects_cuda_malloc_async(settings: &[u8]) -> bool {
    let setting = |text: &[u8]| {
        let text: Vec<u8> = text.iter().copied().filter(|byte| *byte != b' ').collect();
        text == b"backend:cudaMallocAsync"
    };
    settings.split(|byte| *byte == b',').any(setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_is_one_of_the_settings() {
        for (settings, expected) in [
            ("backend:cudaMallocAsync", true),
            ("max_split_size_mb:64, backend : cudaMallocAsync", true),
            ("backend:native", false),
            ("backend:cudaMallocAsync2", false),
            ("expandable_segments:True", false),
            ("", false),
            (",:,,", false),
        ] {
            assert_eq!(selects_cuda_malloc_async(settings.as_bytes()), expected, "{settings}");
        }
    }

    #[test]
    fn a_process_without_pytorch_has_no_backend() {
        assert_eq!(uses_cuda_malloc_async(Path::new("/proc"), std::process::id()), None);
        assert_eq!(uses_cuda_malloc_async(Path::new("/nonexistent"), 1), None);
    }
}
