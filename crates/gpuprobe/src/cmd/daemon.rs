//! `gpuprobe daemon`: every CUDA process of the host, counted in the kernel.

mod processes;

use std::io::{self, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gpuprobe_analysis::{Inputs, LibraryProbes, Snapshot};
use gpuprobe_capture::{Capture, CaptureConfig, Collect};
use gpuprobe_event::counters::Allocation;
use gpuprobe_event::{Class, LossCause, Tgid};
use gpuprobe_output::{Classic, Latest, Sections, serve};
use nix::sys::signal::Signal;

use crate::cli::DaemonArgs;
use crate::notes::note;
use crate::probes::Probes;
use crate::select::Selection;
use crate::signals::Signals;
use crate::watch::Watch;
use processes::Processes;

/// The shortest time between two looks, so that a host that starts thousands of processes does not keep us busy.
const REST: Duration = Duration::from_millis(10);

const EVERYTHING: &[Class] = &[
    Class::Alloc,
    Class::Free,
    Class::HostRegister,
    Class::HostUnregister,
    Class::Memcpy,
    Class::Memset,
    Class::Launch,
    Class::GraphLaunch,
    Class::Sync,
    Class::Vmm,
    Class::Context,
    Class::Module,
];
const MEMORY: &[Class] = &[Class::Alloc, Class::Free, Class::HostRegister, Class::HostUnregister, Class::Vmm];
const LAUNCHES: &[Class] = &[Class::Launch, Class::GraphLaunch];
const COPIES: &[Class] = &[Class::Memcpy, Class::Memset];

pub(crate) fn run(args: &DaemonArgs) -> Result<u8> {
    let (sections, classes) = features(args);
    let named = args.memleak || args.cudatrace || args.bandwidth_util;
    let selection = Selection::Driver { classes, named, few: false };
    let listener = TcpListener::bind(args.metrics_addr).with_context(|| {
        format!("cannot listen on {}: give another address with --metrics-addr", args.metrics_addr)
    })?;
    let address = listener.local_addr().context("cannot tell the address of the metrics endpoint")?;
    let config = capture_config(args, sections);
    let probes = Probes::new(&config, selection, Collect::Count, args.verbose)?;
    let signals = Signals::hold_back()?;
    let mut daemon = Daemon {
        probes,
        signals,
        // before the host is looked at, so that nothing falls between the two
        watch: Watch::start(args.rescan),
        refresh: args.refresh,
        processes: Processes::new(args.max_ended),
        latest: Latest::default(),
        shows_memory: sections.memory,
        classic: Classic::new(sections, 0),
    };
    for pid in &args.pids {
        daemon.probes.attach_process(Tgid(*pid))?;
        daemon.probes.capture.add_target(Tgid(*pid))?;
    }
    for path in &args.paths {
        daemon.probes.attach_file(path)?;
    }
    daemon.probes.attach_host();
    if daemon.probes.capture.attached().next().is_none() {
        note!("gpuprobe: no CUDA library found yet: they are probed as processes begin to use them");
    }
    daemon.publish()?;
    let server = serve(listener, daemon.latest.clone())?;
    note!("gpuprobe: metrics on http://{address}/metrics");
    daemon.until_told(args.display_interval)?;
    drop(server);
    Ok(0)
}

fn capture_config(args: &DaemonArgs, sections: Sections) -> CaptureConfig {
    // counting sends no records of calls, so the ring for them is as small as it gets; names of kernels need some room
    let ring_bytes = if sections.launches { 4 << 20 } else { 1 << 16 };
    CaptureConfig {
        tier: args.attach,
        only_targets: !args.pids.is_empty(),
        launches: sections.launches,
        names: sections.launches,
        copies: sections.copies,
        ring_bytes,
        live_entries: args.max_allocations,
        count_entries: args.max_counters,
        process_entries: args.max_processes,
        launch_entries: args.max_kernels,
        ..CaptureConfig::default()
    }
}

/// What is shown, and the functions that it takes. With no feature named, everything.
fn features(args: &DaemonArgs) -> (Sections, Vec<Class>) {
    let named = [(args.memleak, MEMORY), (args.cudatrace, LAUNCHES), (args.bandwidth_util, COPIES)];
    let classes: Vec<Class> =
        named.iter().filter(|(wanted, _)| *wanted).flat_map(|(_, classes)| *classes).copied().collect();
    if classes.is_empty() {
        return (Sections::ALL, EVERYTHING.to_vec());
    }
    let sections = Sections { memory: args.memleak, launches: args.cudatrace, copies: args.bandwidth_util };
    (sections, classes)
}

struct Daemon {
    probes: Probes,
    signals: Signals,
    watch: Watch,
    /// How often counters are read and published.
    refresh: Duration,
    processes: Processes,
    latest: Latest,
    shows_memory: bool,
    classic: Classic,
}

impl Daemon {
    fn until_told(&mut self, display_seconds: u64) -> Result<()> {
        let display_every = Duration::from_secs(display_seconds);
        let start = Instant::now();
        let (mut published, mut displayed) = (start, start);
        loop {
            let mut others = self.watch.fds();
            others.push(self.signals.fd());
            let snapshot_due = self.refresh.saturating_sub(published.elapsed());
            let due = self.processes.due().map_or(snapshot_due, |due| due.min(snapshot_due));
            self.probes.capture.wait(&others, due);
            let ends = |s: &Signal| matches!(s, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT);
            if self.signals.take().iter().any(|a| ends(&a.signal)) {
                return Ok(());
            }
            let batch = self.probes.take()?;
            self.processes.take(&batch, self.probes.capture.clock().elapsed_ns());
            self.processes.settle(&mut self.probes.capture)?;
            self.watch.look(&mut self.probes);
            if published.elapsed() >= self.refresh {
                published = Instant::now();
                self.publish()?;
            }
            if display_seconds > 0 && displayed.elapsed() >= display_every {
                displayed = Instant::now();
                self.display()?;
            }
            std::thread::sleep(REST);
        }
    }

    fn publish(&mut self) -> Result<()> {
        self.processes.forget_old(self.probes.capture.clock().elapsed_ns());
        let snapshot = self.snapshot(&[])?;
        self.latest.publish(snapshot);
        Ok(())
    }

    /// Everything as it stands, with these allocations.
    fn snapshot(&mut self, allocations: &[Allocation]) -> Result<Snapshot> {
        let work = self.probes.capture.work()?;
        let capture = &self.probes.capture;
        let mut losses = capture.losses()?;
        self.watch.losses().iter().for_each(|(cause, count)| losses.add(cause, count));
        losses.add(LossCause::ForgottenEarly, self.processes.ended().forgotten_early());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Snapshot::build(&Inputs {
            calls: &capture.counts()?,
            memory: &capture.memory()?,
            contexts: &capture.contexts()?,
            allocations,
            work: &work,
            processes: self.processes.infos(),
            ended: self.processes.ended(),
            losses: &losses,
            libraries: &libraries(capture),
            skipped: &self.probes.skips.counts(),
            now_ns: capture.clock().elapsed_ns(),
            unix_seconds: now.as_secs_f64(),
        }))
    }

    /// Allocations are read here and nowhere else: there may be a million of them, and metrics need only their sums.
    fn display(&mut self) -> Result<()> {
        let text = if self.shows_memory {
            // those of ended processes would be shown as somebody's
            self.processes.release(&self.probes.capture)?;
            let allocations = self.probes.capture.allocations()?;
            let snapshot = self.snapshot(&allocations)?;
            self.classic.render(&snapshot)
        } else {
            self.classic.render(&self.latest.get())
        };
        io::stdout().write_all(text.as_bytes()).context("cannot write the display")
    }
}

fn libraries(capture: &Capture) -> Vec<LibraryProbes> {
    let library = |a: &gpuprobe_capture::Attached| LibraryProbes {
        path: a.path.display().to_string(),
        attached: a.functions as u64,
        skipped: a.skipped.len() as u64,
        state: "attached".to_owned(),
    };
    capture.attached().map(library).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn of(words: &[&str]) -> (Sections, Vec<Class>) {
        features(&Cli::try_parse_from([&["gpuprobe"], words].concat()).unwrap().daemon)
    }

    #[test]
    fn features_named_together_take_the_functions_of_each_and_no_others() {
        assert_eq!(of(&["-v"]), (Sections::ALL, EVERYTHING.to_vec()));
        let (sections, classes) = of(&["--memleak", "--bandwidth-util"]);
        assert_eq!(sections, Sections { memory: true, launches: false, copies: true });
        assert_eq!(classes, [MEMORY, COPIES].concat());
        assert_eq!(of(&["--cudatrace"]).1, LAUNCHES);
    }
}
