//! Any bytes as a record of the kernel log.
#![no_main]

use gpuprobe_discover::fuzz::logged_xid;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(xid) = logged_xid(bytes) {
        // what is found is in the text
        let text = String::from_utf8_lossy(bytes);
        assert!(text.contains(&xid.number.to_string()), "{xid:?}");
        assert!(xid.pid.is_none_or(|pid| text.contains(&pid.to_string())), "{xid:?}");
    }
});
