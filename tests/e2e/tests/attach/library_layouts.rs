//! Runtime libraries in the folders and under the names that packages use, several versions at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use gpuprobe_e2e::arguments::{assert_equal, runtime_calls};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::{Counts, counts_of, inner_counts, pid_of};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;
use serde_json::Value;

struct Layout {
    /// The name of the program, which identifies its calls.
    program: &'static str,
    cuda: Cuda,
    runtime: &'static str,
    /// Whether its file name and SONAME contain a hash.
    renamed: bool,
}

const LAYOUTS: [Layout; 4] = [
    Layout {
        program: "of_wheel",
        cuda: Cuda::Cuda12,
        runtime: "venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
        renamed: false,
    },
    Layout {
        program: "of_conda",
        cuda: Cuda::Cuda12,
        runtime: "envs/ml/lib/libcudart.so.12.9.79",
        renamed: false,
    },
    Layout {
        program: "of_auditwheel",
        cuda: Cuda::Cuda12,
        runtime: "site-packages/package.libs/libcudart-5ca1ab1e.so.12.9",
        renamed: true,
    },
    Layout {
        program: "of_wheel_13",
        cuda: Cuda::Cuda13,
        runtime: "site-packages/nvidia/cu13/lib/libcudart.so.13",
        renamed: false,
    },
];

impl Layout {
    /// Installs the files. Returns a shell command that runs the program and stores its output.
    fn install(&self, root: &Path) -> String {
        let built = fixtures::standins(self.cuda);
        let (name, workload) = if self.renamed {
            (self.cuda.renamed_runtime(), "args_renamed")
        } else {
            (format!("libcudart.so.{}", self.cuda.major()), "args")
        };
        let runtime = root.join(self.runtime);
        let folder = runtime.parent().unwrap_or(root);
        let copy = |from: &Path, to: &Path| {
            fs::copy(from, to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
        };
        fs::create_dir_all(folder).unwrap_or_else(|e| panic!("{e}"));
        copy(&built.dir.join(&name), &runtime);
        if !runtime.ends_with(&name) {
            symlink(&runtime, folder.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let program = root.join(self.program);
        copy(&built.workload(workload), &program);
        let (folder, program) = (shown(folder), shown(program));
        format!("LD_LIBRARY_PATH={folder}:$driver {program} > {program}.out & ")
    }
}

/// Keeps only the calls of one program.
fn only(outcome: &mut Outcome, program: &str) -> usize {
    outcome.trace.calls.retain(|c| &*c.process == program);
    outcome.trace.calls.len()
}

#[bpf_test]
fn runtimes_of_four_packages_are_decoded_each_by_its_own_version() {
    let folder = fixtures::folder();
    let driver = folder.path().join("driver");
    fs::create_dir(&driver).unwrap_or_else(|e| panic!("{e}"));
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), &driver, &["libcuda.so.1"]);
    let mut script = format!("driver={}; ", shown(driver));
    LAYOUTS.iter().for_each(|layout| script += &layout.install(folder.path()));
    script += "wait";
    let mut outcome = Run::new("sh").options(&["-e", "*"]).args(&["-c", &script]).outcome();
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(0), "{}", outcome.finished.stderr);
    let all = std::mem::take(&mut outcome.trace.calls);
    let mut total = 0;
    for layout in &LAYOUTS {
        let printed = folder.path().join(format!("{}.out", layout.program));
        let printed = fs::read_to_string(printed).unwrap_or_else(|e| panic!("{e}"));
        let parse = |l: &str| serde_json::from_str::<Value>(l).unwrap_or_else(|e| panic!("{l}: {e}"));
        let printed: Vec<Value> = printed.lines().map(parse).collect();
        outcome.trace.calls.clone_from(&all);
        total += only(&mut outcome, layout.program);
        let compared = assert_equal(&outcome.trace, &printed, layout.cuda.major());
        assert_eq!(compared, runtime_calls(&printed) + 2, "{}: two are the driver's", layout.program);
        assert!(compared >= 50, "{compared}");
    }
    assert_eq!(total, all.len(), "and no other calls");
}

#[bpf_test]
fn a_child_with_another_runtime_than_its_parent_is_decoded_by_its_own() {
    let (parent, child) = (fixtures::standins(Cuda::Cuda12), fixtures::standins(Cuda::Cuda13));
    let args = ["2", &shown(child.workload("args"))];
    let mut outcome = Run::new(parent.workload("forker")).options(&["-e", "*"]).args(&args).outcome();
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(0), "{}", outcome.finished.stderr);
    let (forked, executed): (Vec<_>, Vec<_>) =
        outcome.finished.json().into_iter().partition(|line| line.get("process").is_some());
    assert_eq!(forked.len(), 3, "a parent and two children, one of which became another program");
    let all = outcome.trace.calls.len();
    let mut of_forker = 0;
    for line in &forked {
        let pid = pid_of(line);
        let counts = |api| {
            let mut counts = Counts::new();
            for call in outcome.trace.of(pid).filter(|c| c.api == api && &*c.process == "forker") {
                *counts.entry(call.name.to_string()).or_default() += 1;
            }
            counts
        };
        let calls = counts_of(&line["calls"]);
        assert_eq!(counts(Api::Runtime), calls, "{line}");
        assert_eq!(counts(Api::Driver), inner_counts(&calls), "{line}");
        of_forker += 2 * calls.values().sum::<u64>() as usize;
    }
    assert_eq!(only(&mut outcome, "args") + of_forker, all);
    let compared = assert_equal(&outcome.trace, &executed, Cuda::Cuda13.major());
    assert_eq!(compared, runtime_calls(&executed) + 2, "two are the driver's");
}
