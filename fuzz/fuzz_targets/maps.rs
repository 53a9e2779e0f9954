//! Any bytes as the text of /proc/PID/maps.
#![no_main]

use gpuprobe_discover::fuzz::maps;
use gpuprobe_discover::offset_in_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = maps(bytes);
    assert!(found.files.len() <= found.ranges.len());
    assert!(found.ranges.len() <= bytes.split(|byte| *byte == b'\n').count());
    // the text becomes the name of a file below map_files
    for range in &found.files {
        let is_plain = range.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        assert!(is_plain && range.matches('-').count() == 1, "{range:?}");
    }
    for (start, end) in found.ranges {
        for address in [start, start.wrapping_sub(1), end, end.wrapping_sub(1)] {
            offset_in_file(bytes, address);
        }
    }
});
