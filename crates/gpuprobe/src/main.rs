//! gpuprobe: shows what processes do to the NVIDIA GPUs of this host, live.
#![forbid(unsafe_code)]

mod cli;
mod cmd;
mod session;
mod terminal;
mod trace_file;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use gpuprobe_event::HookError;

use crate::cli::{Cli, Command, daemon_settings};
use crate::session::probes::linux_hooks;
use crate::session::signals;
use crate::terminal::notes::note;
use crate::terminal::stdout::Closed;

fn main() -> ExitCode {
    if cfg!(target_feature = "crt-static") {
        gpuprobe_capture::use_builtin_name_services();
    }
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let status = if error.use_stderr() { 2 } else { 0 };
            // if stderr is closed there is no other way to report the error
            drop(error.print());
            return ExitCode::from(status);
        }
    };
    let started = match cli.command {
        // first of all: attaching takes a while
        Some(Command::Run(_) | Command::Record(_) | Command::Demo(_)) => signals::block_quit(),
        _ => Ok(()),
    };
    match started.and_then(|()| linux_hooks::resolve(&mut cli)).and_then(|()| run(cli)) {
        Ok(status) => ExitCode::from(status),
        // like other tools, exit quietly when the reader of stdout closes the pipe
        Err(error) if error.is::<Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            note!("gpuprobe: {error:#}");
            // an error in a hook file is a usage error
            ExitCode::from(if error.is::<HookError>() { 2 } else { 1 })
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Some(Command::Top(args)) => cmd::top::run(&args),
        Some(Command::Run(args)) => cmd::run::run(&args),
        Some(Command::Record(args)) => cmd::record::run(&args),
        Some(Command::Trace(args)) => cmd::trace::run(&args),
        Some(Command::Convert(args)) => cmd::convert::run(&args),
        Some(Command::Report(args)) => cmd::report::run(&args),
        Some(Command::Timeline(args)) => cmd::timeline::run(&args),
        Some(Command::Diff(args)) => cmd::diff::run(&args),
        Some(Command::Memory(args)) => cmd::memory::run(&args),
        Some(Command::Stacks(args)) => cmd::stacks::run(&args),
        Some(Command::Daemon(_)) => daemon(),
        Some(Command::List(args)) => cmd::list::run(&args),
        Some(Command::Doctor(args)) => cmd::doctor::run(&args),
        Some(Command::Demo(args)) => cmd::demo::run(&args),
        Some(Command::Bench(args)) => cmd::bench::run(&args),
        Some(Command::Exec(args)) => cmd::exec::run(&args),
        Some(Command::AttachHelper(args)) => cmd::attach_helper::run(&args),
        Some(Command::FileReader(args)) => cmd::file_reader::run(&args),
        Some(Command::Recorder(args)) => cmd::recorder::run(&args),
        Some(Command::RecordOne(args)) => cmd::recorder::record_one(&args),
        None if std::env::args_os().len() <= 1 => without_arguments(),
        None => daemon(),
    }
}

/// `top` for root at a terminal, like htop; otherwise the help.
fn without_arguments() -> anyhow::Result<u8> {
    let is_at_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if is_at_terminal
        && nix::unistd::geteuid().is_root()
        && let Some(Command::Top(args)) = Cli::try_parse_from(["gpuprobe", "top"])?.command
    {
        return cmd::top::run(&args);
    }
    drop(Cli::command().print_help());
    Ok(2)
}

fn daemon() -> anyhow::Result<u8> {
    cmd::daemon::run(&daemon_settings::read(&std::env::args_os().collect::<Vec<_>>())?)
}
