//! Options and variables with which there cannot be GPU times: one line says why, and the command is not run.

use std::fs;
use std::process::Command;

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::{bpf_test, fixtures};

/// The command writes a file, which must not be there in the end.
fn assert_error(mut probe: Command, variable: Option<(&str, &str)>, line: &str) {
    let folder = fixtures::folder();
    let (trace, file) = (shown(folder.path().join("trace.jsonl")), folder.path().join("file"));
    probe.args(["run", "--gpu-time", "-o", &trace, "--", "touch"]).arg(&file).envs(variable);
    let finished = finish(&mut probe);
    assert_ne!(finished.status, 0);
    let said: Vec<&str> = finished.stderr.lines().collect();
    assert!(matches!(&said[..], [only] if only.contains(line)), "{}", finished.stderr);
    assert!(!file.exists(), "the command was run");
}

#[bpf_test]
fn the_library_must_be_there() {
    let variable = ("GPUPROBE_AGENT", "/nowhere/libgpuprobe_agent.so");
    let line = "GPUPROBE_AGENT names /nowhere/libgpuprobe_agent.so, which is not the absolute path of a file";
    assert_error(gpuprobe(&[]), Some(variable), line);
    let folder = fixtures::folder();
    let alone = folder.path().join("gpuprobe");
    fs::copy(fixtures::gpuprobe(), &alone).unwrap();
    assert_error(Command::new(&alone), None, "--gpu-time: there is no libgpuprobe_agent.so in ");
}

#[bpf_test]
fn another_tool_must_not_be_in_its_place() {
    let variable = ("CUDA_INJECTION64_PATH", "/opt/tool.so");
    let line = "--gpu-time: CUDA_INJECTION64_PATH names /opt/tool.so already";
    assert_error(gpuprobe(&[]), Some(variable), line);
}
