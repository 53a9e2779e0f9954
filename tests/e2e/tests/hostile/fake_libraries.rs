//! Fake files named libcuda, mapped by a process in its own mount namespace: nothing hangs, very little is read, and
//! each is counted once, by its reason.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Metrics, RESCANNED};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown};
use gpuprobe_e2e::{Run, Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// Anything that hangs on a fake library hangs forever.
const SOON: Duration = Duration::from_secs(20);
/// Far more than it reads of tables and /proc, far less than the smallest file that must not be read.
const MOST_READ: u64 = 512 << 20;

type Reasons = BTreeMap<String, u64>;

/// The folder of the hostile file: it exists on every host, under mounts that only the process sees.
const FOLDER: &str = "/usr/local/lib";

/// Maps the file as code, even an empty one, then changes its name, prints a line and waits for one.
const MAPPER: &str = "
import ctypes, os, sys
path, after = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
fd = os.open(path, os.O_RDONLY)
read_and_execute, private = 5, 2
assert libc.mmap(None, 4096, read_and_execute, private, fd, 0) not in (None, 2**64 - 1)
os.close(fd)
exec(after)
print('mapped', flush=True)
sys.stdin.readline()
";

/// One hostile file: the shell command that makes it, what Python does after mapping it, and the reason it is counted
/// under.
struct Hostile {
    make: &'static str,
    after: &'static str,
    reason: &'static str,
}

const HOSTILE: [Hostile; 8] = [
    Hostile { make: "truncate -s 10G $f", after: "", reason: "not_elf" },
    Hostile { make: ": > $f", after: "", reason: "not_elf" },
    Hostile { make: "truncate -s 64K $f", after: "os.truncate(path, 0)", reason: "not_elf" },
    Hostile { make: "echo text > $f", after: "os.remove(path); os.mkfifo(path)", reason: "not_elf" },
    Hostile { make: "echo text > $f", after: "os.remove(path); os.symlink(path, path)", reason: "not_elf" },
    Hostile { make: "echo text > $f", after: "os.remove(path); os.mkdir(path)", reason: "not_elf" },
    Hostile { make: "head -c 5000 $real > $f", after: "", reason: "damaged" },
    Hostile { make: "cp /bin/true $f", after: "", reason: "no_functions" },
];

impl Hostile {
    /// The shell command that makes the file in its own mounts and then runs this.
    fn script(&self, then: &str) -> String {
        let real = shown(fixtures::standins(Cuda::Cuda12).libcuda);
        let make = self.make;
        format!("real={real}; mount -t tmpfs tmpfs {FOLDER} && f={FOLDER}/libcuda.so.1 && {make} && {then}")
    }

    fn mapped(&self) -> Talk {
        let script = self.script("exec python3 -c \"$1\" $f \"$2\"");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, "sh", MAPPER, self.after]);
        let mut talk = Talk::start(&mut command);
        assert_eq!(talk.line(), "mapped", "{}: {}", self.make, talk.stderr());
        talk
    }
}

fn reasons(metrics: &Metrics) -> Reasons {
    let all = metrics.samples("gpuprobe_libraries_skipped_total");
    all.filter(|(_, n)| *n > 0).map(|(labels, n)| (labels["reason"].clone(), n)).collect()
}

/// The bytes that a process has read by system calls.
fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_else(|e| panic!("{e}"));
    let count = io.lines().find_map(|l| l.strip_prefix("rchar: ")?.parse().ok());
    count.unwrap_or_else(|| panic!("{io}"))
}

#[bpf_test(alone)]
fn a_fake_library_in_a_container_is_counted_once_by_the_daemon() {
    let daemon = Daemon::rescanning(&[]);
    let mut expected = reasons(&daemon.scrape());
    let before = bytes_read(daemon.talk.pid());
    let mut all: Vec<Talk> = HOSTILE.iter().map(Hostile::mapped).collect();
    for hostile in &HOSTILE {
        *expected.entry(hostile.reason.to_owned()).or_default() += 1;
    }
    daemon.until(PATIENCE, "each is counted by its reason", |m| reasons(m) == expected);
    // a rescan finds them all again, and counts none of them twice
    let start = Instant::now();
    while start.elapsed() < RESCANNED {
        let asked = Instant::now();
        assert_eq!(reasons(&daemon.scrape()), expected);
        assert!(asked.elapsed() < SOON, "a scrape took {:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    let read = bytes_read(daemon.talk.pid()) - before;
    assert!(read < MOST_READ, "{read} bytes");
    for talk in &mut all {
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
    }
}

#[bpf_test(alone)]
fn a_real_library_replaced_after_it_was_mapped_is_probed() {
    let daemon = Daemon::rescanning(&[]);
    let expected = reasons(&daemon.scrape());
    let path = format!("{FOLDER}/libcuda.so.1");
    let attached = |m: &Metrics| {
        m.samples("gpuprobe_probes").filter(|(l, n)| l["library"] == path && *n > 0).count() as u64
    };
    for after in ["os.remove(path); os.mkfifo(path)", "os.remove(path); os.symlink(path, path)"] {
        let hostile = Hostile { make: "cp $real $f", after, reason: "" };
        let mut talk = hostile.mapped();
        let metrics = daemon.until(PATIENCE, "it is probed", |m| attached(m) == 1);
        assert_eq!(reasons(&metrics), expected, "{after}");
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
        daemon.until(PATIENCE, "it is let go", |m| attached(m) == 0);
    }
}

// daemons of the other tests would count these too
#[bpf_test(alone)]
fn a_fake_library_is_reported_by_run_and_by_doctor() {
    let words = BTreeMap::from([
        ("not_elf", "not an ELF file"),
        ("damaged", "damaged ELF file"),
        ("no_functions", "none of its functions"),
    ]);
    for hostile in &HOSTILE {
        let reported = |lines: &[String]| {
            let ours = format!("{FOLDER}/libcuda.so.1");
            let ours: Vec<_> = lines.iter().filter(|l| l.contains(&ours)).collect();
            assert_eq!(ours.len(), 1, "{}: {lines:?}", hostile.make);
            assert!(ours[0].contains(words[hostile.reason]), "{}: {ours:?}", hostile.make);
        };
        // loading another library triggers the dynamic loader's hook, so that gpuprobe looks
        let mapper = MAPPER.replace("print('mapped', flush=True)", "ctypes.CDLL('libm.so.6'); sys.exit(7)");
        let script = hostile.script("exec python3 -c \"$1\" $f \"$2\"");
        let args = ["-m", "sh", "-c", &script, "sh", &mapper, hostile.after];
        let outcome = Run::new("unshare").args(&args).outcome();
        assert_eq!(outcome.finished.status, 7, "{}: {}", hostile.make, outcome.finished.stderr);
        reported(&outcome.trace.assert_ended().skipped);

        let mut talk = hostile.mapped();
        let doctor = finish(&mut gpuprobe(&["doctor", "-d", &talk.pid().to_string()]));
        assert!(doctor.took < SOON, "{:?}", doctor.took);
        reported(&doctor.stdout.lines().map(str::to_owned).collect::<Vec<_>>());
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
    }
}

#[bpf_test(alone)]
fn too_many_libraries_are_counted_and_make_room_when_they_are_unmapped() {
    const MOST: usize = 256;
    let folder = fixtures::folder();
    let source = folder.path().join("tiny.c");
    fs::write(&source, "int cuMemAlloc_v2(void) { return 0; }").unwrap_or_else(|e| panic!("{e}"));
    let tiny = folder.path().join("tiny.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&tiny).arg(&source).status();
    assert!(compiled.is_ok_and(|status| status.success()));
    let copy = |name: usize| {
        let own = folder.path().join(name.to_string());
        fs::create_dir(&own).unwrap_or_else(|e| panic!("{e}"));
        fs::copy(&tiny, own.join("libcuda.so.1")).unwrap_or_else(|e| panic!("{e}"));
        shown(own.join("libcuda.so.1"))
    };
    let mapped = |paths: &[String]| {
        let mut talk = Talk::start(Command::new("python3").args(["-c", fixtures::MAP_ALL]).args(paths));
        assert_eq!(talk.line(), "mapped", "{}", talk.stderr());
        talk
    };
    let daemon = Daemon::rescanning(&["-v"]);
    let probed = |m: &Metrics, below: &str| {
        let attached = m.samples("gpuprobe_probes").filter(|(l, _)| l["state"] == "attached");
        attached.filter(|(l, _)| l["library"].starts_with(below)).count()
    };
    let mut all = mapped(&(0..MOST + 10).map(copy).collect::<Vec<_>>());
    let too_many = |m: &Metrics| reasons(m).get("too_many").copied().unwrap_or(0);
    let full = |m: &Metrics| too_many(m) >= 10 && probed(m, "") == MOST;
    daemon.until(PATIENCE, "some find no room", full);
    std::thread::sleep(RESCANNED);
    // libraries of other programs on the machine may use some of the room
    let ours = shown(folder.path());
    let reported = format!("gpuprobe: skipped {ours}/");
    let reported = daemon.talk.stderr().lines().filter(|l| l.starts_with(&reported)).count();
    assert_eq!(reported, MOST + 10 - probed(&daemon.scrape(), &ours), "each of them once");
    all.go_on();
    assert_eq!(all.end(), 0, "{}", all.stderr());
    let new = copy(MOST + 10);
    let _new = mapped(std::slice::from_ref(&new));
    daemon.until(PATIENCE, "there is room again", |m| probed(m, &new) == 1);
}

/// In a folder that is searched for libraries even if no process has mapped them, and named by `-p`: files that
/// cannot be mapped are only found there.
const SPECIAL_FILES: &str = "mount -t tmpfs tmpfs /opt && mkdir -p /opt/x/lib && cd /opt/x/lib && mkfifo libcuda.so.1 && \
                      mkdir libcuda.so.2 && ln -s libcuda.so.3 libcuda.so.3 && truncate -s 10G libcuda.so.4 && \
                      : > libcuda.so.5 && ln -s /dev/zero libcuda.so.6 && ln -s /nowhere libcuda.so.7";

#[bpf_test(alone)]
fn fifos_and_devices_named_as_libraries_are_reported_and_not_opened() {
    let within = |then: &str| {
        let mut command = Command::new("unshare");
        let script = format!("{SPECIAL_FILES} && {then}");
        command.args(["-m", "sh", "-c", &script, "sh"]).arg(fixtures::gpuprobe());
        command
    };
    let host = finish(&mut gpuprobe(&["doctor"])).stdout.lines().filter(|l| l.starts_with("SKIPPED")).count();
    let doctor = finish(&mut within("exec \"$1\" doctor"));
    let skipped: Vec<_> = doctor.stdout.lines().filter(|l| l.contains("/opt/x/lib/")).collect();
    let expected = [
        "1: a pipe, not a regular file",
        "2: a folder, not a regular file",
        "3: cannot be opened: Too many levels of symbolic links (os error 40)",
        "4: not an ELF file",
        "5: not an ELF file",
        "6: a device, not a regular file",
    ];
    assert_eq!(skipped, expected.map(|e| format!("SKIPPED /opt/x/lib/libcuda.so.{e}")), "{}", doctor.stderr);
    assert!(doctor.took < SOON, "{:?}", doctor.took);

    let mut daemon = within("exec \"$1\" daemon --metrics-addr 127.0.0.1:0 --display-interval 1");
    let daemon = Daemon::of(&mut daemon);
    let counted = reasons(&daemon.scrape());
    assert_eq!(counted.values().sum::<u64>(), (host + expected.len()) as u64, "{counted:?}");
    let ours = [("not_regular", 3), ("unreadable", 1), ("not_elf", 2)];
    assert!(ours.iter().all(|(reason, n)| counted.get(*reason) >= Some(n)), "{counted:?}");
    let read = bytes_read(daemon.talk.pid());
    assert!(read < MOST_READ, "{read} bytes");

    for number in 1..=7 {
        let one = format!("exec \"$1\" daemon --metrics-addr 127.0.0.1:0 -p libcuda.so.{number}");
        let refused = finish(&mut within(&one));
        assert_eq!(refused.status, 1, "{number}: {}", refused.stderr);
        assert!(refused.took < SOON, "{number}: {:?}", refused.took);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
}
