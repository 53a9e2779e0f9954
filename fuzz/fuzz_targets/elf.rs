//! Any bytes as a library: inspected under every name with a meaning, and its probe points planned.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use gpuprobe_discover::{Inspector, plan};
use gpuprobe_event::{FunctionId, Hooks};
use gpuprobe_fuzz::MemoryFile;
use libfuzzer_sys::fuzz_target;

/// A library of each API, a program that may contain the runtime, and a file that hooks match.
const NAMES: [&str; 6] = [
    "/x/libcuda.so.1",
    "/x/libcudart.so.12",
    "/x/libnccl.so.2",
    "/x/libnvidia-ml.so.1",
    "/x/program",
    "/x/hooked.so",
];
const HOOKS: &str = "[[hook]]\nlibrary = \"hooked.so\"\nfunction = \"*\"\n";

static FILE: LazyLock<MemoryFile> = LazyLock::new(|| MemoryFile::new().expect("memory for a file"));
static HOOKED: LazyLock<Arc<Hooks>> = LazyLock::new(|| {
    let mut hooks = Hooks::default();
    hooks.parse("hooks", HOOKS).expect("the hook is sound");
    Arc::new(hooks)
});

fuzz_target!(|bytes: &[u8]| {
    FILE.set(bytes).expect("memory for the input");
    let mut inspector = Inspector::with_hooks(Arc::clone(&HOOKED));
    for name in NAMES {
        let Ok(scan) = inspector.inspect(Path::new(name), &FILE.path()) else { continue };
        let (planned, _) = plan(&scan.libraries, &|_, _| Some(FunctionId(1)), &|_, _| Some(FunctionId(1)));
        for target in planned.targets {
            for function in target.functions {
                assert!(function.point.offset < bytes.len() as u64, "{function:?}");
            }
            for point in target.failure_points {
                assert!(point.offset < bytes.len() as u64, "{point:?}");
            }
        }
    }
});
