//! `gpuprobe daemon`: every CUDA process of the host, counted in the kernel.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gpuprobe_analysis::snapshot::KEPT_AFTER_EXIT_NS;
use gpuprobe_analysis::{Inputs, LibraryProbes, ProcessInfo, Snapshot};
use gpuprobe_capture::{Batch, CaptureConfig, Collect};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Class, ProcessChange, Tgid};
use gpuprobe_output::{Classic, Latest, Sections, serve};
use nix::sys::signal::Signal;

use crate::cli::DaemonArgs;
use crate::notes::note;
use crate::probes::{Probes, config};
use crate::select::Selection;
use crate::signals::Signals;
use crate::watch::Watch;

/// How often counters are read and published.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);
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

pub(crate) fn run(args: &DaemonArgs) -> Result<u8> {
    let (sections, classes) = features(args);
    let listener = TcpListener::bind(args.metrics_addr).with_context(|| {
        format!("cannot listen on {}: give another address with --metrics-addr", args.metrics_addr)
    })?;
    let address = listener.local_addr().context("cannot tell the address of the metrics endpoint")?;
    let config = capture_config(args);
    let probes = Probes::new(&config, Selection::Driver(classes), Collect::Count, args.attach.verbose)?;
    let signals = Signals::hold_back()?;
    let mut daemon = Daemon {
        probes,
        signals,
        // before the host is looked at, so that nothing falls between the two
        watch: Watch::start(),
        processes: HashMap::new(),
        latest: Latest::default(),
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
    daemon.publish()?;
    let server = serve(listener, daemon.latest.clone())?;
    note!("gpuprobe: metrics on http://{address}/metrics");
    daemon.until_told(args.display_interval)?;
    drop(server);
    Ok(0)
}

/// Counting sends no records of calls, so the ring for them is as small as it gets.
fn capture_config(args: &DaemonArgs) -> CaptureConfig {
    let only_targets = !args.pids.is_empty();
    CaptureConfig { ring_bytes: 1 << 16, only_targets, ..config(&args.attach) }
}

/// What is shown, and the functions that it takes. With no feature named, everything.
fn features(args: &DaemonArgs) -> (Sections, &'static [Class]) {
    let all = !(args.memleak || args.cudatrace || args.bandwidth_util);
    let sections = Sections {
        memory: all || args.memleak,
        launches: all || args.cudatrace,
        copies: all || args.bandwidth_util,
    };
    let classes: &[Class] = match (args.memleak, args.cudatrace, args.bandwidth_util) {
        (true, false, false) => &[Class::Alloc, Class::Free, Class::HostRegister, Class::HostUnregister],
        (false, true, false) => &[Class::Launch, Class::GraphLaunch],
        (false, false, true) => &[Class::Memcpy, Class::Memset],
        _ => EVERYTHING,
    };
    (sections, classes)
}

struct Daemon {
    probes: Probes,
    signals: Signals,
    watch: Watch,
    processes: HashMap<ProcessKey, ProcessInfo>,
    latest: Latest,
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
            self.probes.capture.wait(&others, SNAPSHOT_EVERY.saturating_sub(published.elapsed()));
            let ends = |s: &Signal| matches!(s, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT);
            if self.signals.take().iter().any(|a| ends(&a.signal)) {
                return Ok(());
            }
            let batch = self.probes.take()?;
            self.take(&batch)?;
            self.watch.look(&mut self.probes);
            if published.elapsed() >= SNAPSHOT_EVERY {
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

    fn take(&mut self, batch: &Batch) -> Result<()> {
        let now_ns = self.probes.capture.clock().elapsed_ns();
        // first calls first: a process that ended in the same moment must not come to life again
        for (key, process) in batch.first_calls.iter().chain(&batch.processes) {
            match process.change {
                ProcessChange::Start => {
                    let info = ProcessInfo {
                        name: process.process.to_string(),
                        ns_pid: process.ns_pid,
                        container: process.container.as_deref().map(str::to_owned),
                        exited_at_ns: None,
                    };
                    self.processes.insert(*key, info);
                }
                // another program runs in this process: what the one before it held is gone
                ProcessChange::Exec => {
                    let before: Vec<_> =
                        self.processes.keys().copied().filter(|k| k.tgid == key.tgid && k != key).collect();
                    for key in before {
                        self.ended(key, now_ns)?;
                    }
                }
                ProcessChange::Exit => self.ended(*key, now_ns)?,
            }
        }
        Ok(())
    }

    fn ended(&mut self, key: ProcessKey, now_ns: u64) -> Result<()> {
        let Some(info) = self.processes.get_mut(&key).filter(|i| i.exited_at_ns.is_none()) else {
            return Ok(());
        };
        info.exited_at_ns = Some(now_ns);
        self.probes.capture.release_memory(key)?;
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        let now_ns = self.probes.capture.clock().elapsed_ns();
        self.forget_old(now_ns)?;
        let capture = &self.probes.capture;
        let mut losses = capture.losses()?;
        self.watch.losses().iter().for_each(|(cause, count)| losses.add(cause, count));
        let libraries: Vec<_> = capture
            .attached()
            .map(|a| LibraryProbes {
                path: a.path.display().to_string(),
                attached: a.functions as u64,
                skipped: a.skipped.len() as u64,
                state: "attached".to_owned(),
            })
            .collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = Snapshot::build(&Inputs {
            calls: &capture.counts()?,
            memory: &capture.memory()?,
            allocations: &capture.allocations()?,
            processes: &self.processes,
            losses: &losses,
            libraries: &libraries,
            now_ns,
            unix_seconds: now.as_secs_f64(),
        });
        self.latest.publish(snapshot);
        Ok(())
    }

    /// Counters stay a while after the end of their process, so that the last scrape sees them.
    fn forget_old(&mut self, now_ns: u64) -> Result<()> {
        let old = |info: &ProcessInfo| info.exited_at_ns.is_some_and(|at| now_ns - at > KEPT_AFTER_EXIT_NS);
        let keys: Vec<_> = self.processes.iter().filter(|(_, info)| old(info)).map(|(key, _)| *key).collect();
        for key in keys {
            self.probes.capture.forget(key)?;
            self.processes.remove(&key);
        }
        Ok(())
    }

    fn display(&mut self) -> Result<()> {
        let text = self.classic.render(&self.latest.get());
        io::stdout().write_all(text.as_bytes()).context("cannot write the display")
    }
}
