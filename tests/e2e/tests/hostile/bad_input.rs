//! Wrong usage, hostile files and full disks: one line that names the problem and what to do, and the right status.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::{Finished, Recording, Run, Talk, bpf_test, fixtures, needs};
use gpuprobe_standin::Cuda;

/// Checks for this status, one line on stderr with all of these words, and nothing on stdout.
fn assert_reported(finished: &Finished, status: i32, says: &[&str]) {
    let stderr = &finished.stderr;
    assert_eq!(finished.status, status, "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    assert!(stderr.starts_with("gpuprobe: "), "{stderr}");
    for words in says {
        assert!(stderr.contains(words), "`{words}` in: {stderr}");
    }
    assert_eq!(finished.stdout, "");
}

/// Checks for a usage error of the command line parser: the reason first, and a hint to the help.
fn assert_usage(finished: &Finished, says: &[&str]) {
    let stderr = &finished.stderr;
    assert_eq!(finished.status, 2, "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains("--help"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for words in says {
        assert!(stderr.contains(words), "`{words}` in: {stderr}");
    }
}

fn said(args: &[&str]) -> Finished {
    finish(&mut gpuprobe(args))
}

/// Starts a daemon that must fail.
fn daemon_on(path: &Path) -> Finished {
    said(&["daemon", "--metrics-addr", "127.0.0.1:0", "-p", &shown(path)])
}

fn traced(folder: &Path, command: &[&str]) -> Finished {
    let trace = shown(folder.join("trace.jsonl"));
    said(&[&["run", "-o", &trace, "--"], command].concat())
}

/// The command runs with any Linux functions, and the trace reports those that cannot be probed.
#[bpf_test]
fn linux_functions_that_cannot_be_probed_are_reported_and_harmless() {
    let folder = fixtures::folder();
    let trace = shown(folder.path().join("trace.jsonl"));
    let run = |glob: &str| said(&["run", &format!("--driver={glob}"), "-v", "-o", &trace, "--", "/bin/true"]);
    let finished = run("no_such_function_*");
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("Linux kernel functions: none, 1 not probed"), "{}", finished.stderr);
    let reported = "no_such_function_*: not probed: the Linux kernel has no such function";
    assert!(finished.stderr.contains(reported), "{}", finished.stderr);
    let text = fs::read_to_string(&trace).unwrap();
    assert!(text.lines().last().unwrap().contains(reported), "{text}");
    assert_reported(&run("["), 1, &["--driver: `[` is not a valid glob"]);
}

#[test]
fn wrong_usage_is_reported_with_status_2() {
    assert_usage(&said(&["run", "--no-such-flag", "true"]), &["--no-such-flag"]);
    assert_usage(&said(&["run"]), &["<COMMAND>"]);
    assert_usage(&said(&["run", "--"]), &["<COMMAND>"]);
    assert_usage(&said(&["no-such-subcommand"]), &["no-such-subcommand"]);
    assert_usage(&said(&["run", "--attach", "magic", "true"]), &["magic", "--attach"]);
    assert_usage(&said(&["run", "--buffer", "0", "true"]), &["--buffer"]);
    assert_usage(&said(&["run", "--max-size", "1000000", "true"]), &["give a unit, such as 1000000B"]);
    assert_usage(&said(&["trace", "--duration", "5x"]), &["such as 10, 10s, 500ms or 2m"]);
    assert_usage(&said(&["daemon", "--metrics-addr", "nonsense"]), &["nonsense", "--metrics-addr"]);
}

#[test]
fn a_number_for_a_file_and_a_name_for_a_process_get_a_hint() {
    assert_usage(&said(&["trace", "-p", "1234"]), &["-d 1234"]);
    assert_usage(&said(&["daemon", "-p", "1234"]), &["-d 1234"]);
    assert_usage(&said(&["trace", "-d", "abc"]), &["pgrep -f abc"]);
    assert_usage(&said(&["trace", "-d", "/lib/libcuda.so.1"]), &["a library goes with -p"]);
    assert_usage(&said(&["record", "-d", "train.py"]), &["pgrep -f train.py"]);
}

#[bpf_test]
fn commands_that_cannot_be_run_are_named_and_leave_no_trace() {
    let folder = fixtures::folder();
    let nothing = folder.path().join("nothing");
    assert_reported(&traced(folder.path(), &[&shown(&nothing)]), 1, &["no such command", &shown(&nothing)]);
    assert_reported(&traced(folder.path(), &["no-such-command-here"]), 1, &["no-such-command-here", "PATH"]);
    assert_reported(&traced(folder.path(), &[""]), 1, &["no such command"]);
    fs::write(&nothing, "text").unwrap();
    assert_reported(&traced(folder.path(), &[&shown(&nothing)]), 1, &[&shown(&nothing), "chmod +x"]);
    assert_reported(
        &traced(folder.path(), &[&shown(folder.path())]),
        1,
        &[&shown(folder.path()), "not an executable"],
    );
    assert!(!folder.path().join("trace.jsonl").exists());
}

#[bpf_test]
fn a_script_without_its_interpreter_is_named() {
    let folder = fixtures::folder();
    let script = folder.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let finished = traced(folder.path(), &[&shown(&script)]);
    assert_eq!(finished.status, 1, "{}", finished.stderr);
    let reported: Vec<_> = finished.stderr.lines().filter(|l| l.starts_with("gpuprobe: ")).collect();
    assert_eq!(reported.len(), 1, "{}", finished.stderr);
    assert!(reported[0].contains("cannot run") && reported[0].contains(&shown(&script)), "{}", reported[0]);
    Recording::read(&folder.path().join("trace.jsonl")).assert_whole();
}

#[test]
fn invalid_globs_and_globs_without_a_match_are_named() {
    for command in [&["run", "-e", "[", "true"][..], &["list", "["]] {
        assert_reported(&said(command), 1, &["`[` is not a valid glob"]);
    }
    assert_reported(&said(&["run", "-e", "vulkan*", "true"]), 1, &["vulkan*", "gpuprobe list"]);
    assert_reported(&said(&["list", "cudamalloc"]), 1, &["cudamalloc", "did you mean", "cudaMalloc"]);
}

#[bpf_test]
fn without_privileges_it_says_what_is_needed() {
    // the binary may be in a folder that other users cannot read
    let folder = fixtures::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("gpuprobe");
    fs::copy(fixtures::gpuprobe(), &copy).unwrap();
    let unprivileged = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(&copy).args(args);
        finish(&mut command)
    };
    let probe = unprivileged(&["--version"]);
    if probe.status != 0 {
        needs::missing("bpf", &format!("setpriv cannot start gpuprobe: {}", probe.stderr));
        return;
    }
    let needed = ["root", "CAP_BPF", "CAP_PERFMON", "sudo"];
    assert_reported(&unprivileged(&["run", "-o", "/dev/null", "true"]), 1, &needed);
    assert_reported(&unprivileged(&["memory", "--", "true"]), 1, &needed);
    assert_reported(&unprivileged(&["daemon", "--metrics-addr", "127.0.0.1:0"]), 1, &needed);
    let doctor = unprivileged(&["doctor"]);
    assert_eq!(doctor.status, 1);
    assert!(doctor.stdout.contains("BAD     capabilities: CAP_BPF"), "{}", doctor.stdout);
    let verdict = doctor.stdout.lines().last().unwrap_or_default();
    assert!(verdict.starts_with("not ready: ") && verdict.contains("capabilities: CAP_BPF"), "{verdict}");
}

#[bpf_test]
fn files_that_are_not_libraries_are_refused_by_the_daemon() {
    let folder = fixtures::folder();
    let file = folder.path().join("libcuda.so.1");
    assert_reported(&daemon_on(&file), 1, &[&shown(&file)]);
    for content in [&b""[..], b"x", b"no ELF at all, only text that goes on for a while\n", b"\x7fELF"] {
        fs::write(&file, content).unwrap();
        assert_reported(&daemon_on(&file), 1, &[&shown(&file)]);
    }
    assert_reported(&daemon_on(folder.path()), 1, &[&shown(folder.path())]);
    assert_reported(&daemon_on(Path::new("/bin/true")), 1, &["/bin/true", "has no CUDA functions"]);
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_reported(&daemon_on(&fifo), 1, &[&shown(&fifo)]);
}

/// The cases of [`broken`] that are accepted: the first segment has no code.
const HARMLESS: [&str; 2] = ["a segment with a huge size", "a segment at a huge offset"];

/// Named ways to break a library: bytes written at an offset, or a length to truncate to.
fn broken(library: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let with = |at: usize, bytes: &[u8]| {
        let mut copy = library.to_vec();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        copy
    };
    let word = |at: usize| u64::from_le_bytes(library[at..at + 8].try_into().unwrap()) as usize;
    let (programs, sections) = (word(0x20), word(0x28));
    let huge = u64::MAX.to_le_bytes();
    let large = (1u64 << 40).to_le_bytes();
    vec![
        ("cut after the header", library[..64].to_vec()),
        ("cut in the program headers", library[..100].to_vec()),
        ("cut in the middle", library[..library.len() / 2].to_vec()),
        ("program headers beyond the file", with(0x20, &large)),
        ("program headers at the end of numbers", with(0x20, &huge)),
        ("section headers beyond the file", with(0x28, &large)),
        ("section headers at the end of numbers", with(0x28, &huge)),
        ("65535 program headers", with(0x38, &[0xff, 0xff])),
        ("65535 section headers", with(0x3c, &[0xff, 0xff])),
        ("odd sizes of headers", with(0x36, &[0xff, 0xff])),
        ("a segment with a huge size", with(programs + 32, &huge)),
        ("a segment at a huge offset", with(programs + 8, &large)),
        ("sections that lie beyond the file", {
            let mut copy = library.to_vec();
            let mut at = sections;
            while at + 64 <= copy.len() {
                copy[at + 24..at + 32].copy_from_slice(&large);
                copy[at + 32..at + 40].copy_from_slice(&huge);
                at += 64;
            }
            copy
        }),
    ]
}

#[bpf_test]
fn truncated_and_hostile_libraries_are_refused_by_the_daemon() {
    let folder = fixtures::folder();
    let library = fs::read(fixtures::standins(Cuda::Cuda12).libcuda).unwrap();
    for (name, content) in broken(&library) {
        println!("{name}");
        let file = folder.path().join("libcuda.so.1");
        fs::write(&file, content).unwrap();
        if HARMLESS.contains(&name) {
            Daemon::start(&file);
        } else {
            assert_reported(&daemon_on(&file), 1, &[&shown(&file), "damaged ELF file"]);
        }
        fs::remove_file(&file).unwrap();
    }
}

#[bpf_test]
fn a_hostile_library_that_a_program_maps_is_reported_in_the_trace() {
    let folder = fixtures::folder();
    let library = fs::read(fixtures::standins(Cuda::Cuda12).libcuda).unwrap();
    let file = folder.path().join("libcuda.so.1");
    // maps it as a library is mapped, then loads another one so that gpuprobe looks at it
    let script = format!(
        "import mmap, ctypes\nf = open({:?}, 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, \
         flags=mmap.MAP_PRIVATE)\nctypes.CDLL('libm.so.6')\nprint(len(m))",
        shown(&file)
    );
    for (name, content) in broken(&library) {
        println!("{name}");
        fs::write(&file, &content).unwrap();
        let outcome = Run::new("python3").args(&["-c", &script]).outcome();
        let stderr = &outcome.finished.stderr;
        assert_eq!(
            (outcome.finished.status, outcome.finished.stdout.trim()),
            (0, &*content.len().to_string())
        );
        assert!(!stderr.contains("panicked"), "{name}: {stderr}");
        let end = outcome.trace.assert_ended();
        assert_eq!((end.calls, end.exit_status), (0, Some(0)), "{name}");
        assert_eq!(end.skipped.len(), usize::from(!HARMLESS.contains(&name)), "{name}: {:?}", end.skipped);
        let reported = |s: &String| s.starts_with(&shown(&file)) && s.contains("damaged ELF file");
        assert!(end.skipped.iter().all(reported), "{name}: {:?}", end.skipped);
        fs::remove_file(&file).unwrap();
    }
}

#[bpf_test]
fn a_trace_that_cannot_be_written_fails_before_the_command_runs() {
    let folder = fixtures::folder();
    let marker = folder.path().join("marker");
    for path in
        [shown(folder.path().join("missing/trace.jsonl")), "/dev/full".to_owned(), shown(folder.path())]
    {
        let finished = said(&["run", "-o", &path, "--", "touch", &shown(&marker)]);
        assert_reported(&finished, 1, &["cannot write the trace", &path, "-o"]);
        assert!(!marker.exists(), "the command ran");
    }
    let finished = said(&["run", "-o", "-", "--", "touch", &shown(&marker)]);
    assert_reported(&finished, 1, &["mixed with the output of the command", "-o"]);
    assert!(!marker.exists() && !Path::new("-").exists(), "the command ran");
}

#[bpf_test]
fn a_missing_process_is_named() {
    // larger than any pid
    let finished = said(&["daemon", "--metrics-addr", "127.0.0.1:0", "-d", "4194305"]);
    assert_reported(&finished, 1, &["4194305"]);
    let doctor = said(&["doctor", "-d", "4194305"]);
    assert_eq!(doctor.status, 1, "{}", doctor.stdout);
    assert!(doctor.stderr.contains("4194305") && !doctor.stderr.contains("panicked"), "{}", doctor.stderr);
}

#[bpf_test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let finished = said(&["daemon", "--metrics-addr", &address]);
    assert_reported(&finished, 1, &["cannot listen on", &address, "--metrics-addr"]);
}

#[test]
fn a_closed_pipe_is_not_reported_as_an_error() {
    let folder = fixtures::folder();
    let said = folder.path().join("said");
    let mut list = gpuprobe(&["list"]);
    list.stdout(Stdio::piped()).stderr(fs::File::create(&said).unwrap());
    let mut child = list.spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&said).unwrap(), "");

    let script = format!("{} list | head -n 2", shown(fixtures::gpuprobe()));
    let finished = finish(Command::new("sh").args(["-c", &script]));
    assert_eq!((finished.status, finished.stdout.lines().count()), (0, 2), "{}", finished.stdout);
    assert_eq!(finished.stderr, "");
}

#[bpf_test]
fn the_name_of_a_library_is_shown_without_its_escapes() {
    let folder = fixtures::folder();
    let red = folder.path().join("\x1b[31m\nred");
    fs::create_dir(&red).unwrap_or_else(|e| panic!("{e}"));
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), &red, &["libcuda.so.1", "hoarder"]);
    let assert_shown = |text: &str, rest: &str| {
        let name = format!("\\u{{1b}}[31m\\nred/libcuda.so.1{rest}");
        assert!(text.contains(&name) && !text.contains('\x1b'), "{name}: {text:?}");
    };
    let mut talk = Talk::start(Command::new(red.join("hoarder")).arg("1"));
    talk.json();
    let doctor = finish(&mut gpuprobe(&["doctor", "-d", &talk.pid().to_string()]));
    assert_shown(&doctor.stdout, " (driver, libcuda.so.1)\n");
    let outcome = Run::new(red.join("hoarder")).options(&["-v"]).args(&["1"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert_shown(&outcome.finished.stderr, ": ");
}
