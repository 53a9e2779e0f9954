//! The command line.

mod attach;
mod bench;
mod budget;
mod convert;
mod doctor;
mod look;
mod record;

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use clap::{Args, Parser, Subcommand};
use gpuprobe_capture::Tier;

pub(crate) use self::attach::AttachArgs;
pub(crate) use self::bench::BenchArgs;
pub(crate) use self::convert::ConvertArgs;
pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::look::{ReportArgs, TimelineArgs};
pub(crate) use self::record::{RecordArgs, RecordingArgs, RunArgs};
use crate::kernel::DEVICES_ALONE;
use crate::watch::RESCAN_SECONDS;

/// What any process does to the NVIDIA GPUs of this host, live, without changing the process.
#[derive(Debug, Parser)]
#[command(
    name = "gpuprobe",
    version,
    about,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    before_help = "Examples:
  gpuprobe demo                              see it work, without a GPU
  sudo gpuprobe run -- python train.py       record a command's CUDA calls, then sum them up
  sudo gpuprobe record -d PID --duration 10  the same of a process that runs already
  gpuprobe convert TRACE --to perfetto       the recording as a picture, on ui.perfetto.dev
  sudo gpuprobe trace -d PID                 its CUDA calls as they happen, like strace
  gpuprobe report traces/trace_latest.jsonl --html report.html
                                             the recording as a page; timeline and convert show it otherwise
  sudo gpuprobe memory -- ./app              which lines hold its GPU memory, and which of them leak
  sudo gpuprobe --memleak                    who holds GPU memory, and metrics on :9000
  sudo gpuprobe doctor                       what this machine can do, and what it lacks
  sudo gpuprobe bench                        what a probe costs per call on this machine"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command, record its CUDA calls and those of its children, and print a summary
    Run(RunArgs),
    /// Record the CUDA calls of what already runs, then print a summary
    Record(RecordArgs),
    /// Show CUDA calls as they happen, with arguments, results and durations
    Trace(TraceArgs),
    /// Turn a trace into a file for Perfetto, chrome://tracing, speedscope or a flame graph
    Convert(ConvertArgs),
    /// Sum up a recorded trace again, or show it as a page
    Report(ReportArgs),
    /// Show a recorded trace as rows of characters: what threads did, and when streams were given work
    Timeline(TimelineArgs),
    /// Who holds GPU memory, from which line of which program, and what grows
    Memory(MemoryArgs),
    /// Watch every CUDA process of the host: counts, live memory, metrics (the same as giving its flags alone)
    Daemon(DaemonArgs),
    /// List the functions that can be traced, with their signatures; those found on this host are marked
    List(ListArgs),
    /// Say what this machine can do: kernel, privileges, libraries
    Doctor(DoctorArgs),
    /// Run a built-in program under the probes; needs no GPU and no CUDA
    Demo(DemoArgs),
    /// Measure what probes cost per call on this machine; needs no GPU and no CUDA
    Bench(BenchArgs),
    #[command(name = "__exec", hide = true)]
    Exec(ExecArgs),
    #[command(name = "__guard", hide = true)]
    Guard(GuardArgs),
    #[command(name = "__reader", hide = true)]
    Reader(ReaderArgs),
}

/// Where the driver tells of the host's GPUs.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct NvmlArgs {
    /// Folder in which the driver lists the host's GPUs; another one where the host's /proc is mounted elsewhere
    #[arg(long, value_name = "DIR", default_value = gpuprobe_discover::DRIVER_FOLDER)]
    pub(crate) driver_folder: PathBuf,
    /// The driver's management library, a name for the loader or a path; `off` reads nothing of GPUs themselves
    #[arg(long, value_name = "LIBRARY", default_value = gpuprobe_capture::NVML_LIBRARY)]
    pub(crate) nvml: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Only this library, or program with CUDA linked in (repeatable); by default all that processes use
    #[arg(short = 'p', long = "path", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Only this process (repeatable); by default every process of the host, also those that begin later
    #[arg(short = 'd', long = "pid", value_name = "PID")]
    pub(crate) pids: Vec<u32>,
    /// With -d: also what these processes fork from now on
    #[arg(long, requires = "pids")]
    pub(crate) children: bool,
    /// Functions to trace (repeatable; `!GLOB` leaves some out; `-e '*'` is all, the hot ones too)
    #[arg(short = 'e', long = "event", value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// No times in front of lines
    #[arg(short = 't', long = "no-time")]
    pub(crate) no_time: bool,
    /// Only that calls begin: no return probes, so neither results nor durations, at two thirds of the cost
    #[arg(short = 'r', long = "entries", conflicts_with_all = ["errors_only", "min_duration"])]
    pub(crate) entries: bool,
    /// The classic form: a line when a call begins and one when it has returned
    #[arg(long)]
    pub(crate) phases: bool,
    /// Also calls made inside other calls, such as the driver's inside the runtime's, indented
    #[arg(long)]
    pub(crate) nested: bool,
    /// JSON lines, as in a trace file
    #[arg(long)]
    pub(crate) json: bool,
    /// Only calls that fail
    #[arg(long, conflicts_with = "phases")]
    pub(crate) errors_only: bool,
    /// Only calls that take at least so long, such as 50us or 1ms
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "phases")]
    pub(crate) min_duration: Option<Duration>,
    /// End after so many calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Every so many seconds, the calls that have not returned yet, with their age
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "entries")]
    pub(crate) pending: Option<Duration>,
    /// Where each call was made from, with lines where debug information is
    #[arg(long)]
    pub(crate) stack: bool,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Only this process, and what it forks (repeatable); by default every process of the host
    #[arg(short = 'd', long = "pid", value_name = "PID", conflicts_with = "command")]
    pub(crate) pids: Vec<u32>,
    /// Also the whole way to each place, from the function that allocated to the one the program began with
    #[arg(long)]
    pub(crate) sites: bool,
    /// Show it again and again, until Ctrl-C or the end of the command
    #[arg(long)]
    pub(crate) watch: bool,
    /// With --watch: seconds from one time to the next
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, requires = "watch")]
    pub(crate) interval: Duration,
    /// End after so many seconds [default: 10, with --watch or a command when these end]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Seconds in which a place may grow before it is judged; it is always at least a quarter of its age
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) warm_up: Duration,
    /// One line of JSON each time
    #[arg(long)]
    pub(crate) json: bool,
    /// Write it here instead of to stdout, which the command may use as well
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
    /// A command to start and to watch to its end
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct DaemonArgs {
    /// Settings: any of these options by its long name, such as `display_interval = 0`; options given here win. Read again
    /// at SIGHUP [default: /etc/gpuprobe/gpuprobe.toml, where it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Memory: allocations, frees, what is live, by process
    #[arg(long)]
    pub(crate) memleak: bool,
    /// Kernel launches
    #[arg(long)]
    pub(crate) cudatrace: bool,
    /// Copies and their bandwidth
    #[arg(long)]
    pub(crate) bandwidth_util: bool,
    /// What is asked of the driver beneath: ioctls on /dev/nvidia* by command, and each function's time in them. Costs
    /// every process of the host some 0.1 us a system call. With a value, also functions of the kernel of these names,
    /// such as 'uvm_*' (repeatable)
    #[arg(long, value_name = "GLOB", num_args = 0..=1, require_equals = true, default_missing_value = DEVICES_ALONE)]
    pub(crate) kernel: Vec<String>,
    /// Address for the metrics endpoint, as HOST:PORT
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9000", value_parser = metrics_addr)]
    pub(crate) metrics_addr: SocketAddr,
    /// TLS and passwords for it: a YAML file in the form that Prometheus's exporters take, read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) web_config: Option<PathBuf>,
    /// Seconds between displays; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) display_interval: u64,
    /// Only this process, and what it forks (repeatable)
    #[arg(short = 'd', long = "pid", value_name = "PID")]
    pub(crate) pids: Vec<u32>,
    /// A library to watch besides those found on the host (repeatable)
    #[arg(short = 'p', long = "path", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Also count the functions that this file names, of any library or of the kernel, and tracepoints (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) hooks: Vec<PathBuf>,
    /// Also count the calls of functions that fit this glob and are not looked at otherwise, such as cudaGetDevice: as
    /// they begin, without times and errors, at two thirds of the cost (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) calls_only: Vec<String>,
    /// Attach by `session`, `multi` or `perf` instead of the best that the kernel has
    #[arg(long, value_name = "TIER")]
    pub(crate) attach: Option<Tier>,
    /// What probes may take of each process's time, such as 2%: functions whose calls cost more are not counted for a while,
    /// but for those that live memory is made of
    #[arg(long, value_name = "PERCENT", value_parser = budget::share, allow_hyphen_values = true)]
    pub(crate) budget: Option<f64>,
    /// Most processes counted at once; each takes 900 bytes of kernel memory, 7 MB by default
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_processes: u32,
    /// Most live allocations of all processes; each takes 16 bytes of kernel memory and 104 more while it is live: 17
    /// to 126 MB by default. A process keeps up to a 256th of them for addresses that it has freed
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = up_to(MOST_ALLOCATIONS))]
    pub(crate) max_allocations: u32,
    /// Most pairs of a process and a function counted at once; each takes 100 bytes of kernel memory and 290 per CPU, 1 MB
    /// and 3 MB per CPU by default
    #[arg(long, value_name = "N", default_value_t = 10_240, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_counters: u32,
    /// Most kernels counted at once, on each stream of each process; each takes 330 bytes of kernel memory and 60 more
    /// while it is counted, 5 MB by default
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_kernels: u32,
    /// Seconds for which a process that has ended keeps metrics of its own, so that the last scrape sees them; after that
    /// what it did is summed up by name
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) keep_ended: Duration,
    /// Most ended processes with metrics of their own, as long as --keep-ended says; what others did is summed up
    /// by name. Each takes some 20 kB of a scrape
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(MOST_ROWS))]
    pub(crate) max_ended: u32,
    /// Seconds between looks at all processes and folders. New libraries are seen at once; these looks let go of what is
    /// not used any more
    #[arg(long, value_name = "SECONDS", default_value_t = RESCAN_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rescan: u64,
    /// Seconds between two readings of the counters; metrics are as old as this at most
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) refresh: Duration,
    #[command(flatten)]
    pub(crate) nvml: NvmlArgs,
    /// Folder in which the kubelet keeps links to the logs of containers: their names tell the pods
    #[arg(long, value_name = "DIR", default_value = gpuprobe_discover::CONTAINER_LOGS)]
    pub(crate) container_logs: PathBuf,
    /// Seconds in which a place in a program may grow before it is suspected of a leak; it is always at least a quarter
    /// of its age
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) warm_up: Duration,
    /// Tell what was found, attached and skipped
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// A time with its unit.
fn span(text: &str) -> Result<Duration, String> {
    let (number, factor) = with_unit(text)?;
    positive(number, factor)
}

/// The same, where none at all is a time as well.
fn moment(text: &str) -> Result<Duration, String> {
    let (number, factor) = with_unit(text)?;
    let moment = number.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n * factor).ok());
    moment.ok_or_else(|| "give a number that is not below 0".to_owned())
}

fn with_unit(text: &str) -> Result<(&str, f64), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err("give a number and a unit, such as 50us, 1ms or 2s".to_owned()),
    };
    Ok((number, factor))
}

fn seconds(text: &str) -> Result<Duration, String> {
    positive(text, 1.0)
}

fn positive(number: &str, factor: f64) -> Result<Duration, String> {
    let duration = number.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n * factor).ok());
    duration.filter(|d| !d.is_zero()).ok_or_else(|| "give a number greater than 0".to_owned())
}

const MOST_ROWS: i64 = 1 << 20;
/// Some twenty minutes.
const MOST_ALLOCATIONS: i64 = 1 << 26;

/// A number of rows.
fn up_to(most: i64) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most)
}

/// An address, or a name and a port; of a name with several addresses, the first.
fn metrics_addr(text: &str) -> Result<SocketAddr, String> {
    let example = "such as 127.0.0.1:9000 or localhost:9000";
    let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        return Err(format!("give a host and a port, {example}"));
    }
    let mut found = text.to_socket_addrs().map_err(|e| format!("{e}: give another, {example}"))?;
    found.next().ok_or_else(|| format!("this name has no address: give another, {example}"))
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only names that fit, such as 'cudaMalloc*'
    #[arg(value_name = "GLOB")]
    pub(crate) glob: Option<String>,
    /// What `--kernel` sees: calls on the driver's devices and functions of its modules; with a glob, any function of the
    /// kernel
    #[arg(long)]
    pub(crate) kernel: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
    /// Keep the trace here
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The limit of open files that the command gets, and how far it may raise it
    #[arg(long, num_args = 2)]
    pub(crate) files: Vec<u64>,
    /// The process that will say when to go on
    pub(crate) parent: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Processes are held: they must be let go when the parent is killed
    #[arg(long)]
    pub(crate) holds: bool,
    /// Probes are put in by perf events
    #[arg(long)]
    pub(crate) perf: bool,
    /// Inherited descriptors: the maps of targets and of answers, and the programs
    pub(crate) files: Vec<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct ReaderArgs {
    /// Processes are held while files are looked at
    #[arg(long)]
    pub(crate) holds: bool,
    /// Start processes that look at files
    #[arg(long)]
    pub(crate) starter: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Cli {
        Cli::try_parse_from([&["gpuprobe"], words].concat()).unwrap()
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_command_is_the_commands() {
        let Some(Command::Run(run)) = parse(&["run", "-e", "*", "--", "prog", "-e", "x", "--help"]).command
        else {
            panic!("run")
        };
        assert_eq!(run.recording.events, ["*"]);
        assert_eq!(run.command, ["prog", "-e", "x", "--help"]);
        let Some(Command::Run(run)) = parse(&["run", "prog", "-v"]).command else { panic!("run") };
        assert_eq!(run.command, ["prog", "-v"]);
        assert!(!run.recording.attach.verbose);
    }

    #[test]
    fn the_kernels_functions_come_behind_an_equals_sign() {
        let Some(Command::Run(run)) = parse(&["run", "--kernel", "--kernel=uvm_*", "--", "prog"]).command
        else {
            panic!("run")
        };
        assert_eq!(
            (run.recording.attach.kernel, run.command),
            (vec![String::new(), "uvm_*".to_owned()], vec!["prog".into()],)
        );
        let Some(Command::Run(run)) = parse(&["run", "--kernel", "prog"]).command else { panic!("run") };
        assert_eq!((run.recording.attach.kernel.len(), run.command), (1, vec!["prog".into()]));
    }

    #[test]
    fn the_daemons_flags_stand_alone() {
        let cli = parse(&["--memleak", "--display-interval", "3", "--metrics-addr", "127.0.0.1:0"]);
        assert!(cli.command.is_none() && cli.daemon.memleak);
        assert_eq!(cli.daemon.display_interval, 3);
    }

    #[test]
    fn the_metrics_address_may_be_a_name() {
        let of = |text: &str| parse(&["--metrics-addr", text]).daemon.metrics_addr;
        assert_eq!(of("[::1]:80"), "[::1]:80".parse().unwrap());
        assert!(of("localhost:9000").ip().is_loopback() && of("localhost:9000").port() == 9000);
        for wrong in ["localhost", ":", "1.2.3.4:65536", "no such host:80", ""] {
            let error = metrics_addr(wrong).unwrap_err();
            assert!(error.contains("127.0.0.1:9000") && error.lines().count() == 1, "{wrong}: {error}");
        }
    }

    #[test]
    fn the_tables_of_a_daemon_have_bounds_and_its_ring_none() {
        assert_eq!(parse(&["-v"]).daemon.max_ended as usize, gpuprobe_analysis::live::exited::MOST_ENDED);
        let daemon = parse(&["--max-processes", "9", "--max-allocations", "5000000"]).daemon;
        assert_eq!(
            (daemon.max_processes, daemon.max_allocations, daemon.max_counters),
            (9, 5_000_000, 10_240)
        );
        let defaults = gpuprobe_capture::CaptureConfig::default();
        let daemon = parse(&["daemon"]);
        let Some(Command::Daemon(daemon)) = daemon.command else { panic!("daemon") };
        assert_eq!(
            (daemon.max_processes, daemon.max_allocations, daemon.max_counters, daemon.max_kernels),
            (
                defaults.process_entries,
                defaults.live_entries,
                defaults.count_entries,
                defaults.launch_entries
            )
        );
        for wrong in [["--max-counters", "0"], ["--max-processes", "x"], ["--buffer", "8"]] {
            assert!(Cli::try_parse_from([&["gpuprobe"], &wrong[..]].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn exclusions_and_wrong_values() {
        let Some(Command::Run(run)) = parse(&["run", "-e", "!cudaFree", "prog"]).command else {
            panic!("run")
        };
        assert_eq!(run.recording.events, ["!cudaFree"]);
        for wrong in [
            &["run"][..],
            &["run", "--nonsense", "x"],
            &["run", "--attach", "magic", "x"],
            &["nonsense"],
            &["--metrics-addr", "x"],
        ] {
            assert!(Cli::try_parse_from([&["gpuprobe"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
