//! Any bytes as a hooks file.
#![no_main]

use gpuprobe_event::{Api, FunctionId, Hooks};
use libfuzzer_sys::fuzz_target;

const LIBRARIES: [&str; 3] = ["libOpenCL.so.1", "libfoo.so", ""];
const FUNCTIONS: [&str; 3] = ["clCreateBuffer", "foo", ""];

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut hooks = Hooks::default();
    if let Err(error) = hooks.parse("hooks.toml", text) {
        let message = error.to_string();
        assert!(error.source_line.line <= 1 + text.matches('\n').count(), "{message}");
        assert!(!message.chars().any(char::is_control), "{message:?}");
    }
    for library in LIBRARIES {
        hooks.fit_library(library);
        for function in FUNCTIONS {
            hooks.fit(library, function, true);
            hooks.name_exactly(library, function);
        }
    }
    for function in FUNCTIONS {
        hooks.linux_hook(function);
    }
    let ours = hooks.libraries().iter().map(|hook| &hook.signature);
    for signature in ours.chain(hooks.linux().iter().map(|hook| &hook.signature)) {
        // names of rows are never freed, and this one is empty
        let row = signature.row(FunctionId(1), Api::Hook, "");
        let roles = [row.roles.size, row.roles.ptr, row.roles.stream];
        assert!(roles.iter().all(|role| role.is_none() || row.arg(*role).is_some()), "{row:?}");
        row.signature();
    }
});
