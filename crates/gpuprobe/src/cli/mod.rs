//! The command line: subcommands, options and the daemon's settings file.

mod attach_args;
mod bench_args;
#[cfg(test)]
mod book_pages;
mod convert_args;
mod daemon_args;
pub(crate) mod daemon_settings;
mod diff_args;
mod doctor_args;
mod examples;
mod filter_args;
#[cfg(test)]
mod generated_files;
mod helper_args;
mod layer;
mod memory_args;
mod on_demand_args;
mod otlp_args;
mod record_args;
mod replay_args;
mod stacks_args;
mod summary_args;
mod top_args;
mod trace_args;
mod user_args;
mod value_parsers;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::attach_args::{AttachArgs, DEVICES_ONLY, ResolvedHooks};
pub(crate) use self::bench_args::BenchArgs;
pub(crate) use self::convert_args::ConvertArgs;
pub(crate) use self::daemon_args::{DaemonArgs, NvmlArgs, RESCAN};
pub(crate) use self::diff_args::DiffArgs;
pub(crate) use self::doctor_args::DoctorArgs;
pub(crate) use self::filter_args::FilterArgs;
pub(crate) use self::helper_args::{AttachHelperArgs, ExecArgs, FileReaderArgs, RecordOneArgs, RecorderArgs};
pub(crate) use self::layer::Layer;
pub(crate) use self::memory_args::MemoryArgs;
pub(crate) use self::on_demand_args::OnDemandArgs;
pub(crate) use self::record_args::{GraphTimes, RecordArgs, RecordingArgs, RunArgs};
pub(crate) use self::replay_args::{ReportArgs, TimelineArgs};
pub(crate) use self::stacks_args::{DEFAULT_SAMPLES, StacksArgs};
pub(crate) use self::top_args::TopArgs;
pub(crate) use self::trace_args::TraceArgs;
pub(crate) use self::user_args::UserArgs;
pub(crate) use self::value_parsers::MaxSize;

/// Shows what processes do to the NVIDIA GPUs of this host, live, without changing the processes.
#[derive(Debug, Parser)]
#[command(
    name = "gpuprobe",
    version,
    about,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    // the daemon's options, which its own help shows
    mut_args = |arg| arg.hide(true),
    override_usage = "gpuprobe <COMMAND> [OPTIONS]",
    before_help = examples::TOP,
    after_help = examples::TOP_AFTER
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show GPUs and the processes that use them, live, like htop
    #[command(after_help = examples::LIVE)]
    Top(TopArgs),
    /// Run a command, record its CUDA calls and those of its children, and print a summary
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Record the CUDA calls of processes that already run, then print a summary
    #[command(after_help = examples::RECORD)]
    Record(RecordArgs),
    /// Show CUDA calls as they happen, with arguments, results and durations
    #[command(after_help = examples::TRACE)]
    Trace(TraceArgs),
    /// Convert a trace to a file for Perfetto, chrome://tracing, speedscope or a flame graph
    #[command(after_help = examples::CONVERT)]
    Convert(ConvertArgs),
    /// Print the summary of a recorded trace again, or show it as a page
    #[command(after_help = examples::REPORT)]
    Report(ReportArgs),
    /// Show a recorded trace as rows of characters: what threads did, and operations on streams
    #[command(after_help = examples::TIMELINE)]
    Timeline(TimelineArgs),
    /// Compare two recorded traces: calls, CUDA kernels, bytes and call sites that differ
    #[command(after_help = examples::DIFF)]
    Diff(DiffArgs),
    /// Show live GPU memory by process and source line, and what grows
    #[command(after_help = examples::MEMORY)]
    Memory(MemoryArgs),
    /// Show what the threads of GPU processes wait for, and which of them are stuck
    #[command(after_help = examples::STACKS)]
    Stacks(StacksArgs),
    /// Watch every CUDA process of the host: counts, live memory, metrics
    #[command(after_help = examples::DAEMON)]
    Daemon(Box<DaemonArgs>),
    /// List the functions that can be traced, with their signatures
    #[command(after_help = examples::LIST)]
    List(ListArgs),
    /// Report what this machine supports: Linux kernel, privileges, libraries
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// Run a built-in program under the probes; needs no GPU and no CUDA
    #[command(after_help = examples::DEMO)]
    Demo(DemoArgs),
    /// Measure what probes cost per call on this machine; needs no GPU and no CUDA
    #[command(after_help = examples::BENCH)]
    Bench(BenchArgs),
    #[command(name = "__exec", hide = true)]
    Exec(ExecArgs),
    #[command(name = "__guard", hide = true)]
    AttachHelper(AttachHelperArgs),
    #[command(name = "__reader", hide = true)]
    FileReader(FileReaderArgs),
    #[command(name = "__recorder", hide = true)]
    Recorder(RecorderArgs),
    #[command(name = "__record", hide = true)]
    RecordOne(RecordOneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only matching names, such as 'cudaMalloc*'
    #[arg(value_name = "GLOB")]
    pub(crate) glob: Option<String>,
    /// What `--driver` can probe: calls on the devices of the NVIDIA kernel module and functions of its modules; with a
    /// glob, any function of the Linux kernel
    #[arg(long, alias = "kernel")]
    pub(crate) driver: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) attach: AttachArgs,
    /// Keep the trace in this file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Cli {
        Cli::try_parse_from([&["gpuprobe"], words].concat()).unwrap()
    }

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn words_after_the_command_belong_to_it() {
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
    fn linux_kernel_functions_follow_an_equals_sign() {
        let Some(Command::Run(run)) = parse(&["run", "--driver", "--kernel=uvm_*", "--", "prog"]).command
        else {
            panic!("run")
        };
        assert_eq!(
            (run.recording.attach.driver, run.command),
            (vec![String::new(), "uvm_*".to_owned()], vec!["prog".into()],)
        );
        let Some(Command::Run(run)) = parse(&["run", "--driver", "prog"]).command else { panic!("run") };
        assert_eq!((run.recording.attach.driver.len(), run.command), (1, vec!["prog".into()]));
    }

    #[test]
    fn the_daemons_flags_work_without_a_subcommand() {
        let cli = parse(&["--memleak", "--display-interval", "3", "--metrics-addr", "127.0.0.1:0"]);
        assert!(cli.command.is_none() && cli.daemon.memleak);
        assert_eq!(cli.daemon.display_interval, std::time::Duration::from_secs(3));
    }

    #[test]
    fn only_the_daemons_help_shows_its_options() {
        let top = Cli::command().render_long_help().to_string();
        assert!(!top.contains("--metrics-addr") && top.contains("gpuprobe daemon --help"), "{top}");
        assert!(top.lines().count() <= 40, "{top}");
        let mut command = Cli::command();
        let daemon = command.find_subcommand_mut("daemon").unwrap().render_long_help().to_string();
        assert!(daemon.contains("--metrics-addr <ADDR>"), "{daemon}");
    }

    #[test]
    fn the_daemons_table_sizes_have_limits_and_the_defaults_of_capture() {
        assert_eq!(parse(&["-v"]).daemon.max_exited as usize, gpuprobe_analysis::live::exited::MOST_EXITED);
        let daemon = parse(&["--max-processes", "9", "--max-allocations", "5000000"]).daemon;
        assert_eq!(
            (daemon.max_processes, daemon.max_allocations, daemon.max_counters),
            (9, 5_000_000, 10_240)
        );
        let defaults = gpuprobe_capture::CaptureConfig::default();
        let daemon = parse(&["daemon"]);
        let Some(Command::Daemon(daemon)) = daemon.command else { panic!("daemon") };
        assert_eq!(daemon.rescan, RESCAN);
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
