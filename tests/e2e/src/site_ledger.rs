//! Compares the ledger of allocating call sites that the `leaks` workloads print with the metrics of a daemon, with
//! `gpuprobe memory` and with a trace. The names that these use are defined only here.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::metrics::{Daemon, Differences, Metrics};
use crate::process::{PATIENCE, Talk, gpuprobe};
use crate::recording::{Recording, number, pid_of};

/// By process and call site.
pub const SITE_LIVE_BYTES: &str = "gpuprobe_memory_site_live_bytes";
/// By process and call site.
pub const SITE_LIVE_ALLOCATIONS: &str = "gpuprobe_memory_site_live_allocations";
/// The label with the call site, and its value for all call sites without a series of their own.
pub const SITE: &str = "site";
pub const OTHER: &str = "other";

/// The verdict of `gpuprobe memory --json` for a call site that leaks.
pub const SUSPECT: &str = "leak_suspect";

/// The name for a frame that is in no call site of the ledger.
const STRANGE: &str = "in no ledger";

/// Live and total figures of a call site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub live: u64,
    pub live_bytes: u64,
    pub allocations: u64,
    pub frees: u64,
}

impl Figures {
    fn add(&mut self, more: &Self) {
        self.live += more.live;
        self.live_bytes += more.live_bytes;
        self.allocations += more.allocations;
        self.frees += more.frees;
    }
}

/// A call site of the ledger.
#[derive(Clone, Debug)]
pub struct CallSite {
    pub name: String,
    /// The prefix of the name of the function that calls CUDA.
    pub function: String,
    /// File and line, without the folder.
    pub at: String,
    /// A function that is only in the stack of this call site.
    pub through: String,
    pub leaks: bool,
    pub figures: Figures,
}

impl CallSite {
    fn of(value: &Value, file: &str) -> Self {
        let text =
            |field: &str| value[field].as_str().unwrap_or_else(|| panic!("{field}: {value}")).to_owned();
        let figure = |field: &str| number(&value[field]);
        Self {
            name: text("name"),
            function: text("function"),
            at: format!("{file}:{})", figure("line")),
            through: text("through"),
            leaks: value["leaks"] == true,
            figures: Figures {
                live: figure("live"),
                live_bytes: figure("live_bytes"),
                allocations: figure("allocations"),
                frees: figure("frees"),
            },
        }
    }

    /// Whether a symbolized frame is the function that calls CUDA, with its line.
    pub fn is_shown_as(&self, frame: &str) -> bool {
        // the caller may follow, if several call sites have the same function
        let frame = frame.split(" < ").next().unwrap_or_default();
        let folder = frame.strip_suffix(&self.at);
        is_of(frame, &self.function) && folder.is_some_and(|folder| folder.ends_with(['/', '(']))
    }

    /// Whether a stack, innermost frame first, is one of this call site.
    fn is_reached_by(&self, stack: &[String]) -> bool {
        let from = stack.iter().position(|frame| self.is_shown_as(frame));
        from.is_some_and(|from| stack[from..].iter().any(|frame| is_of(frame, &self.through)))
    }
}

/// Whether a frame belongs to a function whose name, with its arguments, begins so.
fn is_of(frame: &str, function: &str) -> bool {
    let of = |frame: &str| {
        let rest = frame.strip_prefix(function);
        rest.is_some_and(|rest| function.ends_with('<') || rest.starts_with(['(', ' ', '+']))
    };
    // templates are demangled with their return type
    of(frame) || frame.split_once(' ').is_some_and(|(_, name)| of(name))
}

/// The ledger that a workload printed.
#[derive(Clone, Debug)]
pub struct SiteLedger {
    pub pid: u32,
    pub sites: Vec<CallSite>,
}

impl SiteLedger {
    /// Parses the output of a program compiled from this file.
    pub fn of(printed: &Value, file: &str) -> Self {
        let sites = printed["call_sites"].as_array().unwrap_or_else(|| panic!("no call sites: {printed}"));
        Self { pid: pid_of(printed), sites: sites.iter().map(|site| CallSite::of(site, file)).collect() }
    }

    /// One of the figures by name of the call site, without zeros.
    pub fn by_name<T: Default + PartialEq>(&self, figure: impl Fn(&Figures) -> T) -> BTreeMap<String, T> {
        let all = self.sites.iter().map(|site| (site.name.clone(), figure(&site.figures)));
        all.filter(|(_, figure)| *figure != T::default()).collect()
    }

    /// The name of the only call site with this function and line.
    fn shown_as(&self, frame: &str) -> String {
        let mut found = self.sites.iter().filter(|site| site.is_shown_as(frame));
        found.next().map_or_else(|| format!("{STRANGE}: {frame}"), |site| site.name.clone())
    }

    /// The name of the call site with this stack.
    fn reached_by(&self, stack: &[String]) -> String {
        let found = self.sites.iter().find(|site| site.is_reached_by(stack));
        found.map_or_else(|| format!("{STRANGE}: {stack:?}"), |site| site.name.clone())
    }
}

/// Waits until the metrics of a daemon equal the ledger for every call site. The program must be paused. The ledger
/// must have so few call sites that each has a series, and each must have another function.
pub fn assert_metrics(daemon: &Daemon, ledger: &SiteLedger) -> Metrics {
    daemon.until_equal(PATIENCE, |metrics, found| {
        let by_site = |metric: &str| {
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for (frame, n) in metrics.by(metric, ledger.pid, SITE) {
                *sums.entry(ledger.shown_as(&frame)).or_default() += n;
            }
            sums.retain(|_, n| *n > 0);
            sums
        };
        found.compare(SITE_LIVE_BYTES, &by_site(SITE_LIVE_BYTES), &ledger.by_name(|f| f.live_bytes));
        found.compare(SITE_LIVE_ALLOCATIONS, &by_site(SITE_LIVE_ALLOCATIONS), &ledger.by_name(|f| f.live));
    })
}

/// A call site in the output of `gpuprobe memory --json`.
#[derive(Clone, Debug)]
pub struct ReportedSite {
    pub name: String,
    /// Innermost frame first.
    pub stack: Vec<String>,
    pub verdict: String,
    pub figures: Figures,
}

/// The call sites of a process in a report, in its order, and the sum of all others.
pub fn reported(report: &Value, pid: u32) -> (Vec<ReportedSite>, Figures) {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned();
    let list = |value: &Value| value.as_array().unwrap_or_else(|| panic!("no list: {report}")).clone();
    let site = |site: Value| ReportedSite {
        name: text(&site["call_site"]),
        stack: list(&site["stack"]).iter().map(text).collect(),
        verdict: text(&site["verdict"]),
        figures: Figures {
            live: number(&site["live_allocations"]),
            live_bytes: number(&site["live_bytes"]),
            allocations: number(&site["allocations"]),
            frees: number(&site["frees"]),
        },
    };
    let processes = list(&report["processes"]);
    let Some(process) = processes.iter().find(|process| process["pid"] == pid) else {
        return Default::default();
    };
    let other = &process["other"];
    let other = Figures {
        live: number(&other["live_allocations"]),
        live_bytes: number(&other["live_bytes"]),
        ..Figures::default()
    };
    (list(&process["call_sites"]).into_iter().map(site).collect(), other)
}

/// Checks that a report is marked as complete.
pub fn assert_complete(report: &Value) {
    assert_eq!((&report["complete"], &report["losses"]), (&Value::Bool(true), &serde_json::json!({})));
}

/// A running `gpuprobe memory --watch` for the whole host. Dropping this ends it.
#[derive(Debug)]
pub struct Watching(Talk);

impl Watching {
    /// Starts one and waits for its first report. No later call is missed.
    pub fn start(options: &[&str]) -> Self {
        let mut command = gpuprobe(&["memory", "--json", "--watch", "--interval", "0.5"]);
        let mut talk = Talk::start(command.args(options));
        talk.json();
        Self(talk)
    }

    /// Waits for a report that `is_wanted`.
    pub fn until(&mut self, what: &str, mut is_wanted: impl FnMut(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let report = self.0.json();
            if is_wanted(&report) {
                return report;
            }
            assert!(start.elapsed() < PATIENCE, "no report with {what}: {report}");
        }
    }

    /// Waits until a report equals the ledger for every call site. The program must be paused.
    pub fn assert_equal(&mut self, ledger: &SiteLedger) -> Value {
        let start = Instant::now();
        loop {
            let report = self.0.json();
            let mut by_site: BTreeMap<String, Figures> = BTreeMap::new();
            for reported in reported(&report, ledger.pid).0 {
                by_site.entry(ledger.reached_by(&reported.stack)).or_default().add(&reported.figures);
            }
            by_site.retain(|_, figures| *figures != Figures::default());
            let mut found = Differences::default();
            found.compare("call sites", &by_site, &ledger.by_name(|figures| *figures));
            if found.is_empty() {
                assert_complete(&report);
                return report;
            }
            assert!(start.elapsed() < PATIENCE, "{found:?}\n{report}");
        }
    }
}

/// The figures of a trace by the names of call sites in the ledger.
pub fn traced(trace: &Recording, ledger: &SiteLedger) -> BTreeMap<String, Figures> {
    let mut names: HashMap<_, String> = HashMap::new();
    let mut by_site: BTreeMap<String, Figures> = BTreeMap::new();
    // of several calls that end at nearly the same time any one may have the stack
    for call in trace.of(ledger.pid) {
        if let Some((site, stack)) = call.effect.site().zip(call.stack.as_ref()) {
            names.entry(site).or_insert_with(|| ledger.reached_by(stack));
        }
    }
    for call in trace.of(ledger.pid) {
        let Some(site) = call.effect.site() else { continue };
        let name =
            names.get(&site).unwrap_or_else(|| panic!("the stack of site {site} is not recorded: {call:?}"));
        let figures = by_site.entry(name.clone()).or_default();
        if let Some(bytes) = call.effect.size() {
            figures.add(&Figures { live: 1, live_bytes: bytes, allocations: 1, frees: 0 });
        }
        if let Some(freed) = call.effect.freed() {
            figures.live -= freed.allocations;
            figures.live_bytes -= freed.bytes;
            figures.frees += freed.allocations;
        }
    }
    by_site
}

/// Starts a workload that waits for a line before its first call.
pub fn waiting(program: &Path, args: &[&str]) -> (Talk, u32) {
    // mapped from the start, and not from the first call: a tracer that attaches before that call finds the library
    let driver = program.with_file_name("libcuda.so.1");
    let mut talk = Talk::start(Command::new(program).arg("--wait").args(args).env("LD_PRELOAD", driver));
    let pid = pid_of(&talk.json());
    (talk, pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_of_a_function_by_its_whole_name() {
        for frame in ["leaf<1>(int) (a.cpp:3)", "void leaf<1>(int) (a.cpp:3)", "leaf<1>+0x10 (a)"] {
            assert!(is_of(frame, "leaf<1>") && is_of(frame, "leaf<"), "{frame}");
        }
        for frame in
            ["leaf<12>(int) (a.cpp:3)", "over::leaf<1>(int) (a.cpp:3)", "leaf<1>::operator() (a.cpp:3)"]
        {
            assert!(!is_of(frame, "leaf<1>"), "{frame}");
        }
    }
}
