//! PyTorch's `cudaMallocAsync` backend reports no tensors: each is one allocation, and is shown as a tensor in every
//! output. Other memory, and the same allocations of a process without that backend, are not.

use std::collections::BTreeMap;
use std::process::Command;

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::site_ledger::Watching;
use gpuprobe_e2e::{Recording, Talk, bpf_test, fixtures};
use gpuprobe_event::TensorSource;
use gpuprobe_standin::Cuda;
use serde_json::Value;

const FILES: [&str; 4] = ["libcuda.so.1", "libcudart.so.12", "libc10.so", "libc10_cuda.so"];
const SETTING: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Allocates by `cudaMallocAsync` from two lines on two GPUs, frees some, and keeps its own account. It sets the
/// variable itself, as many programs do, before it loads the library. Its first call loads the CUDA
/// driver.
const PYTHON: &str = "\
import collections, ctypes, json, os, sys
if len(sys.argv) > 2:
    os.environ['PYTORCH_CUDA_ALLOC_CONF'] = sys.argv[2]
folder = sys.argv[1]
ctypes.CDLL(folder + '/libc10_cuda.so')
cudart = ctypes.CDLL(folder + '/libcudart.so.12')
live, gpus = collections.Counter(), collections.Counter()
def allocate(size):
    pointer = ctypes.c_void_p()
    assert cudart.cudaMallocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), None) == 0
    return pointer
def remember(size):
    return allocate(size)  # line 13
def use(size):
    pointer = allocate(size)
    assert cudart.cudaFreeAsync(pointer, None) == 0
def step(round):
    for gpu in (0, 1):
        cudart.cudaSetDevice(gpu)
        for i in range(10 + gpu):
            remember(1000 * (round + 1))
            live['remember'] += 1000 * (round + 1)
            gpus[gpu] += 1000 * (round + 1)
            use(5000)
        cudart.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20))
round = 0
cudart.cudaFree(None)
print(json.dumps({'pid': os.getpid()}), flush=True)
for line in sys.stdin:
    step(round)
    round += 1
    figures = {'pid': os.getpid(), 'live': dict(live), 'gpus': {str(gpu): n for gpu, n in gpus.items()}}
    print(json.dumps(figures), flush=True)
";

fn folder() -> tempfile::TempDir {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &FILES);
    std::fs::write(folder.path().join("train.py"), PYTHON).unwrap();
    folder
}

fn python(folder: &tempfile::TempDir, setting: Option<&str>) -> Command {
    let mut command = Command::new("python3");
    command.env_remove(SETTING).arg(folder.path().join("train.py")).arg(folder.path());
    setting.map(|setting| command.arg(setting));
    command
}

fn by_gpu(printed: &Value) -> BTreeMap<String, u64> {
    let gpus = printed["gpus"].as_object().unwrap();
    gpus.iter().map(|(gpu, bytes)| (gpu.clone(), number(bytes))).collect()
}

/// The tensors of a process in a report: bytes by GPU, with the source, and by call site without those of nothing.
fn reported(report: &Value, pid: u32) -> Option<(BTreeMap<String, u64>, BTreeMap<String, u64>)> {
    let processes = report["tensors"]["processes"].as_array().unwrap();
    let process = processes.iter().find(|process| pid_of(process) == pid)?;
    let gpus = process["gpus"].as_array().unwrap().iter();
    let gpus = gpus.map(|gpu| {
        assert_eq!((&gpu["source"], &gpu["reserved_bytes"]), (&"cudaMallocAsync".into(), &Value::Null));
        (gpu["gpu"].to_string(), number(&gpu["in_use_bytes"]))
    });
    let sites = process["call_sites"].as_array().unwrap().iter();
    let sites =
        sites.map(|site| (site["call_site"].as_str().unwrap().to_owned(), number(&site["live_bytes"])));
    Some((gpus.collect(), sites.filter(|(_, bytes)| *bytes > 0).collect()))
}

#[bpf_test(alone)]
fn allocations_of_the_backend_are_its_tensors() {
    let folder = folder();
    let [driver, runtime] = ["libcuda.so.1", "libcudart.so.12"].map(|name| shown(folder.path().join(name)));
    let mut program = Talk::start(&mut python(&folder, Some("max_split_size_mb:64,backend:cudaMallocAsync")));
    let pid = pid_of(&program.json());
    let daemon = Daemon::with(&["--tensors", "--memleak", "-p", &driver, "-p", &runtime]);
    let mut watching = Watching::start(&["--tensors", "-d", &pid.to_string()]);
    for _ in 0..3 {
        program.go_on();
        let printed = program.json();
        let live = number(&printed["live"]["remember"]);
        let site = "allocate (train.py:10) < remember (train.py:13)".to_owned();
        let expected = (by_gpu(&printed), BTreeMap::from([(site, live)]));
        watching.until("the tensors of the program", |report| {
            (reported(report, pid).as_ref() == Some(&expected)).then_some(())
        });
        daemon.until_equal(PATIENCE, |metrics, found| {
            let metric = "gpuprobe_tensor_live_bytes";
            found.compare(metric, &metrics.by(metric, pid, "gpu"), &expected.0);
            let sources = metrics.by(metric, pid, "source").into_keys().collect::<Vec<_>>();
            found.compare("sources", &sources, &vec!["cudaMallocAsync".to_owned()]);
            let reserved = metrics.by("gpuprobe_tensor_reserved_bytes", pid, "gpu");
            found.compare("reserved", &reserved, &BTreeMap::new());
        });
    }
    program.signal(nix::sys::signal::Signal::SIGKILL);
}

#[bpf_test(alone)]
fn a_recording_has_them_at_the_end_and_another_backend_has_none() {
    let folder = folder();
    for (setting, is_async) in
        [(Some("backend:cudaMallocAsync"), true), (Some("backend:native"), false), (None, false)]
    {
        let trace = folder.path().join("t.jsonl");
        let program = python(&folder, setting);
        let words = program.get_args().map(|word| word.to_str().unwrap());
        // the program ends some time after its input, so that its environment can be read
        let script = ["(echo; sleep 1; echo; sleep 1) | \"$0\" \"$@\"", "python3"];
        let options = ["run", "--tensors", "-o", &shown(&trace), "--", "bash", "-c"];
        let words: Vec<&str> = options.into_iter().chain(script).chain(words).collect();
        let run = finish(gpuprobe(&words).env_remove(SETTING));
        assert_eq!(run.status, 0, "{}", run.stderr);
        let printed = run.json().pop().unwrap();
        let recording = Recording::read(&trace);
        let tensors = &recording.assert_ended().tensors;
        let found: BTreeMap<_, _> =
            tensors.gpus.iter().map(|of| (of.gpu.unwrap().to_string(), of.in_use_bytes)).collect();
        assert_eq!(found, if is_async { by_gpu(&printed) } else { BTreeMap::new() }, "{}", run.stderr);
        assert!(tensors.gpus.iter().all(|of| of.source == TensorSource::CudaMallocAsync));
        let sites: u64 = tensors.by_site.sites.iter().map(|site| site.bytes).sum();
        assert_eq!(sites, if is_async { number(&printed["live"]["remember"]) } else { 0 });
        assert_eq!(run.stderr.contains("GPU 1, by cudaMallocAsync"), is_async, "{}", run.stderr);
    }
}
