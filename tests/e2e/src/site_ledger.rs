//! The books that the workloads called `leaks` keep of every place that allocates, against what the metrics of a daemon,
//! `gpuprobe memory` and a trace say of it. What these call things is written here alone.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::metrics::{Daemon, Differences, Metrics};
use crate::process::{PATIENCE, Talk, gpuprobe};
use crate::recording::{Recording, number, pid_of};

/// Bytes that a process holds, by the place that allocated them.
pub const SITE_LIVE_BYTES: &str = "gpuprobe_memory_site_live_bytes";
/// Likewise allocations.
pub const SITE_LIVE_ALLOCATIONS: &str = "gpuprobe_memory_site_live_allocations";
/// The label with the place, and its value for all places that have no series of their own.
pub const SITE: &str = "site";
pub const OTHER: &str = "other";

/// What `gpuprobe memory --json` thinks of a place that leaks.
pub const SUSPECT: &str = "leak_suspect";

/// A place of the books that says nothing of these.
const STRANGE: &str = "in no books";

/// What is held from a place, and what was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Live allocations.
    pub live: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Allocations ever made.
    pub allocations: u64,
    /// Frees ever made.
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

/// A place in the books.
#[derive(Clone, Debug)]
pub struct CallSite {
    /// What the books call it.
    pub name: String,
    /// The beginning of the name of the function that calls CUDA.
    pub function: String,
    /// Where in it, as people read it, without the folder.
    pub at: String,
    /// A function on the way to it that is on no other way.
    pub through: String,
    /// Whether it leaks.
    pub leaks: bool,
    /// What is in the books.
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

    /// Whether a frame, as people read it, is the function that calls CUDA, with its line.
    pub fn is_shown_as(&self, frame: &str) -> bool {
        // behind it may stand who called it, where several places have the same function
        let frame = frame.split(" < ").next().unwrap_or_default();
        let folder = frame.strip_suffix(&self.at);
        is_of(frame, &self.function) && folder.is_some_and(|folder| folder.ends_with(['/', '(']))
    }

    /// Whether a way, innermost first, leads to it.
    fn is_reached_by(&self, stack: &[String]) -> bool {
        let from = stack.iter().position(|frame| self.is_shown_as(frame));
        from.is_some_and(|from| stack[from..].iter().any(|frame| is_of(frame, &self.through)))
    }
}

/// Whether a frame is of a function whose name, with its arguments, begins so.
fn is_of(frame: &str, function: &str) -> bool {
    let of = |frame: &str| {
        let rest = frame.strip_prefix(function);
        rest.is_some_and(|rest| function.ends_with('<') || rest.starts_with(['(', ' ', '+']))
    };
    // templates are demangled with what they return
    of(frame) || frame.split_once(' ').is_some_and(|(_, name)| of(name))
}

/// What a workload printed of all its places.
#[derive(Clone, Debug)]
pub struct SiteLedger {
    /// Its process.
    pub pid: u32,
    /// Its places.
    pub sites: Vec<CallSite>,
}

impl SiteLedger {
    /// Reads them, of a program that was made from this file.
    pub fn of(printed: &Value, file: &str) -> Self {
        let sites = printed["places"].as_array().unwrap_or_else(|| panic!("no places: {printed}"));
        Self { pid: pid_of(printed), sites: sites.iter().map(|site| CallSite::of(site, file)).collect() }
    }

    /// By name, one of the figures of each place that has any.
    pub fn by_name<T: Default + PartialEq>(&self, figure: impl Fn(&Figures) -> T) -> BTreeMap<String, T> {
        let all = self.sites.iter().map(|site| (site.name.clone(), figure(&site.figures)));
        all.filter(|(_, figure)| *figure != T::default()).collect()
    }

    /// The name of the only place that this function and line belong to.
    fn shown_as(&self, frame: &str) -> String {
        let mut found = self.sites.iter().filter(|site| site.is_shown_as(frame));
        found.next().map_or_else(|| format!("{STRANGE}: {frame}"), |site| site.name.clone())
    }

    /// The name of the place that this way leads to.
    fn reached_by(&self, stack: &[String]) -> String {
        let found = self.sites.iter().find(|site| site.is_reached_by(stack));
        found.map_or_else(|| format!("{STRANGE}: {stack:?}"), |site| site.name.clone())
    }
}

/// Waits until the metrics of a daemon say the same of every place. To be called while nothing moves, of books with few
/// enough places that each has a series, and each another function.
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

/// A place as `gpuprobe memory --json` tells it.
#[derive(Clone, Debug)]
pub struct ReportedSite {
    /// The function to show, with its line.
    pub name: String,
    /// All of the way, innermost first.
    pub stack: Vec<String>,
    /// What is thought of it.
    pub verdict: String,
    /// What it holds.
    pub figures: Figures,
}

/// The places of a process in a report, in its order, and what is told of all others together.
pub fn reported(report: &Value, pid: u32) -> (Vec<ReportedSite>, Figures) {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned();
    let list = |value: &Value| value.as_array().unwrap_or_else(|| panic!("no list: {report}")).clone();
    let site = |site: Value| ReportedSite {
        name: text(&site["place"]),
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
    (list(&process["places"]).into_iter().map(site).collect(), other)
}

/// That a report says it is whole.
pub fn assert_complete(report: &Value) {
    assert_eq!((&report["complete"], &report["missing"]), (&Value::Bool(true), &serde_json::json!({})));
}

/// `gpuprobe memory` that tells of everything on the host again and again. It is ended when this goes.
#[derive(Debug)]
pub struct Watching(Talk);

impl Watching {
    /// Starts one and waits for its first report, after which no call is missed.
    pub fn start(options: &[&str]) -> Self {
        let mut command = gpuprobe(&["memory", "--json", "--watch", "--interval", "0.5"]);
        let mut talk = Talk::start(command.args(options));
        talk.json();
        Self(talk)
    }

    /// Waits until it says the same of every place. To be called while nothing moves.
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
            found.compare("places", &by_site, &ledger.by_name(|figures| *figures));
            if found.is_empty() {
                assert_complete(&report);
                return report;
            }
            assert!(start.elapsed() < PATIENCE, "{found:?}\n{report}");
        }
    }
}

/// What a trace says of every place, by the name in the books.
pub fn traced(trace: &Recording, ledger: &SiteLedger) -> BTreeMap<String, Figures> {
    let mut names: HashMap<_, String> = HashMap::new();
    let mut by_site: BTreeMap<String, Figures> = BTreeMap::new();
    // of calls that end at nearly the same time any may have it
    for call in trace.of(ledger.pid) {
        if let Some((site, stack)) = call.effect.site().zip(call.stack.as_ref()) {
            let reported = names.insert(site, ledger.reached_by(stack));
            assert_eq!(reported, None, "the way to site {site} is told twice");
        }
    }
    for call in trace.of(ledger.pid) {
        let Some(site) = call.effect.site() else { continue };
        let name = names.get(&site).unwrap_or_else(|| panic!("no way to site {site} was told: {call:?}"));
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

/// A workload that has not made its first call yet and waits for a line.
pub fn waiting(program: &Path, args: &[&str]) -> (Talk, u32) {
    // there from the beginning, and not from the first call on: who attaches before that knows where to
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
