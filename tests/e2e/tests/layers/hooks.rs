//! Hooks: functions of any library that the user names in a file. A test library for every form of hook, and the
//! example file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Counts, pid_of};
use gpuprobe_e2e::{Outcome, Recording, Run, Talk, bpf_test, compile, fixtures};
use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{Api, Call, Class, Outcome as Moment, Value};
use gpuprobe_standin::Cuda;

const ROUNDS: u64 = 50;

const HOOKS: &str = r#"
[[hook]]
library  = "libhooked.so*"
function = "hk_alloc"
class    = "alloc"
args     = ["count:u64", "size:size"]
returns  = "ptr"
count    = "count"

[[hook]]
library  = "libhooked.so*"
function = "hk_free"
class    = "free"
args     = ["memory:ptr"]
returns  = "status"

[[hook]]
library  = "libhooked.so*"
function = "hk_new"
class    = "alloc"
args     = ["memory:out_ptr", "bytes:size", "status:i32"]
returns  = "status"
memory   = "pinned"

[[hook]]
library  = "libhooked.so*"
function = "hk_move"
class    = "memcpy"
args     = ["to:ptr", "from:ptr", "bytes:size", "kind:i32"]
returns  = "status"
dst      = "to"
src      = "from"
kind     = "kind"

[[hook]]
library  = "libhooked.so*"
function = "hk_lookup"
args     = ["kernel:out_ptr", "name:str"]
returns  = "status"
names    = "kernel"

[[hook]]
library  = "libhooked.so*"
function = "hk_launch"
class    = "launch"
args     = ["x:u32", "y:u32", "z:u32", "kernel:handle"]
returns  = "status"
launches = "kernel"
grid     = "x"

[[hook]]
library  = "libhooked.so*"
function = "hk_n*"
args     = ["low:out_i32", "high:out_u64"]
returns  = "u64"

[[hook]]
library  = "libhooked.so*"
function = "hk_around"

[[hook]]
library  = "libcuda.so*"
function = "cuMemAlloc_v2"
class    = "alloc"
args     = ["dptr:out_ptr", "bytesize:size"]
returns  = "status"

[[hook]]
tracepoint = "signal:signal_generate"
args       = ["sig:i32", "info:ptr", "task:ptr", "group:i32"]
"#;

const SIGNALS: &str = "signal:signal_generate";

/// Hooks that match nothing: a function without a symbol, a library that does not exist, and the same for the Linux
/// kernel.
const MISSING_HOOKS: &str = r#"
[[hook]]
library  = "libhooked.so*"
function = "hk_inlined"

[[hook]]
library  = "libnowhere.so*"
function = "f"

[[hook]]
kernel   = true
function = "no_such_function"

[[hook]]
tracepoint = "no:such_tracepoint"
"#;

/// Compiles a source of these tests into this folder.
fn compiled(folder: &Path, source: &str, name: &str, options: &[&str]) -> Result<PathBuf, String> {
    let source = compile::source(source);
    let target = folder.join(name);
    let mut cc = Command::new("cc");
    let done = finish(cc.args(["-O1", "-Wall", "-o"]).arg(&target).arg(source).args(options));
    if done.status == 0 { Ok(target) } else { Err(done.stderr) }
}

/// A library with functions to hook, a program that uses it with CUDA, and the hooks.
struct Fixture {
    folder: tempfile::TempDir,
    library: PathBuf,
    program: PathBuf,
    hooks: String,
}

impl Fixture {
    fn new() -> Self {
        let folder = fixtures::folder();
        let of = |source, name, options: &[&str]| compiled(folder.path(), source, name, options).unwrap();
        let soname = ["-shared", "-fPIC", "-Wl,-soname,libhooked.so.1"];
        let library = of("hooked_library.c", "libhooked.so.1", &soname);
        let program = of("hooked_program.c", "hooked_program", &["-ldl"]);
        fixtures::copies(
            &fixtures::standins(Cuda::Cuda12),
            folder.path(),
            &["libcuda.so.1", "libcudart.so.12"],
        );
        let hooks = shown(folder.path().join("hooks.toml"));
        fs::write(&hooks, HOOKS).unwrap();
        Self { folder, library, program, hooks }
    }

    fn at(&self, name: &str) -> String {
        shown(self.folder.path().join(name))
    }

    fn args(&self) -> [String; 3] {
        [shown(&self.library), self.at("libcudart.so.12"), ROUNDS.to_string()]
    }

    fn recorded(&self, options: &[&str]) -> Outcome {
        let args = self.args();
        let run = Run::new(&self.program)
            .options(&["--hooks", &self.hooks, "--verify", "--rows", "0"])
            .options(options);
        run.args(&args.each_ref().map(String::as_str)).outcome()
    }
}

/// The calls of the program, with or without CUDA.
fn expected(of_cuda: bool) -> Counts {
    let once_more = ["hk_alloc", "hk_new", "hk_launch"];
    let each = ["hk_free", "hk_move", "hk_number", "hk_around"];
    let mut counts: Counts = each.iter().map(|name| ((*name).to_owned(), ROUNDS)).collect();
    counts.extend(once_more.iter().map(|name| ((*name).to_owned(), ROUNDS + 1)));
    counts.insert("hk_lookup".to_owned(), 1);
    if of_cuda {
        counts.insert("cuMemAlloc_v2".to_owned(), ROUNDS);
    }
    counts
}

fn sum<'a>(calls: impl Iterator<Item = &'a Call>, of: impl Fn(&Call) -> Option<u64>) -> u64 {
    calls.filter_map(of).sum()
}

// hooks of memory and launches add some thirty functions of CUDA, whose probes `perf` removes one by one
#[bpf_test(tiers(session, multi))]
fn every_form_of_hook_is_recorded_with_its_class(tier: &str) {
    let fixture = Fixture::new();
    let outcome = fixture.recorded(&["--attach", tier, "-e", "cudaMalloc"]);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let trace = &outcome.trace;
    trace.assert_whole();
    assert_eq!(trace.counts(pid_of(&outcome.printed()), Api::Hook), expected(true));
    assert_memory(trace);
    assert_reported(trace);
    assert_nested(trace);
    assert_moments(&outcome);
}

#[bpf_test]
fn hooks_are_probed_one_by_one_too() {
    let fixture = Fixture::new();
    let few: Vec<_> =
        HOOKS.split("\n\n").filter(|hook| hook.contains("hk_n*") || hook.contains("hk_around")).collect();
    fs::write(&fixture.hooks, few.join("\n")).unwrap();
    let outcome = fixture.recorded(&["--attach", "perf", "-e", "hk_*"]);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let mut counts = expected(false);
    counts.retain(|name, _| name == "hk_number" || name == "hk_around");
    counts.insert("hk_new".to_owned(), ROUNDS + 1);
    assert_eq!(outcome.trace.counts(pid_of(&outcome.printed()), Api::Hook), counts, "`hk_n*` fits both");
    assert_numbers(&outcome.trace);
}

fn named<'a>(trace: &'a Recording, name: &'a str) -> impl Iterator<Item = &'a Call> {
    trace.calls.iter().filter(move |call| call.name == name)
}

fn assert_memory(trace: &Recording) {
    let size = |name| sum(named(trace, name), |call| call.effect.size());
    assert_eq!((size("hk_alloc"), size("hk_new")), (300 * ROUNDS, 1000 * ROUNDS));
    assert_eq!(
        sum(named(trace, "hk_free"), |call| call.effect.freed().map(|freed| freed.bytes)),
        300 * ROUNDS
    );
    assert_eq!((size("cudaMalloc"), size("cuMemAlloc_v2")), (4096 * ROUNDS, 0), "counted once");
    assert_eq!(size("hk_move"), 50 * ROUNDS);
    for call in named(trace, "hk_move") {
        let reported = call.effect.transfer().map(|transfer| (transfer.direction, transfer.host));
        assert_eq!(reported, Some((CopyDirection::HostToDevice, HostMemory::Pinned)), "{call:?}");
    }
    let failed = |name| named(trace, name).filter(|c| c.failed()).map(|c| c.error.clone().unwrap());
    assert_eq!(failed("hk_new").collect::<Vec<_>>(), ["error -61"]);
    assert_eq!(failed("hk_alloc").collect::<Vec<_>>(), ["returned NULL"]);
    assert_eq!(failed("hk_launch").collect::<Vec<_>>(), ["error -7"]);
}

/// Arguments, including output arguments, and launches.
fn assert_reported(trace: &Recording) {
    assert_numbers(trace);
    for call in named(trace, "hk_launch").filter(|call| !call.failed()) {
        let launch = call.effect.launch().unwrap();
        assert_eq!((launch.kernel.as_deref(), launch.grid), (Some("a_kernel"), Some([2, 3, 4])));
        assert_eq!(call.class, Class::Launch);
    }
    let looked_up = named(trace, "hk_lookup").next().unwrap();
    let name = looked_up.args.iter().flatten().find(|(name, _)| name == "name").unwrap();
    assert_eq!(name.1, Value::Name("a_kernel".into()));
}

fn assert_numbers(trace: &Recording) {
    for call in named(trace, "hk_number") {
        let args: BTreeMap<_, _> = call.args.iter().flatten().map(|(n, v)| (&**n, v)).collect();
        assert_eq!((args[&"low"], args[&"high"]), (&Value::Int(-5), &Value::Uint(1 << 40)));
        assert!(!call.failed());
    }
}

/// A CUDA call inside a hooked function is its child, and a hooked function inside a CUDA call is the child of that
/// call.
fn assert_nested(trace: &Recording) {
    let by_id = trace.by_id();
    let parents = |name| named(trace, name).map(|c| c.parent.map(|id| by_id[&id].name.to_string()));
    assert!(parents("cudaMalloc").all(|parent| parent.as_deref() == Some("hk_around")));
    assert!(parents("cuMemAlloc_v2").all(|parent| parent.as_deref() == Some("cudaMalloc")));
    assert!(named(trace, "cuMemAlloc_v2").all(|c| c.api == Api::Hook), "a hook that names it is asked first");
}

/// A tracepoint is recorded when it is hit, in the call that is open then.
fn assert_moments(outcome: &Outcome) {
    let by_id = outcome.trace.by_id();
    let is_ours = |(name, value): &(_, Value)| *name == "sig" && *value == Value::Uint(10);
    let sent = named(&outcome.trace, SIGNALS).filter(|call| call.args.iter().flatten().any(is_ours));
    let sent: Vec<_> = sent.collect();
    assert_eq!(sent.len() as u64, ROUNDS);
    for call in sent {
        assert_eq!((call.outcome, call.api, call.class), (Moment::Instant, Api::Kernel, Class::Driver));
        assert_eq!(call.parent.map(|id| &*by_id[&id].name), Some("hk_around"));
        assert!(call.args.iter().flatten().any(|(name, value)| name == "group" && *value == Value::Uint(1)));
    }
    // other processes may send it signals too
    let all = named(&outcome.trace, SIGNALS).count().to_string();
    let mut rows = outcome.finished.stderr.lines().filter(|line| line.starts_with(SIGNALS));
    let reported: Vec<_> = rows.next().unwrap_or_default().split_whitespace().take(2).collect();
    assert_eq!(reported, [SIGNALS, &all]);
}

#[bpf_test]
fn missing_hooks_are_reported_and_harmless() {
    let fixture = Fixture::new();
    fs::write(&fixture.hooks, format!("{HOOKS}{MISSING_HOOKS}")).unwrap();
    let outcome = fixture.recorded(&["-e", "!hk_number"]);
    let mut counts = expected(true);
    counts.remove("hk_number");
    assert_eq!(
        outcome.trace.counts(pid_of(&outcome.printed()), Api::Hook),
        counts,
        "suppressed lines are not printed"
    );
    let end = outcome.trace.assert_ended();
    let first =
        MISSING_HOOKS.lines().position(|line| line == "[[hook]]").unwrap() + HOOKS.lines().count() + 1;
    let at = |line: usize| format!("{}:{line}: ", fixture.hooks);
    let missing = format!("{}hook hk_inlined: not in libhooked.so.1: static, inlined", at(first));
    assert!(end.skipped.iter().any(|line| line.starts_with(&missing)), "{missing}: {:?}", end.skipped);
    let nowhere = format!("{}hook f: no library libnowhere.so* has it yet", at(first + 4));
    assert!(end.skipped.contains(&nowhere), "{nowhere}: {:?}", end.skipped);
    let function =
        format!("{}hook no_such_function: not probed: the Linux kernel has no such", at(first + 8));
    let tracepoint =
        format!("{}hook no:such_tracepoint: not probed: the Linux kernel has no such", at(first + 12));
    for reported in [function, tracepoint] {
        assert!(end.skipped.iter().any(|line| line.starts_with(&reported)), "{reported}: {:?}", end.skipped);
    }
    assert_eq!(end.skipped.len(), 4);
    assert!(
        outcome.finished.stderr.contains(&format!("not watched: {nowhere}")),
        "{}",
        outcome.finished.stderr
    );
}

#[bpf_test(alone)]
fn a_daemon_counts_hooks_of_its_settings_file() {
    let fixture = Fixture::new();
    fs::write(&fixture.hooks, format!("{HOOKS}{MISSING_HOOKS}")).unwrap();
    let config = fixture.at("gpuprobe.toml");
    fs::write(&config, format!("hooks = [{:?}]\n", fixture.hooks)).unwrap();
    let paths = [fixture.at("libcuda.so.1"), shown(&fixture.library)];
    let daemon = Daemon::with(&["--config", &config, "-p", &paths[0], "-p", &paths[1]]);
    let mut program = Command::new(&fixture.program);
    program.args(fixture.args()).arg("wait");
    let mut program = Talk::start(&mut program);
    assert_eq!(program.line(), "ready");
    program.go_on();
    let pid = pid_of(&program.json());
    daemon.until_equal(PATIENCE, |metrics, found| {
        let of = |api: &str, name: &str| {
            let mut counts = Counts::new();
            for (labels, value) in metrics.samples(name) {
                if labels["pid"] == pid.to_string() && labels["api"] == api {
                    *counts.entry(labels["function"].clone()).or_default() += value;
                }
            }
            counts
        };
        let timed = |api: &str| {
            let times = metrics.values("gpuprobe_call_seconds_total");
            let of_process = times.filter(|(l, _)| l["pid"] == pid.to_string() && l["api"] == api);
            of_process.map(|(labels, _)| labels["function"].clone()).collect::<BTreeSet<_>>()
        };
        found.compare("calls", &of("hook", "gpuprobe_calls_total"), &expected(true));
        found.compare("timed", &timed("hook"), &expected(true).into_keys().collect());
        let moments = Counts::from([(SIGNALS.to_owned(), ROUNDS)]);
        found.compare("moments", &of("kernel", "gpuprobe_calls_total"), &moments);
        found.compare("their times", &timed("kernel"), &BTreeSet::new());
        let skipped = metrics.samples("gpuprobe_libraries_skipped_total");
        let mut skipped = skipped.into_iter().filter(|(labels, _)| labels["reason"] == "not_there");
        found.compare("not there", &skipped.next().map(|(_, count)| count), &Some(2));
        let live = metrics.by("gpuprobe_memory_live_bytes", pid, "kind");
        let device = live.get("device").copied();
        found.compare("device memory", &device, &Some(4096 * ROUNDS));
        found.compare("pinned memory", &live.get("pinned").copied(), &Some(1000 * ROUNDS));
        let launches = metrics.by("gpuprobe_kernel_launches_total", pid, "kernel");
        found.compare("launches", &launches.get("a_kernel").copied(), &Some(ROUNDS));
        let copied = metrics.by("gpuprobe_copy_bytes_total", pid, "kind");
        found.compare("copied", &copied.get("H2D").copied(), &Some(50 * ROUNDS));
    });
    program.go_on();
    assert_eq!(program.end(), 0);
}

#[test]
fn an_invalid_hook_file_is_refused_with_its_line_by_every_command() {
    let folder = fixtures::folder();
    let file = shown(folder.path().join("bad.toml"));
    fs::write(&file, "[[hook]]\nlibrary = \"libx.so*\"\nfunction = \"f\"\nclass = \"aloc\"\n").unwrap();
    let config = shown(folder.path().join("gpuprobe.toml"));
    fs::write(&config, format!("hooks = {file:?}\n")).unwrap();
    let commands: [&[&str]; 5] = [
        &["run", "--hooks", &file, "--", "true"],
        &["record", "--all", "--hooks", &file],
        &["trace", "--hooks", &file],
        &["daemon", "--hooks", &file],
        &["--config", &config],
    ];
    for command in commands {
        let done = finish(&mut gpuprobe(command));
        let expected = format!("gpuprobe: {file}:4: unknown class `aloc`: one of alloc, free, ");
        assert_eq!(done.status, 2, "{command:?}: {}", done.stderr);
        assert!(done.stderr.starts_with(&expected) && done.stderr.lines().count() == 1, "{}", done.stderr);
    }
}

/// The example hooks file, with a library that has some of the functions.
#[bpf_test]
fn the_example_for_cublas_shows_the_sizes_of_products() {
    const LIBRARY: &str = "
        int cublasCreate_v2(void **handle) { *handle = (void *)0x1230; return 0; }
        int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, float *a, void *A, int lda,
                           void *B, int ldb, float *b, void *C, int ldc) { return m > 4000 ? 7 : 0; }
        int cublasDestroy_v2(void *handle) { return 0; }";
    const PROGRAM: &str = "
        int cublasCreate_v2(void **), cublasDestroy_v2(void *);
        int cublasSgemm_v2(void *, int, int, int, int, int, float *, void *, int, void *, int, float *, void *, int);
        int main(void)
        {
            void *h;
            float one = 1;
            cublasCreate_v2(&h);
            for (int i = 0; i < 5; i++)
                cublasSgemm_v2(h, 0, 1, 1000 * (i + 1), 20, 30, &one, 0, 1, 0, 2, &one, 0, 3);
            return cublasDestroy_v2(h);
        }";
    let folder = fixtures::folder();
    let program = compile::with_libraries(folder.path(), &[("libcublas.so.12", LIBRARY)], PROGRAM);
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hooks/cublas.toml");
    let outcome = Run::new(&program).options(&["--hooks", &shown(hooks), "--nested"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    // the other functions of the example are skipped, because this library does not have them
    assert!(outcome.trace.assert_ended().lost.is_empty());
    let products: Vec<_> = named(&outcome.trace, "cublasSgemm_v2").collect();
    let sides = |name: &str| {
        let of = |call: &&Call| call.args.iter().flatten().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        products.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(sides("m"), [1000, 2000, 3000, 4000, 5000].map(Value::Uint));
    assert_eq!(sides("k"), [30; 5].map(Value::Uint));
    let errors: Vec<_> = products.iter().map(|call| call.error.as_deref().unwrap_or("")).collect();
    assert_eq!(errors, ["", "", "", "", "error 7"]);
    assert_eq!(outcome.trace.calls.len(), 7);
}
