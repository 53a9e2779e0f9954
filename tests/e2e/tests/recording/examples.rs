//! The programs in `examples`, compiled as plain C++ for the stand-ins: they build, and a trace of them has exactly
//! the calls that they print.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Counts, counts_of, inner_counts, kind_of, number};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;
use serde_json::{Value, json};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Compiles an example into a folder.
fn compiled(name: &str, folder: &Path) -> PathBuf {
    let repository = repository();
    let built = fixtures::standins(Cuda::Cuda12);
    let program = folder.join(name);
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    compiler.args(["-std=c++14", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(repository.join("crates/gpuprobe-standin/c/include"));
    compiler.args(["-x", "c++"]).arg(repository.join(format!("examples/{name}.cu")));
    compiler.args(["-x", "none"]).arg(&built.libcudart);
    compiler.arg(format!("-Wl,-rpath,{}", built.dir.display())).arg("-o").arg(&program);
    let said = finish(&mut compiler);
    assert_eq!(said.status, 0, "{}", said.stderr);
    program
}

fn counts(outcome: &Outcome, api: Api) -> Counts {
    outcome.trace.counts(outcome.trace.calls[0].tgid.0, api)
}

#[bpf_test]
fn basic_is_traced_call_by_call() {
    let folder = fixtures::folder();
    let outcome =
        Run::new(compiled("basic", folder.path())).options(&["-e", "*"]).args(&["--json"]).outcome();
    // a stand-in computes nothing, and the program notices
    assert_eq!(outcome.finished.status, 1, "{}", outcome.finished.stderr);
    assert!(outcome.finished.stdout.contains("\n0 of 1000 sums are right\n"), "{}", outcome.finished.stdout);
    outcome.trace.assert_whole();
    let printed = outcome.printed();
    let calls = counts_of(&printed["calls"]);
    assert_eq!(counts(&outcome, Api::Runtime), calls);
    let mut inner = inner_counts(&calls);
    inner.remove("cuMemcpy");
    inner.extend([("cuMemcpyHtoD_v2".to_owned(), 2), ("cuMemcpyDtoH_v2".to_owned(), 1)]);
    assert_eq!(counts(&outcome, Api::Driver), inner);
    for (field, kind, bytes) in
        [("copied", "H2D", 8000), ("copied", "D2H", 4000), ("allocated", "device", 12000)]
    {
        assert_eq!(number(&printed[field][kind]), bytes);
        let of_kind = outcome.trace.calls.iter().filter(|c| kind_of(c) == Some(kind));
        assert_eq!(of_kind.filter_map(|c| c.effect.size()).sum::<u64>(), bytes, "{kind}");
    }
    assert_eq!(outcome.trace.live(outcome.trace.calls[0].tgid.0), (0, 0));
    let launch = outcome.trace.calls.iter().find(|c| c.name == "cudaLaunchKernel").unwrap();
    let shape = launch.effect.launch().map(|launch| (launch.grid, launch.block));
    assert_eq!(shape, Some((Some([4, 1, 1]), Some([256, 1, 1]))));
}

#[bpf_test]
fn bench_measures_each_operation_the_given_number_of_times() {
    let folder = fixtures::folder();
    let program = compiled("bench", folder.path());
    let table = finish(Command::new(&program).arg("100"));
    assert_eq!((table.status, table.stdout.lines().count()), (0, 8), "{}", table.stdout);
    assert_eq!(finish(Command::new(&program).arg("none")).status, 2);
    let outcome = Run::new(&program).options(&["-e", "*"]).args(&["--json", "100"]).outcome();
    outcome.trace.assert_whole();
    let printed = outcome.printed();
    assert_eq!(printed["rounds"], json!(100));
    let operations = printed["operations"].as_array().unwrap();
    assert_eq!(operations.len(), 7);
    // eleven to warm up, and one allocation and one wait per round that are not measured
    let warm = 11;
    let mut calls = Counts::new();
    for operation in operations {
        assert!(operation["average_us"].as_f64().unwrap() > 0.0, "{operation}");
        *calls.entry(operation["function"].as_str().unwrap().to_owned()).or_default() +=
            number(&operation["calls"]) + warm;
    }
    for unmeasured in ["cudaMalloc", "cudaFree", "cudaDeviceSynchronize"] {
        *calls.get_mut(unmeasured).unwrap() += 2;
    }
    assert_eq!(counts(&outcome, Api::Runtime), calls);
}

/// The number of the line of an example with this text.
fn line_with(name: &str, text: &str) -> u64 {
    let source = fs::read_to_string(repository().join(format!("examples/{name}.cu"))).unwrap();
    source.lines().position(|line| line.contains(text)).unwrap() as u64 + 1
}

#[bpf_test]
fn the_leak_of_leaky_is_reported_and_nothing_else() {
    let folder = fixtures::folder();
    let program = compiled("leaky", folder.path());
    assert_eq!(finish(Command::new(&program).arg("0")).status, 2);
    let file = folder.path().join("memory.json");
    let finished =
        finish(&mut gpuprobe(&["memory", "--json", "-o", &shown(&file), "--", &shown(&program), "12"]));
    assert_eq!((finished.status, finished.stderr.as_str()), (0, ""));
    let requests: u64 = finished.stdout.split(' ').next().unwrap().parse().unwrap();
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["complete"], json!(true));
    let [process] = report["processes"].as_array().unwrap().as_slice() else { panic!("{report}") };
    let site = |text: &str| {
        let caller = format!("leaky.cu:{})", line_with("leaky", text));
        let of_line = |site: &&Value| site["call_site"].as_str().unwrap().ends_with(&caller);
        process["call_sites"]
            .as_array()
            .unwrap()
            .iter()
            .find(of_line)
            .unwrap_or_else(|| panic!("{text}: {process}"))
    };
    let counts = |site: &Value| ["allocations", "frees", "live_allocations"].map(|name| number(&site[name]));
    let cancelled = requests / 4;
    let leak = site("void *output = get(");
    assert_eq!(
        (&leak["verdict"], counts(leak)),
        (&json!("leak_suspect"), [requests, requests - cancelled, cancelled])
    );
    assert_eq!(number(&leak["live_bytes"]), cancelled * 128 * 1024);
    assert_eq!(leak["line"], json!(line_with("leaky", "check(cudaMalloc(")));
    for (text, allocations) in
        [("return get(64", 1), ("entry = get(", requests.min(32)), ("void *input = get(", requests)]
    {
        let site = site(text);
        let expected = (&json!("freed"), [allocations, allocations, 0]);
        assert_eq!((&site["verdict"], counts(site)), expected, "{text}");
    }
    assert_eq!(process["call_sites"].as_array().unwrap().len(), 4);
    assert_eq!(process["live_bytes"], leak["live_bytes"]);
}
