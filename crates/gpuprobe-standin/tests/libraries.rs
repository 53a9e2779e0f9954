//! The libraries look like the real ones: exports, SONAME, versions, first instructions.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{all, command, compile, hip, json, ledger, stdout};
use gpuprobe_standin::{Cuda, ExportList, Library, Prologue, build_or_copy};

/// Names with their versions, as `nm -D` prints them.
fn exported(library: &Path) -> BTreeSet<String> {
    let text = stdout(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let symbols = text.lines().filter_map(|l| l.split_whitespace().nth(2));
    // the version definition itself is listed as an absolute symbol
    symbols.filter(|s| !s.starts_with("lib")).map(str::to_owned).collect()
}

#[test]
fn exports_soname_and_versions_match_the_catalogue() {
    for cuda in [Cuda::Cuda12, Cuda::Cuda13] {
        let built = all(cuda);
        for library in [Library::Runtime(cuda), Library::Driver, Library::Nvml, Library::Nccl, Library::C10] {
            let soname = library.soname();
            let suffix = if library.versioned() { format!("@@{soname}") } else { String::new() };
            let wanted: BTreeSet<String> =
                ExportList::of(library).names.iter().map(|n| format!("{n}{suffix}")).collect();
            assert_eq!(exported(&built.library(library)), wanted, "{soname}");
            let dynamic = stdout(Command::new("readelf").arg("-dW").arg(built.library(library)));
            assert!(dynamic.contains(&format!("soname: [{soname}]")), "{dynamic}");
            assert!(dynamic.contains("runpath: [$ORIGIN]"), "{dynamic}");
        }
    }
}

#[test]
fn hip_has_the_exports_of_the_catalogue_and_runs_with_and_without_cuda() {
    let built = hip();
    let library = built.library(Library::Hip);
    let wanted: BTreeSet<String> =
        ExportList::of(Library::Hip).names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(exported(&library), wanted);
    assert!(wanted.len() > 500, "{}", wanted.len());
    for on_cuda in [None, Some("1")] {
        let mut ledger = command(&built.workload("ledger"));
        ledger.args(["--calls", "2000", "--threads", "2"]);
        ledger.envs(on_cuda.map(|set| ("STANDIN_HIP_ON_CUDA", set)));
        let printed = json(&mut ledger).remove(0);
        assert_eq!(printed["total_calls"], 2000);
        assert!(printed["calls"]["hipMalloc"].as_u64() > Some(10), "{printed}");
    }
    let without = ["--operations", "5000", "--without", "contexts,primary", "--pauses", "0"];
    stdout(command(&built.workload("torture")).args(without));
    for mode in ["doors", "graphs"] {
        stdout(command(&built.workload("launches")).arg(mode));
    }
}

#[test]
fn export_lists_have_the_measured_lengths() {
    let count = |library| ExportList::of(library).names.len();
    assert_eq!(count(Library::Runtime(Cuda::Cuda12)), 435);
    assert_eq!(count(Library::Runtime(Cuda::Cuda13)), 458);
    assert_eq!(count(Library::Driver), 720);
}

#[test]
fn every_export_is_a_function_with_a_size() {
    let built = all(Cuda::Cuda12);
    for library in [Library::Runtime(Cuda::Cuda12), Library::Driver] {
        let symbols = stdout(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(built.library(library)));
        let rows = symbols.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let defined: Vec<_> =
            rows.filter(|r| r.len() >= 8 && r[6].parse::<u32>().is_ok() && r[7].contains("cu")).collect();
        assert_eq!(defined.len(), ExportList::of(library).names.len());
        for row in defined {
            assert!(row[3] == "FUNC" && row[2] != "0", "{row:?}");
        }
    }
}

/// The first bytes of a function.
fn first_bytes(library: &Path, function: &str) -> Vec<u8> {
    let symbols = stdout(Command::new("nm").args(["-D", "--without-symbol-versions"]).arg(library));
    let row = symbols.lines().find(|l| l.ends_with(&format!(" T {function}"))).unwrap();
    let start = u64::from_str_radix(row.split_whitespace().next().unwrap(), 16).unwrap();
    let range = [format!("--start-address={start}"), format!("--stop-address={}", start + 16)];
    let dump = stdout(Command::new("objdump").args(["-s", "-j", ".text"]).args(range).arg(library));
    let words = dump.lines().last().unwrap().split_whitespace().skip(1).take(4);
    let digits: String = words.collect();
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn each_prologue_has_its_first_bytes_and_works() {
    for prologue in Prologue::ALL {
        let built = ledger(prologue);
        if cfg!(target_arch = "x86_64") {
            for (library, function) in [(&built.libcudart, "cudaMalloc"), (&built.libcuda, "cuMemcpyHtoD_v2")]
            {
                let bytes = first_bytes(library, function);
                assert!(bytes.starts_with(prologue.first_bytes()), "{prologue:?} {function} {bytes:02x?}");
            }
        }
        let printed = json(command(&built.workload("ledger")).args(["--calls", "5000"]));
        assert_eq!(printed[0]["total_calls"], 5000, "{prologue:?}");
        assert_eq!(printed[0]["failed_frees"], printed[0]["unknown_frees"], "{prologue:?}");
    }
}

#[test]
fn both_runtimes_pass_the_behaviour_checks() {
    for cuda in [Cuda::Cuda12, Cuda::Cuda13] {
        let built = all(cuda);
        assert_eq!(stdout(&mut command(&compile(&built, "behaviour.c"))), "");
        let memory = compile(&built, "memory.c");
        assert_eq!(stdout(&mut command(&memory)), "");
        assert_eq!(stdout(command(&memory).env("CUDA_VISIBLE_DEVICES", "2,0,9,1")), "");
    }
}

#[test]
fn a_second_build_changes_nothing() {
    let built = ledger(Prologue::Push);
    let modified = |b: &gpuprobe_standin::Built| std::fs::metadata(&b.libcuda).unwrap().modified().unwrap();
    let before = modified(&built);
    assert_eq!(modified(&ledger(Prologue::Push)), before);
}

#[test]
fn a_build_is_copied_from_another_folder_with_the_same_stamp() {
    let built = ledger(Prologue::Push);
    let copy = |from: &Path, to: &str| {
        let to = built.dir.with_file_name(to);
        std::fs::remove_dir_all(&to).ok();
        build_or_copy(&to, &built.options, Some(from)).unwrap().dir
    };
    let marked = copy(&built.dir, "copied-first");
    std::fs::write(marked.join("mark"), "").unwrap();
    let same = copy(&marked, "copied-same");
    assert!(same.join("mark").exists() && same.join("ledger").exists());
    std::fs::write(marked.join("stamp"), "of something else").unwrap();
    let other = copy(&marked, "copied-other");
    assert!(!other.join("mark").exists() && other.join("ledger").exists());
}
