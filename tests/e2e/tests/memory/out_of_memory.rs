//! An out-of-memory error of a recording has the state of its GPU: free memory, and the other processes on it.

use gpuprobe_e2e::gpu_listing::{driver_folder, list};
use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::{Recording, bpf_test, fixtures};
use gpuprobe_standin::{Cuda, Library};

const FILES: [&str; 4] = ["libcuda.so.1", "libcudart.so.12", "libc10.so", "libc10_cuda.so"];
/// What the stand-in NVML reports of its first GPU.
const FREE: u64 = 82_678_120_448;

/// Runs out of memory on the second GPU that it sees, which is NVML's first one. NVML is read meanwhile.
const PYTHON: &str = "\
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
allocate = library._ZN7standin8allocateEmi
allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
def grow():
    allocate(4096, 1)
    time.sleep(3)
    allocate(1 << 41, 1)  # line 8
grow()
";

#[bpf_test(alone)]
fn the_gpu_and_its_other_processes_are_in_the_trace_and_in_both_reports() {
    let (folder, built) = (fixtures::folder(), fixtures::standins(Cuda::Cuda12));
    fixtures::copies(&built, folder.path(), &FILES);
    let at = |name: &str| folder.path().join(name);
    let driver = driver_folder(folder.path());
    // listed before the others, so that the host's numbers are not NVML's
    list(folder.path(), "0000:00:00.0", "GPU-99999999-9999-9999-9999-999999999999", 0);
    std::fs::write(at("grow.py"), PYTHON).unwrap();
    let own = std::process::id();
    std::fs::write(at("nvml"), format!("process 0 compute {own} 777\nprocess 1 compute {own} 9\n")).unwrap();
    let (trace, library) = (shown(at("t.jsonl")), shown(at("libc10_cuda.so")));
    let nvml = shown(built.library(Library::Nvml));
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    for (nvml, is_read) in [(nvml.as_str(), true), ("off", false)] {
        let options = ["run", "--tensors", "-o", &trace, "--nvml", nvml, "--driver-folder", &driver, "--"];
        let mut command = gpuprobe(&[&options[..], &["python3", &shown(at("grow.py")), &library]].concat());
        command
            .env("STANDIN_NVML", at("nvml"))
            .env("CUDA_VISIBLE_DEVICES", "2,1")
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        let run = finish(&mut command);
        assert_eq!(run.status, 0, "{}", run.stderr);
        let recording = Recording::read(&at("t.jsonl"));
        let [error] = &recording.out_of_memory[..] else { panic!("{:?}", recording.out_of_memory) };
        let others: Vec<_> = error.others.iter().map(|o| (o.tgid.0, &*o.process, o.bytes)).collect();
        let expected = [(own, name.trim_end(), 777)];
        assert_eq!((error.gpu, &*error.call_site), (Some(1), "grow (grow.py:8)"));
        assert_eq!(error.free_bytes, is_read.then_some(FREE), "{}", run.stderr);
        assert_eq!(others, if is_read { &expected[..] } else { &[] });
        let html = shown(at("t.html"));
        assert_eq!(finish(&mut gpuprobe(&["report", &trace, "--html", &html])).status, 0);
        let report = finish(&mut gpuprobe(&["report", &trace]));
        let page = std::fs::read_to_string(html).unwrap();
        for text in [&run.stderr, &report.stdout, &page] {
            assert_eq!(text.contains("77.0 GiB were free"), is_read, "{text}");
            assert_eq!(text.contains(&format!("777 B of process {own} {}", name.trim_end())), is_read);
        }
    }
}
