//! Starts daemons, and reads their metrics with a small client.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{PATIENCE, Talk, gpuprobe, shown, until};

/// The options of a daemon that rescans the host every second.
pub const RESCAN_OPTIONS: [&str; 2] = ["--rescan", "1"];
/// After this time it has rescanned the host at least twice.
pub const RESCANNED: Duration = Duration::from_secs(3);

/// A running daemon. Dropping this ends it.
#[derive(Debug)]
pub struct Daemon {
    pub talk: Talk,
    address: SocketAddr,
}

impl Daemon {
    /// Starts one that watches this library, and waits until its metrics can be read.
    pub fn start(library: &Path) -> Self {
        Self::with(&["-p", &shown(library)])
    }

    /// Starts one with these arguments and a display interval of one second.
    pub fn with(args: &[&str]) -> Self {
        Self::displaying(1, args)
    }

    /// Starts one that rescans the host every second: see [`RESCANNED`].
    pub fn rescanning(args: &[&str]) -> Self {
        Self::with(&[args, &RESCAN_OPTIONS].concat())
    }

    /// Starts one with these arguments and this display interval.
    pub fn displaying(seconds: u32, args: &[&str]) -> Self {
        let interval = format!("--display-interval={seconds}");
        // a refresh interval far shorter than the default
        let mut command =
            gpuprobe(&["daemon", "--metrics-addr", "127.0.0.1:0", "--refresh", "0.2", &interval]);
        Self::of(command.args(args))
    }

    /// Starts this command, which is or executes a daemon, and waits until its metrics can be read.
    pub fn of(command: &mut Command) -> Self {
        let mut talk = Talk::start(command);
        let address = until(PATIENCE, "the daemon prints its address", || {
            let said = talk.stderr();
            let address = said.lines().find_map(|l| l.split("://").nth(1)?.strip_suffix("/metrics"));
            assert!(address.is_some() || !talk.has_exited(), "the daemon ended: {said}");
            Some(address?.parse().unwrap_or_else(|e| panic!("{said}: {e}")))
        });
        Self { talk, address }
    }

    /// The address of its endpoint.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn scrape(&self) -> Metrics {
        self.scrape_as("*/*")
    }

    /// The same, in the format of this `Accept` header.
    pub fn scrape_as(&self, accept: &str) -> Metrics {
        Metrics { text: self.body("/metrics", accept) }
    }

    /// The JSON at this path.
    pub fn json(&self, path: &str) -> Value {
        let body = self.body(path, "*/*");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{body}: {e}"))
    }

    fn body(&self, path: &str, accept: &str) -> String {
        let answer = get(self.address, path, accept);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no body: {answer}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        body.to_owned()
    }

    /// The number of processes counted as late, without those whose libraries are outside of the folder `ours`: other
    /// programs on the machine may be late too. With `-v` the daemon prints a line for each of those.
    pub fn missed(&self, metrics: &Metrics, ours: &Path) -> i64 {
        let ours = shown(ours);
        let said = self.talk.stderr();
        let others = said.lines().filter(|l| l.contains(" functions in ") && !l.contains(&ours)).count();
        let missed =
            ["late_attach", "exited_before_attach"].map(|cause| metrics.lost(cause)).iter().sum::<u64>();
        missed.cast_signed() - others as i64
    }

    /// Scrapes until the condition is true.
    pub fn until(&self, limit: Duration, what: &str, condition: impl Fn(&Metrics) -> bool) -> Metrics {
        until(limit, what, || Some(self.scrape()).filter(|m| condition(m)))
    }

    /// Scrapes until there are no differences, and lists them if that takes longer than `limit`. One scrape is not
    /// enough: a daemon may have read its tables while a program made its last calls.
    pub fn until_equal(&self, limit: Duration, compare: impl Fn(&Metrics, &mut Differences)) -> Metrics {
        let start = Instant::now();
        loop {
            let (metrics, mut found) = (self.scrape(), Differences::default());
            compare(&metrics, &mut found);
            if found.is_empty() {
                return metrics;
            }
            assert!(start.elapsed() < limit, "not so within {limit:?}:\n{}", found.0.join("\n"));
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Differences between the metrics of a daemon and the ledger of a program.
#[derive(Debug, Default)]
pub struct Differences(Vec<String>);

impl Differences {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a line if the values differ.
    pub fn compare<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, reported: &T, ledger: &T) {
        if reported != ledger {
            self.0.push(format!("{what}: daemon {reported:?}, ledger {ledger:?}"));
        }
    }
}

fn get(address: SocketAddr, path: &str, accept: &str) -> String {
    let mut stream =
        TcpStream::connect_timeout(&address, PATIENCE).unwrap_or_else(|e| panic!("{address}: {e}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap_or_else(|e| panic!("{e}"));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|e| panic!("{e}"));
    answer
}

/// One scrape.
#[derive(Debug)]
pub struct Metrics {
    pub text: String,
}

impl Metrics {
    /// The values of a metric for one process, by one of its labels. A process that executed another program has
    /// series under both names; they are added up.
    pub fn by(&self, name: &str, pid: u32, label: &str) -> BTreeMap<String, u64> {
        let pid = pid.to_string();
        let (mut values, mut series) = (BTreeMap::new(), BTreeSet::new());
        for (labels, value) in self.samples(name).filter(|(labels, _)| labels.get("pid") == Some(&pid)) {
            *values.entry(labels.get(label).cloned().unwrap_or_default()).or_default() += value;
            assert!(series.insert(labels.clone()), "a series twice: {name} {labels:?}");
        }
        values
    }

    /// The value of a metric that has one series per process.
    pub fn of(&self, name: &str, pid: u32) -> Option<u64> {
        self.by(name, pid, "pid").into_values().next()
    }

    /// Every process that a metric names.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let pid = |labels: BTreeMap<String, String>| labels.get("pid")?.parse().ok();
        let mut pids: Vec<u32> = self.samples(name).filter_map(|(labels, _)| pid(labels)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The values of a metric for all processes of this name, by another label.
    pub fn of_name(&self, name: &str, process: &str, label: &str) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (labels, n) in self.samples(name).filter(|(l, _)| l["process"] == process) {
            *sums.entry(labels.get(label).cloned().unwrap_or_default()).or_default() += n;
        }
        sums
    }

    /// Calls by function of all processes of this name, including those without series of their own.
    pub fn calls_of_name(&self, process: &str) -> BTreeMap<String, u64> {
        self.of_name("gpuprobe_calls_total", process, "function")
    }

    /// The number of processes of this name with series of their own.
    pub fn processes_of_name(&self, process: &str) -> usize {
        let of_name = self.samples("gpuprobe_calls_total").filter(|(l, _)| l["process"] == process);
        let pids: BTreeSet<_> = of_name.map(|(labels, _)| labels["pid"].clone()).collect();
        pids.iter().filter(|pid| !pid.is_empty()).count()
    }

    pub fn lost(&self, cause: &str) -> u64 {
        let found = self.samples("gpuprobe_events_lost_total").find(|(l, _)| l["cause"] == cause);
        found.unwrap_or_else(|| panic!("no cause {cause}")).1
    }

    /// The series of a metric with their labels. Values that are not integers are skipped.
    pub fn samples<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (BTreeMap<String, String>, u64)> + 'a {
        self.values(name).filter_map(|(labels, value)| Some((labels, value.parse().ok()?)))
    }

    /// The series of a metric with their labels, and the values as they are written.
    pub fn values<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (BTreeMap<String, String>, &'a str)> + 'a {
        self.text.lines().filter_map(move |line| {
            let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
            let mut labels = labels_of(labels).unwrap_or_else(|| panic!("labels: {line}"));
            // omitted in sums over processes
            if labels.contains_key("process") {
                labels.entry("pid".to_owned()).or_default();
            }
            Some((labels, value))
        })
    }
}

/// `name="value",...`, where quotes, backslashes and line ends in a value are escaped by a backslash.
fn labels_of(text: &str) -> Option<BTreeMap<String, String>> {
    let (mut labels, mut rest) = (BTreeMap::new(), text);
    while !rest.is_empty() {
        let (name, behind) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), behind.chars());
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => value.push(chars.next().map(|c| if c == 'n' { '\n' } else { c })?),
                c => value.push(c),
            }
        }
        labels.insert(name.to_owned(), value);
        rest = chars.as_str();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_may_contain_separators() {
        let text = "m{pid=\"7\",site=\"f(int, char) (a.c:3)\"} 5\nm{pid=\"8\",site=\"a\\\"b\\\\} 4\\n\"} 6\n";
        let metrics = Metrics { text: text.to_owned() };
        let sites: Vec<_> = metrics.samples("m").map(|(l, n)| (l["site"].clone(), n)).collect();
        assert_eq!(sites, [("f(int, char) (a.c:3)".to_owned(), 5), ("a\"b\\} 4\n".to_owned(), 6)]);
    }
}
