//! Changes in the memory of a Python process whose frames are read.
#![no_main]

use gpuprobe_discover::fuzz::python;
use gpuprobe_discover::python::PYTHON_FRAME_LIMIT;
use libfuzzer_sys::fuzz_target;

/// The longest path of a file that is read.
const LONGEST: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    let (frames, longest) = python(bytes);
    assert!(frames <= PYTHON_FRAME_LIMIT && longest <= LONGEST, "{frames} frames, {longest} characters");
});
