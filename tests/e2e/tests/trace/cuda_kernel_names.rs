//! The names of CUDA kernels from each source: registration, symbols, lookups and handles, also for a trace that
//! starts late.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use gpuprobe_e2e::process::{Talk, shown};
use gpuprobe_e2e::recording::Counts;
use gpuprobe_e2e::tracing::{Private, waiting};
use gpuprobe_e2e::{Finished, Tracing, bpf_test};
use gpuprobe_event::{Api, Call, Class};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// Grid and block of the CUDA kernels of the demo, and the number of launches.
const DEMO: [(&str, [u32; 3], [u32; 3], u64); 3] = [
    ("matmul_tile", [128, 1, 1], [256, 1, 1], 220),
    ("reduce_sum", [16, 1, 1], [512, 1, 1], 55),
    ("vector_add", [64, 1, 1], [256, 1, 1], 45),
];

fn launches(calls: &[Call]) -> impl Iterator<Item = &Call> {
    calls.iter().filter(|call| call.class == Class::Launch)
}

/// The launches of the demo by name; each must have the grid and block of its CUDA kernel.
fn demo_launches(calls: &[Call]) -> Counts {
    let mut counts = Counts::new();
    for call in launches(calls) {
        let name = call.effect.kernel().unwrap_or_else(|| panic!("no name: {call:?}"));
        let (_, grid, block, _) = DEMO.iter().find(|(known, ..)| **name == **known).unwrap();
        let shape = call.effect.launch().map(|launch| (launch.grid, launch.block));
        assert_eq!(shape, Some((Some(*grid), Some(*block))), "{call:?}");
        *counts.entry(name.to_string()).or_default() += 1;
    }
    counts
}

#[bpf_test]
fn a_stripped_program_has_names_from_registration() {
    for options in [&["--json", "--nested"][..], &["--json", "--nested", "--attach", "multi"]] {
        let private = Private::new("demo", Cuda::Cuda12);
        private.strip();
        let (traced, _) = private.traced(options, &[]);
        let trace = traced.recording();
        trace.assert_whole();
        let expected = DEMO.iter().map(|(name, .., n)| ((*name).to_owned(), 2 * n)).collect();
        assert_eq!(demo_launches(&trace.calls), expected, "by the runtime and by the driver");
    }
}

/// The demo after it has run briefly.
fn late_demo(private: &Private) -> Talk {
    let demo = Talk::start(&mut Command::new(&private.program));
    sleep(Duration::from_millis(300));
    demo
}

#[bpf_test]
fn symbols_give_names_to_a_trace_started_late() {
    let private = Private::new("demo", Cuda::Cuda12);
    let mut demo = late_demo(&private);
    let traced = Tracing::start(&["-d", &demo.pid().to_string(), "--json"]).end();
    assert_eq!(demo.end(), 0);
    let trace = traced.recording();
    let counts = demo_launches(&trace.calls);
    assert_eq!(counts.len(), DEMO.len(), "{counts:?}");
    assert!(DEMO.iter().all(|(name, .., n)| counts[*name] <= *n), "{counts:?}");
}

#[bpf_test]
fn an_unknown_cuda_kernel_is_a_question_mark() {
    let private = Private::new("demo", Cuda::Cuda12);
    private.strip();
    let mut demo = late_demo(&private);
    let pid = demo.pid().to_string();
    let traced = Tracing::start(&["-d", &pid, "-t", "--count", "20", "-e", "cudaLaunchKernel"]).end();
    traced.assert_lines(20);
    for line in traced.stdout.lines() {
        assert!(
            line.starts_with(&format!("demo {pid}/")) && line.contains(" cudaLaunchKernel(? grid=("),
            "{line}"
        );
        assert!(line.contains(" block=(") && line.contains(" stream=0x5601"), "{line}");
    }
    let trace = Tracing::start(&["-d", &pid, "--json", "--count", "20"]).end().recording();
    assert!(launches(&trace.calls).all(|call| call.effect.kernel().is_none()));
    assert_eq!(demo.end(), 0);
}

/// The CUDA kernels of each step of `lookups`: in the trace, and in the ledger.
fn steps(private: &Private, args: &[&str], options: &[&str]) -> Vec<(Vec<Option<String>>, Vec<String>)> {
    let (mut program, pid) = waiting(&private.program, &[], args);
    let trace = Tracing::start(&[&["-d", &pid, "--json"], options].concat());
    let mut steps: Vec<Vec<String>> = Vec::new();
    for step in 1..=3 {
        program.go_on();
        let printed: Value = program.json();
        assert_eq!(printed["step"], step);
        let launched = printed["launched"].as_array().unwrap().iter();
        steps.push(launched.map(|name| name.as_str().unwrap().to_owned()).collect());
        let made = steps.iter().map(Vec::len).sum::<usize>();
        trace.until("its launches are printed", |text| {
            (text.matches("\"name\":\"cuLaunchKernel\"").count() == made).then_some(())
        });
    }
    assert_eq!(program.end(), 0);
    let traced: Finished = trace.end();
    let trace = traced.recording();
    assert_eq!(trace.losses, []);
    assert!(
        launches(&trace.calls)
            .all(|c| c.api == Api::Driver && c.effect.launch().unwrap().grid == Some([3, 2, 1]))
    );
    let mut names = launches(&trace.calls).map(|c| c.effect.kernel().map(ToString::to_string));
    steps.into_iter().map(|launched| (names.by_ref().take(launched.len()).collect(), launched)).collect()
}

fn known(names: &[String]) -> Vec<Option<String>> {
    names.iter().cloned().map(Some).collect()
}

#[bpf_test(tiers)]
fn lookups_give_names_and_the_offset_of_names_in_handles(tier: &str) {
    let private = Private::new("lookups", Cuda::Cuda12);
    let all = steps(&private, &[], &["--attach", tier]);
    let [(first, _), (second, looked_up), (third, again)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(first, &[None, None], "looked up before the trace began, {tier}");
    assert_eq!(second, &known(looked_up), "{tier}");
    assert_eq!(third, &known(again), "by their handles, as those that were looked up have proven, {tier}");
}

#[bpf_test]
fn a_driver_whose_handles_are_known_needs_no_lookup() {
    let private = Private::new("lookups", Cuda::Cuda12);
    let folder = private.folder.path();
    fs::rename(folder.join("libcuda.so.1"), folder.join("libcuda.so.580.159.04")).unwrap();
    symlink("libcuda.so.580.159.04", folder.join("libcuda.so.1")).unwrap();
    for (names, launched) in steps(&private, &[], &[]) {
        assert_eq!(names, known(&launched), "{}", shown(folder));
    }
}

#[bpf_test]
fn handles_that_all_point_to_names_of_functions_are_believed() {
    let private = Private::new("lookups", Cuda::Cuda12);
    let all = steps(&private, &["4"], &[]);
    let (names, launched) = &all[0];
    // four different handles are enough, and the fourth is the first with a name
    assert_eq!(names[..3], [None, None, None]);
    assert_eq!(names[3..], known(&launched[3..]));
    let (names, launched) = &all[2];
    assert_eq!(names, &known(launched), "and so are those before it from then on");
}
