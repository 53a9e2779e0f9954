//! The examples in the help of each subcommand: a command line, and below it what it is for. A test parses them all.

pub(super) const TOP: &str = "Examples:
  gpuprobe demo                          see it work, without a GPU
  sudo gpuprobe top                      GPUs and their processes, like htop
  sudo gpuprobe run -- python train.py   record its CUDA calls, print a summary
  sudo gpuprobe trace -d PID             CUDA calls as they happen, like strace
  sudo gpuprobe memory -- ./app          live GPU memory by source line; leaks
  sudo gpuprobe stacks                   what a job that hangs waits for
  sudo gpuprobe doctor                   what this machine supports, and lacks";

pub(super) const TOP_AFTER: &str = "`gpuprobe COMMAND --help` shows the options of a command, with examples.
Options without a command are those of the daemon: `gpuprobe daemon --help`.";

pub(super) const LIVE: &str = "Examples:
  sudo gpuprobe top
      this host; ? shows the keys
  sudo gpuprobe top -b -n 2 --sort launch
      two frames as text, for scripts
  gpuprobe top --connect http://node1:9000 --connect http://node2:9000
      two hosts with a daemon, without root";

pub(super) const RUN: &str = "Examples:
  sudo gpuprobe run -- python train.py
      record it, then print a summary
  sudo gpuprobe run --stack -o train.jsonl.zst -- python train.py
      compressed, with the call sites of launches and waits
  sudo gpuprobe run -e 'cudaMemcpy*' -e 'cudaMalloc*' -- ./app
      only these functions";

pub(super) const RECORD: &str = "Examples:
  sudo gpuprobe record -d 1234 --duration 10s
      ten seconds of one process
  sudo gpuprobe record --all --duration 2m -o host.jsonl.zst
      every process of the host
  sudo gpuprobe record -d 1234 -o - | jq 'select(.error)'
      failed calls only";

pub(super) const DIFF: &str = "Examples:
  gpuprobe diff before.jsonl.zst after.jsonl.zst
      what changed, the largest change first
  gpuprobe diff --fail-above 10% before.jsonl.zst after.jsonl.zst
      status 1 if a figure changed by more than 10%
  gpuprobe diff a/node1.jsonl a/node2.jsonl -- b/node1.jsonl b/node2.jsonl
      two jobs on two hosts";

pub(super) const TRACE: &str = "Examples:
  sudo gpuprobe trace -d 1234
      one process
  sudo gpuprobe trace -e 'cudaMemcpy*' --min-duration 1ms
      slow copies of any process
  sudo gpuprobe trace --errors-only --stack
      what fails, and where";

pub(super) const CONVERT: &str = "Examples:
  gpuprobe convert traces/trace_latest.jsonl --to perfetto
      for ui.perfetto.dev
  gpuprobe convert train.jsonl.zst --to folded | flamegraph.pl > flame.svg
      as a flame graph
  gpuprobe convert train.jsonl.zst --to parquet -o train.parquet
      as a table for DuckDB and pandas";

pub(super) const REPORT: &str = "Examples:
  gpuprobe report traces/trace_latest.jsonl
      the summary of the last recording
  gpuprobe report node1.jsonl.zst node2.jsonl.zst node3.jsonl.zst
      one job on three hosts, and the ranks that others wait for
  gpuprobe report train.jsonl.zst --html report.html
      as a page";

pub(super) const TIMELINE: &str = "Examples:
  gpuprobe timeline traces/trace_latest.jsonl
      the whole of the last recording
  gpuprobe timeline train.jsonl.zst --from 1.5s --to 1600ms
      a tenth of a second";

pub(super) const MEMORY: &str = "Examples:
  sudo gpuprobe memory
      ten seconds of the whole host
  sudo gpuprobe memory -d 1234 --watch --interval 5s
      one process, until Ctrl-C
  sudo gpuprobe memory --sites -- ./app
      a command, with whole stacks";

pub(super) const STACKS: &str = "Examples:
  sudo gpuprobe stacks
      every GPU process of the host: which call, which line, stuck or moving
  sudo gpuprobe stacks -d 1234 --all-threads
      every thread of one process
  sudo gpuprobe stacks --json | jq -r '.jobs[].sentence'
      which rank of a job differs

Nothing is stopped, and the processes need no probes and no preparation.";

pub(super) const DAEMON: &str = "Examples:
  sudo gpuprobe daemon
      everything, and metrics
  sudo gpuprobe daemon --memleak --display-interval 10s
      only live memory
  sudo gpuprobe daemon --budget 2% --display-interval 0
      metrics only, at a bounded cost";

pub(super) const LIST: &str = "Examples:
  gpuprobe list 'cudaMalloc*'
      functions of these names
  sudo gpuprobe list --driver 'uvm_*'
      functions of the Linux kernel";

pub(super) const DOCTOR: &str = "Examples:
  sudo gpuprobe doctor
      what this machine supports, and lacks
  sudo gpuprobe doctor --cost --duration 10s
      what watching would cost now
  sudo gpuprobe doctor --support
      an archive for a bug report";

pub(super) const DEMO: &str = "Examples:
  sudo gpuprobe demo
      record a built-in program and print the summary
  sudo gpuprobe demo -o demo.jsonl
      keep the trace";

pub(super) const BENCH: &str = "Examples:
  sudo gpuprobe bench
      every attach tier of this machine
  sudo gpuprobe bench --attach perf --rounds 50
      one attach tier, sooner";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::cli::Cli;

    /// The words of an example up to its comment, its pipe or its redirection.
    fn words_of(line: &str) -> Vec<String> {
        let line = line.trim().trim_start_matches("sudo ");
        let line = line.split("   ").next().unwrap_or(line);
        let line = line.split(' ').take_while(|word| !["|", ">"].contains(word));
        line.map(|word| word.replace("PID", "1").trim_matches('\'').to_owned()).collect()
    }

    #[test]
    fn every_subcommand_has_examples_and_they_are_valid() {
        let mut all = vec![super::TOP.to_owned()];
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let count = help.matches(&format!("gpuprobe {}", command.get_name())).count();
            assert!((2..=3).contains(&count), "{}: {count} examples", command.get_name());
            all.push(help);
        }
        let lines = || all.iter().flat_map(|help| help.lines().skip(1));
        assert!(lines().all(|line| line.len() <= 80), "fits a narrow terminal");
        for line in lines().filter(|line| line.contains("gpuprobe ")) {
            let words = words_of(line);
            let parsed = Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.err().map(|e| e.to_string()).unwrap_or_default());
        }
    }
}
