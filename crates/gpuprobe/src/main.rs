//! gpuprobe: what any process does to the NVIDIA GPUs of this host, live.
#![forbid(unsafe_code)]

mod budget;
mod builtin;
mod cli;
mod cmd;
mod followed;
mod following;
mod gpus;
mod guard;
mod hooks;
mod kernel;
mod launch;
mod notes;
mod observer;
mod output_file;
mod own;
mod printer;
mod probes;
mod processes;
mod progress;
mod quota;
mod reader;
mod recording;
mod select;
mod settings;
mod signals;
mod skips;
mod states;
mod stdout;
mod stops;
mod supervise;
mod trace_file;
mod trace_input;
mod verification;
mod watch;
mod xids;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use gpuprobe_event::HookError;

use crate::cli::{Cli, Command};
use crate::notes::note;
use crate::stdout::Closed;

fn main() -> ExitCode {
    // a closed pipe ends us as it ends every other tool: quietly
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let status = if error.use_stderr() { 2 } else { 0 };
            // nothing is left to be told when even this cannot be printed
            drop(error.print());
            return ExitCode::from(status);
        }
    };
    let done = kernel::choose(&mut cli).and_then(|()| run(cli));
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) if error.is::<Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            note!("gpuprobe: {error:#}");
            // a file of hooks is part of the command line
            ExitCode::from(if error.is::<HookError>() { 2 } else { 1 })
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Some(Command::Run(args)) => cmd::run::run(&args),
        Some(Command::Record(args)) => cmd::record::run(&args),
        Some(Command::Trace(args)) => cmd::trace::run(&args),
        Some(Command::Convert(args)) => cmd::convert::run(&args),
        Some(Command::Report(args)) => cmd::report::run(&args),
        Some(Command::Timeline(args)) => cmd::timeline::run(&args),
        Some(Command::Memory(args)) => cmd::memory::run(&args),
        Some(Command::Daemon(_)) => daemon(),
        Some(Command::List(args)) => cmd::list::run(&args),
        Some(Command::Doctor(args)) => cmd::doctor::run(&args),
        Some(Command::Demo(args)) => cmd::demo::run(&args),
        Some(Command::Bench(args)) => cmd::bench::run(&args),
        Some(Command::Exec(args)) => cmd::exec::run(&args),
        Some(Command::Guard(args)) => cmd::guard::run(&args),
        Some(Command::Reader(args)) => cmd::reader::run(&args),
        None if std::env::args_os().len() <= 1 => {
            drop(Cli::command().print_help());
            Ok(2)
        }
        None => daemon(),
    }
}

fn daemon() -> anyhow::Result<u8> {
    cmd::daemon::run(&settings::read(&std::env::args_os().collect::<Vec<_>>())?)
}
