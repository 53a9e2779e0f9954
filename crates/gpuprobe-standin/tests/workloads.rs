//! The workloads run, and their output is consistent.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{all, command, json, stdout, sum};
use gpuprobe_event::catalogue::{Api, Class, catalogue};
use gpuprobe_standin::{CopyKind, Cuda, WORKLOADS, inner_call, inner_copy_call};
use serde_json::Value;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// The driver calls that the runtime calls of the ledger must make, from the table of inner calls.
fn expected_driver_calls(ledger: &Value) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut count = |name: &str, calls: u64| *counts.entry(name.to_owned()).or_insert(0) += calls;
    for (function, calls) in ledger["calls"].as_object().unwrap() {
        if !function.starts_with("cudaMemcpy") {
            count(inner_call(function).unwrap(), number(calls));
        }
    }
    for kind in CopyKind::ALL {
        let copies = &ledger["copies"][kind.as_str()];
        count(inner_copy_call("cudaMemcpy", kind).unwrap(), number(&copies["sync"]));
        count(inner_copy_call("cudaMemcpyAsync", kind).unwrap(), number(&copies["async"]));
    }
    counts
}

fn check_ledger(ledger: &Value) {
    assert_eq!(sum(&ledger["calls"]), number(&ledger["total_calls"]));
    let driver: BTreeMap<String, u64> =
        ledger["driver_calls"].as_object().unwrap().iter().map(|(k, v)| (k.clone(), number(v))).collect();
    assert_eq!(driver, expected_driver_calls(ledger));
    assert_eq!(sum(&ledger["launches"]), number(&ledger["calls"]["cudaLaunchKernel"]));
    let memory = ledger["memory"].as_object().unwrap();
    for kind in memory.values() {
        assert_eq!(number(&kind["live"]), number(&kind["allocations"]) - number(&kind["frees"]));
        assert_eq!(
            number(&kind["live_bytes"]),
            number(&kind["allocated_bytes"]) - number(&kind["freed_bytes"])
        );
    }
    let frees: u64 = memory.values().map(|k| number(&k["frees"])).sum();
    let calls: u64 =
        ["cudaFree", "cudaFreeHost", "cudaFreeAsync"].iter().map(|f| number(&ledger["calls"][*f])).sum();
    assert_eq!(calls, frees + number(&ledger["failed_frees"]) + number(&ledger["null_frees"]));
}

#[test]
fn the_ledger_adds_up() {
    let built = all(Cuda::Cuda12);
    for (name, threads, calls) in
        [("ledger", 8, 100_000), ("ledger", 3, 10_001), ("ledger_static", 4, 20_000)]
    {
        let arguments =
            ["--threads".to_owned(), threads.to_string(), "--calls".to_owned(), calls.to_string()];
        let printed = json(command(&built.workload(name)).args(arguments));
        assert_eq!(printed.len(), 1);
        let ledger = &printed[0];
        assert_eq!((number(&ledger["total_calls"]), number(&ledger["threads"])), (calls, threads));
        assert_eq!(ledger["failed_allocations"], ledger["errors"]["cudaMalloc"]["2"]);
        assert_eq!(ledger["unknown_frees"], ledger["errors"]["cudaFree"]["1"]);
        check_ledger(ledger);
    }
}

/// Checks that the sums of a ledger of `torture` or `rules` agree.
fn check_memory_ledger(ledger: &Value) {
    let fields = ["allocations", "frees", "ended", "live"];
    let bytes = ["allocated_bytes", "freed_bytes", "freed_with_context_bytes", "live_bytes"];
    let kinds = ledger["memory"].as_object().unwrap();
    let devices = ledger["devices"].as_object().unwrap();
    for [allocated, freed, ended, live] in [fields, bytes] {
        for kind in kinds.values().chain([ledger]) {
            assert_eq!(
                number(&kind[allocated]),
                number(&kind[freed]) + number(&kind[ended]) + number(&kind[live]),
                "{kind}"
            );
        }
        for field in [allocated, freed, ended, live] {
            assert_eq!(kinds.values().map(|k| number(&k[field])).sum::<u64>(), number(&ledger[field]));
            for (kind, sums) in kinds {
                let of_devices: u64 = devices.values().map(|d| number(&d[kind.as_str()][field])).sum();
                assert_eq!(of_devices, number(&sums[field]), "{kind} {field}");
            }
        }
    }
}

/// How often functions of these classes failed, from the ledger.
fn failed(ledger: &Value, classes: &[Class]) -> u64 {
    let of_class = |name: &str| classes.contains(&catalogue().lookup(Api::Driver, None, name).unwrap().class);
    ledger["errors"].as_object().unwrap().iter().filter(|(f, _)| of_class(f)).map(|(_, n)| number(n)).sum()
}

/// The program itself compares its ledger with the free memory that the driver reports, at every pause.
#[test]
fn the_ledger_of_torture_adds_up() {
    let built = all(Cuda::Cuda12);
    for (seed, more) in [
        ("1", [].as_slice()),
        ("2", &["--threads", "3", "--devices", "1"]),
        ("3", &["--without", "faults,contexts"]),
        ("4", &["--delay-after", "cuMemFree_v2:20,cuCtxDestroy_v2:200,cuMemRelease:20", "--devices", "3"]),
    ] {
        let arguments = ["--operations", "60000", "--pauses", "4", "--seed", seed];
        let printed = json(command(&built.workload("torture")).args(arguments).args(more));
        assert_eq!(printed.len(), 6, "four pauses, a child, and the end");
        printed.iter().for_each(check_memory_ledger);
        let last = &printed[5];
        let allocations = [Class::Alloc, Class::HostRegister];
        assert_eq!(failed(last, &allocations), number(&last["failed_allocations"]), "{seed}");
        let frees = [Class::Free, Class::HostUnregister];
        assert_eq!(failed(last, &frees), number(&last["failed_frees"]), "{seed}");
    }
}

#[test]
fn the_ledger_of_every_rule_adds_up() {
    let built = all(Cuda::Cuda12);
    let rules = json(&mut command(&built.workload("rules"))).remove(0);
    let rules = rules["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 14);
    for rule in rules {
        let printed = json(command(&built.workload("rules")).arg(rule.as_str().unwrap()));
        assert!(!printed.is_empty(), "{rule}");
        printed.iter().for_each(check_memory_ledger);
    }
}

/// Live allocations, their bytes, and all allocations of each call site, at the end of a program that leaks.
fn call_sites(name: &str, arguments: &[&str]) -> BTreeMap<String, [u64; 3]> {
    let printed = json(command(&all(Cuda::Cuda12).workload(name)).args(arguments));
    let end = printed.last().unwrap();
    assert_eq!(end["ledger"], "end");
    let figures = |site: &Value| ["live", "live_bytes", "allocations"].map(|field| number(&site[field]));
    let sites = end["call_sites"].as_array().unwrap();
    sites.iter().map(|site| (site["name"].as_str().unwrap().to_owned(), figures(site))).collect()
}

#[test]
fn two_of_five_call_sites_leak_with_the_runtime_and_with_the_driver() {
    for (name, unit) in [("leaks", 64 << 10), ("leaks_driver", 2 << 20)] {
        for (rounds, leaked) in [("96", 3 * 96), ("192", 3 * 192)] {
            let found = call_sites(name, &["--threads", "3", "--rounds", rounds]);
            let expected = BTreeMap::from([
                ("gradients".to_owned(), [leaked, 4 * leaked * unit, leaked]),
                ("events".to_owned(), [leaked / 4, leaked / 4 * unit, leaked / 4]),
                // keys 0 to 31, of one to three units, in each thread
                ("cache".to_owned(), [96, 3 * (11 + 2 * 11 + 3 * 10) * unit, 96]),
                ("sawtooth".to_owned(), [72, 108 * unit, leaked]),
                ("setup".to_owned(), [12, 3 * 8 * (1 + 2 + 3 + 4) * unit, 12]),
            ]);
            assert_eq!(found, expected, "{name} {rounds}");
        }
    }
}

#[test]
fn the_ledger_has_deep_stacks_and_many_stacks() {
    let deep = call_sites("leaks_deep", &["--threads", "2", "--rounds", "5"]);
    assert_eq!(deep["deep left"], [10, 30720, 10]);
    assert_eq!((deep["deep right"], deep["shallow"]), ([0, 0, 10], [0, 0, 10]));
    let many = call_sites("leaks_many", &["--threads", "1", "--rounds", "2"]);
    let all_stacks: u64 = (1..=10_000).sum();
    let sums = many.values().fold([0; 3], |sums, site| [0, 1, 2].map(|i| sums[i] + site[i]));
    assert_eq!((many.len(), sums), (100, [10_000, 512 * all_stacks, 20_000]));
}

#[test]
fn one_rank_makes_one_collective_less_on_demand() {
    let program = all(Cuda::Cuda12).workload("collectives");
    for arguments in [&["5", "40", "skip", "3", "39"], &["all", "40", "skip", "3", "39"]] {
        let mut printed = json(command(&program).args(arguments));
        printed.sort_by_key(|rank| number(&rank["rank"]));
        let made: Vec<_> = printed.iter().map(|rank| number(&rank["collectives"])).collect();
        assert_eq!(made[..4], [40, 40, 40, 39], "{arguments:?}");
        assert_eq!(
            (number(&printed[0]["calls"]["ncclSend"]), number(&printed[3]["calls"]["ncclSend"])),
            (10, 9)
        );
    }
}

#[test]
fn tensors_add_up_by_call_site_and_by_gpu() {
    let arguments = ["--threads", "16", "--rounds", "128", "--pauses", "2"];
    let printed = json(command(&all(Cuda::Cuda12).workload("tensors")).args(arguments));
    assert_eq!(printed.len(), 3);
    for ledger in &printed {
        let sum = |list: &str, field: &str| -> u64 {
            ledger[list].as_array().unwrap().iter().map(|of| number(&of[field])).sum()
        };
        assert_eq!(sum("call_sites", "live_bytes"), sum("devices", "in_use_bytes"));
        for field in ["live", "allocations", "frees"] {
            assert_eq!(sum("call_sites", field), sum("devices", field), "{field}");
        }
        for device in ledger["devices"].as_array().unwrap() {
            assert!(number(&device["in_use_bytes"]) <= number(&device["reserved_bytes"]), "{device}");
        }
        assert_eq!(sum("devices", "out_of_memory"), 16 * (number(&ledger["rounds"]) / 64));
    }
}

#[test]
fn one_thread_with_one_seed_repeats_its_calls() {
    let built = all(Cuda::Cuda12);
    let run = || {
        let arguments = ["--threads", "1", "--calls", "3000", "--seed", "7"];
        let mut ledger = json(command(&built.workload("ledger")).args(arguments)).remove(0);
        ledger["pid"] = Value::Null;
        ledger
    };
    assert_eq!(run(), run());
}

#[test]
fn the_ledger_waits_for_a_line_at_every_pause() {
    let built = all(Cuda::Cuda12);
    let mut child = command(&built.workload("ledger"))
        .args(["--wait", "--pauses", "2", "--calls", "9000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["ready"], true);
    for snapshot in 1..=2 {
        input.write_all(b"go on\n").unwrap();
        let ledger = next();
        assert_eq!((&ledger["ledger"], &ledger["snapshot"]), (&"snapshot".into(), &snapshot.into()));
        assert_eq!(number(&ledger["total_calls"]), 3000 * snapshot);
        check_ledger(&ledger);
    }
    input.write_all(b"go on\n").unwrap();
    assert_eq!(number(&next()["total_calls"]), 9000);
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_environment_injects_failures_and_delays() {
    let built = all(Cuda::Cuda12);
    let run = |fail: &str| {
        let arguments = ["--threads", "1", "--calls", "4000"];
        json(command(&built.workload("ledger")).args(arguments).env("STANDIN_FAIL", fail)).remove(0)
    };
    for fail in ["cudaLaunchKernel:719:10,cudaMallocHost:2:1", "cuLaunchKernel:719:10,cuMemHostAlloc:2:1"] {
        let ledger = run(fail);
        let launches = number(&ledger["calls"]["cudaLaunchKernel"]);
        assert_eq!(number(&ledger["errors"]["cudaLaunchKernel"]["719"]), launches / 10, "{fail}");
        assert_eq!(ledger["errors"]["cudaMallocHost"]["2"], ledger["calls"]["cudaMallocHost"], "{fail}");
        assert_eq!(sum(&ledger["launches"]), launches - launches / 10, "{fail}");
    }
    let start = std::time::Instant::now();
    stdout(command(&built.workload("constructor")).env("STANDIN_DELAY", "cudaFree:200000,cuMemFree_v2:40"));
    assert!(start.elapsed().as_millis() >= 200);
}

/// How often a driver function failed with 777, a code that only the injected rule returns.
fn injected(ledger: &Value) -> u64 {
    let codes = ledger["errors"].as_object().unwrap().values();
    codes.filter_map(|c| c.get("777")).map(number).sum()
}

/// A rule for every Nth call reveals the number of calls: it matches at N = that number, and not above.
#[test]
fn every_runtime_call_makes_one_driver_call() {
    let built = all(Cuda::Cuda12);
    for workload in ["ledger", "ledger_static"] {
        let run = |fail: String| {
            let arguments = ["--threads", "1", "--calls", "3000"];
            json(command(&built.workload(workload)).args(arguments).env("STANDIN_FAIL", fail)).remove(0)
        };
        let plain = run(String::new());
        let driver_calls = plain["driver_calls"].as_object().unwrap();
        // functions that create a handle are called again when they fail, and the result of cuDriverGetVersion is ignored
        let is_testable =
            |(name, calls): &(&String, &Value)| number(calls) > 1 && *name != "cuDriverGetVersion";
        for (function, calls) in driver_calls.iter().filter(is_testable) {
            let calls = number(calls);
            assert_eq!(injected(&run(format!("{function}:777:{calls}"))), 1, "{function} {calls}");
            assert_eq!(injected(&run(format!("{function}:777:{}", calls + 1))), 0, "{function} {calls}");
        }
    }
}

#[test]
fn every_workload_succeeds_with_both_runtimes() {
    for cuda in [Cuda::Cuda12, Cuda::Cuda13] {
        let built = all(cuda);
        for name in WORKLOADS.into_iter().filter(|n| !["crash", "demo"].contains(n)) {
            let printed = json(&mut command(&built.workload(name)));
            assert!(!printed.is_empty(), "{name}");
        }
        assert_eq!(stdout(&mut command(&built.workload("demo"))).lines().count(), 4);
    }
}

#[test]
fn crash_is_killed_inside_a_call() {
    let built = all(Cuda::Cuda12);
    let output = command(&built.workload("crash")).arg("--kill").output().unwrap();
    assert!(output.status.code().is_none());
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["blocked_in"], "cudaDeviceSynchronize");
}

#[test]
fn args_prints_many_functions_with_the_argument_names_of_the_catalogue() {
    for cuda in [Cuda::Cuda12, Cuda::Cuda13] {
        let of = |name| json(&mut command(&all(cuda).workload(name)));
        let (printed, of_driver) = (of("args"), of("driver_args"));
        assert!(printed.len() >= 45 && of_driver.len() >= 30, "{} {}", printed.len(), of_driver.len());
        for line in printed.into_iter().chain(of_driver) {
            let api = Api::from_name(line["api"].as_str().unwrap()).unwrap();
            let name = line["function"].as_str().unwrap();
            let function = catalogue().lookup(api, Some(cuda.major()), name).unwrap();
            let wanted: Vec<&str> = function.args.as_ref().unwrap().iter().map(|a| a.name).collect();
            let shown: Vec<&str> = line["args"].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(shown, wanted, "{name}");
        }
    }
}

#[test]
fn without_a_driver_every_call_fails_with_35() {
    let built = all(Cuda::Cuda12);
    let folder = built.dir.join("without_driver");
    fs::create_dir_all(&folder).unwrap();
    for file in ["args", "libcudart.so.12"] {
        fs::copy(built.dir.join(file), folder.join(file)).unwrap();
    }
    // found first and not a library, so that a real driver of this machine is not used
    fs::write(folder.join("libcuda.so.1"), "").unwrap();
    for line in json(&mut command(&folder.join("args"))) {
        let version =
            ["cudaRuntimeGetVersion", "cudaDriverGetVersion"].iter().any(|f| line["function"] == **f);
        assert_eq!(line["ret"], if version { 0 } else { 35 }, "{line}");
    }
}

#[test]
fn the_static_runtime_is_in_symtab_only() {
    let built = all(Cuda::Cuda12);
    let names = |flag: &str| {
        let mut nm = std::process::Command::new("nm");
        stdout(nm.arg(flag).arg(built.workload("static_runtime")))
    };
    let symbols = names("-a");
    assert!(symbols.contains(" t cudaMalloc\n") && symbols.to_lowercase().contains(" t cudagraphlaunch\n"));
    assert!(!names("-D").contains("cudaMalloc"));
}
