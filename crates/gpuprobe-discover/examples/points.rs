//! Shows what discovery finds in files, or in processes given by pid, and how long it takes: `cargo run --release -p
//! gpuprobe-discover --example points -- /usr/lib/x86_64-linux-gnu/libcuda.so.1`. Without arguments it searches the
//! host.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use gpuprobe_discover::{HostPaths, Inspector, Library, Scan, Skipped, plan};
use gpuprobe_event::{Api, FunctionId};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut inspector = Inspector::new();
    if arguments.is_empty() {
        let start = Instant::now();
        let scan = inspector.of_host(Path::new("/proc"), &HostPaths::default());
        println!("host: found in {:?}", start.elapsed());
        let start = Instant::now();
        inspector.of_host(Path::new("/proc"), &HostPaths::default());
        println!("host: found again in {:?}", start.elapsed());
        show(&scan);
    }
    for argument in &arguments {
        let start = Instant::now();
        let scan = match argument.parse() {
            Ok(pid) => inspector.of_pid(Path::new("/proc"), pid),
            Err(_) => inspector.inspect(Path::new(argument), Path::new(argument)),
        };
        println!("{argument}: found in {:?}", start.elapsed());
        match scan {
            Ok(scan) => show(&scan),
            Err(error) => println!("{error}"),
        }
    }
}

fn show(scan: &Scan) {
    let start = Instant::now();
    let (plan, refused) = plan(&scan.libraries, &|_, _| Some(FunctionId(0)), &|_, _| None);
    println!("planned in {:?}", start.elapsed());
    let start = Instant::now();
    let is_runtime = |library: &Library| library.kind == Api::Runtime;
    let failures = |library: &Library, _: &str| is_runtime(library).then_some(FunctionId(0));
    let (failing, unclear) = gpuprobe_discover::plan(&scan.libraries, &|_, _| None, &failures);
    println!("failure points found in {:?}", start.elapsed());
    for target in failing.targets.iter() {
        println!("  {} failure points", target.failure_points.len());
    }
    for target in &plan.targets {
        let library = &target.library;
        println!("{:?} {:?} {} {:?}", library.path, library.kind, library.soname, library.cuda_major);
        println!("  opened as {:?}, {} names", library.open_path, library.functions.len());
        let mut points = BTreeMap::new();
        for function in &target.functions {
            let moved = function.point.offset - function.point.entry;
            let names: &mut Vec<&str> = points.entry((function.point.cost, moved)).or_default();
            names.push(&function.name);
        }
        for ((cost, moved), names) in points {
            println!(
                "  {cost:?} at +{moved}: {} ({} ...)",
                names.len(),
                names[..names.len().min(4)].join(" ")
            );
        }
    }
    for Skipped { path, reason, .. } in scan.skipped.iter().chain(&refused).chain(&unclear) {
        println!("skipped {path:?}: {reason}");
    }
}
