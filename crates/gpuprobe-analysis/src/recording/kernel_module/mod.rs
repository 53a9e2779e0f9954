//! Calls into the NVIDIA kernel module: ioctl commands, and the share of each CUDA function's time spent there.
//!
//! A trace records calls as they return, so calls into the kernel module precede the CUDA call that made them. Their
//! times are stored under the id of that call until it is read, and are then added to the call around it.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::driver::is_system_call;
use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, DeviceTime, Outcome, Tgid, UnifiedUse};
use serde::Serialize;

use crate::recording::functions::FunctionSummary;
use crate::stats::distribution::{Bucket, Distribution};

/// Commands with a row of their own. Programs use fewer; the bound is for forged files.
const MOST_COMMANDS: usize = 1 << 11;
const MOST_FUNCTIONS: usize = 1 << 13;
/// Pairs of a function and a command over all functions.
const MOST_PAIRS: usize = 1 << 16;
/// Open calls with calls inside. There are more only if the returns of calls were lost.
const MOST_OPEN: usize = 1 << 12;
/// Commands distinguished in one call. The first call of a program uses more than a hundred.
const MOST_IN_CALL: usize = 512;
/// Commands reported for each function.
const TOP: usize = 3;
/// The name of the row for all other commands.
const OTHERS: Name = Name::Borrowed("(others)");

/// The calls into the NVIDIA kernel module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelModuleSummary {
    /// Functions that called the kernel module, sorted by time there, longest first.
    pub layers: Vec<Layer>,
    /// By command and device, sorted by time, longest first; commands that only wait come last.
    pub commands: Vec<CommandSummary>,
    /// Calls outside of any CUDA call, without those that only wait.
    pub outside: Spent,
    /// Calls outside of any CUDA call that only wait, made by a thread of the CUDA driver.
    pub waited: Spent,
    /// Faults and migrations of unified memory, by process.
    pub unified: Vec<UnifiedUse>,
}

/// A number of calls and their total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    pub calls: u64,
    pub ns: u64,
}

/// The time of one function, split into user space and the kernel module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    pub api: Api,
    /// The function.
    pub name: Name,
    pub calls: u64,
    /// How many of `calls` called the kernel module.
    pub entered: u64,
    /// Time inside all calls that returned.
    pub total_ns: u64,
    /// The part of it spent in calls into the kernel module. One call may make several of these.
    pub driver: Spent,
    /// The commands with the longest times.
    pub commands: Vec<CommandShare>,
    /// All other commands, including those that were not recorded individually.
    pub other: Spent,
}

impl Layer {
    /// Time in user space.
    pub fn user_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.driver.ns)
    }
}

/// One command that a function issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandShare {
    pub command: Name,
    pub spent: Spent,
}

/// The calls of one command on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandSummary {
    /// The command of an ioctl, or the name of the call.
    pub command: Name,
    /// The system call or kernel function.
    pub name: Name,
    /// `None` for a function of the kernel module.
    pub device: Option<Name>,
    pub class: Class,
    pub calls: u64,
    /// How many of `calls` failed, by errno or by the status of the kernel module.
    pub failures: u64,
    /// How many of `calls` were not seen to return, or are instants without a duration.
    pub unfinished: u64,
    pub total_ns: u64,
    /// The median time of the calls that returned.
    pub p50_ns: Option<u64>,
    /// The 99th percentile of their times.
    pub p99_ns: Option<u64>,
    /// The shortest time; 0 if none returned.
    pub min_ns: u64,
    pub max_ns: u64,
    /// Histogram of the times of the calls that returned.
    pub latency: Vec<Bucket>,
}

impl CommandSummary {
    /// The mean time of the calls that returned.
    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.calls - self.unfinished)
    }

    /// Whether it is a function of the Linux kernel or the kernel module, and not a system call on a device.
    pub fn is_function(&self) -> bool {
        // a system call on a file that could not be opened has no device either
        self.device.is_none() && !is_system_call(&self.name)
    }

    /// Whether it only waits for an event.
    pub fn waits(&self) -> bool {
        waits(&self.name)
    }
}

impl KernelModuleSummary {
    /// Whether no call into the kernel module was observed.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.layers.is_empty() && self.unified.is_empty()
    }

    /// The sum of all calls with this name.
    pub fn calls_of(&self, name: &str) -> Spent {
        self.sum(|command| command.name == name)
    }

    /// The sum over functions of the kernel module's scheduler, context switches and faults; `None` if there were none.
    pub fn scheduler(&self) -> Option<Spent> {
        Some(self.sum(|command| command.class == Class::Scheduler)).filter(|spent| spent.calls > 0)
    }

    fn sum(&self, is_included: impl Fn(&CommandSummary) -> bool) -> Spent {
        let mut sum = Spent::default();
        for command in self.commands.iter().filter(|command| is_included(command)) {
            sum.add(Spent { calls: command.calls, ns: command.total_ns });
        }
        sum
    }
}

impl Spent {
    fn add(&mut self, more: Self) {
        self.calls = self.calls.saturating_add(more.calls);
        self.ns = self.ns.saturating_add(more.ns);
    }

    fn without(self, less: Self) -> Self {
        Self { calls: self.calls.saturating_sub(less.calls), ns: self.ns.saturating_sub(less.ns) }
    }
}

impl From<DeviceTime> for Spent {
    fn from(DeviceTime { calls, ns }: DeviceTime) -> Self {
        Self { calls, ns }
    }
}

fn waits(name: &str) -> bool {
    name == "poll"
}

/// An index into `KernelModuleCalls::commands`.
type Row = usize;

/// The calls into the kernel module made by one call that is still open.
#[derive(Clone, Debug, Default)]
struct Inside {
    all: Spent,
    commands: Vec<(Row, Spent)>,
}

impl Inside {
    fn add(&mut self, row: Row, spent: Spent) {
        if let Some((_, sum)) = self.commands.iter_mut().find(|(known, _)| *known == row) {
            sum.add(spent);
        } else if self.commands.len() < MOST_IN_CALL {
            self.commands.push((row, spent));
        }
    }

    fn merge(&mut self, more: &Self) {
        self.all.add(more.all);
        more.commands.iter().for_each(|(row, spent)| self.add(*row, *spent));
    }
}

/// The calls into the kernel module made by one function.
#[derive(Clone, Debug, Default)]
struct Entered {
    calls: u64,
    driver: Spent,
    commands: HashMap<Row, Spent>,
}

/// Collects a [`KernelModuleSummary`] in bounded memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelModuleCalls {
    commands: Vec<(CommandSummary, Distribution)>,
    rows: HashMap<(Name, Option<Name>), Row>,
    functions: HashMap<(Api, Name), Entered>,
    pairs: usize,
    open: HashMap<(Tgid, u64), Inside>,
    outside: Spent,
    waited: Spent,
    pub(crate) unified: Vec<UnifiedUse>,
}

impl KernelModuleCalls {
    pub(crate) fn feed(&mut self, call: &Call) {
        // most recordings have no calls into the kernel module
        if !call.is_in_linux() && self.open.is_empty() && call.driver.is_none() {
            return;
        }
        let inside = self.open.remove(&(call.tgid, call.id));
        if call.is_in_linux() {
            // calls inside it are part of its time and are not added again
            return self.kernel_call(call);
        }
        // the total that the call itself carries is complete, even if records of calls inside it were lost
        let recorded = call.driver.map(Spent::from);
        let Some(driver) = recorded.or(inside.as_ref().map(|inside| inside.all)) else { return };
        let inside = inside.unwrap_or_default();
        if call.duration_ns().is_some() {
            self.entered(call, driver, &inside);
        }
        if let Some(parent) = call.parent {
            self.open_call(call.tgid, parent).merge(&inside);
        }
    }

    /// Forgets a process that exited or runs another program.
    pub(crate) fn clear(&mut self, tgid: Tgid) {
        self.open.retain(|(of, _), _| *of != tgid);
    }

    /// `functions` has all calls, including those that did not call the kernel module.
    pub(crate) fn report(&self, functions: &[FunctionSummary]) -> KernelModuleSummary {
        let mut layers: Vec<_> = functions.iter().filter_map(|function| self.layer(function)).collect();
        layers.sort_by(|a, b| {
            let key = |layer: &Layer| (Reverse(layer.driver.ns), Reverse(layer.driver.calls), layer.api);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        let command = |(row, latency): &(CommandSummary, Distribution)| CommandSummary {
            p50_ns: latency.quantile(500),
            p99_ns: latency.quantile(990),
            latency: latency.buckets().collect(),
            ..row.clone()
        };
        let mut commands: Vec<_> = self.commands.iter().map(command).collect();
        commands.sort_by(|a, b| {
            let key = |row: &CommandSummary| (row.waits(), Reverse(row.total_ns), Reverse(row.calls));
            key(a).cmp(&key(b)).then_with(|| (&a.command, &a.device).cmp(&(&b.command, &b.device)))
        });
        let unified = self.unified.clone();
        KernelModuleSummary { layers, commands, outside: self.outside, waited: self.waited, unified }
    }

    fn layer(&self, function: &FunctionSummary) -> Option<Layer> {
        let entered = self.functions.get(&(function.api, function.name.clone()))?;
        let mut commands: Vec<_> = entered.commands.iter().map(|(row, spent)| (*row, *spent)).collect();
        commands.sort_by_key(|(row, spent)| (Reverse(spent.ns), Reverse(spent.calls), *row));
        commands.truncate(TOP);
        let listed = commands.iter().fold(Spent::default(), |mut sum, (_, spent)| {
            sum.add(*spent);
            sum
        });
        let share = |(row, spent): (Row, Spent)| {
            let command = self.commands.get(row).map_or(OTHERS, |(row, _)| row.command.clone());
            CommandShare { command, spent }
        };
        Some(Layer {
            api: function.api,
            name: function.name.clone(),
            calls: function.calls,
            entered: entered.calls,
            total_ns: function.total_ns,
            driver: entered.driver,
            other: entered.driver.without(listed),
            commands: commands.into_iter().map(share).collect(),
        })
    }

    fn kernel_call(&mut self, call: &Call) {
        let row = self.row(call);
        let spent = Spent { calls: 1, ns: call.duration_ns().unwrap_or(0) };
        if let Some((command, latency)) = self.commands.get_mut(row) {
            let is_first = command.calls == command.unfinished;
            command.calls += 1;
            command.failures += u64::from(call.failed());
            match call.duration_ns() {
                Some(ns) => {
                    command.total_ns = command.total_ns.saturating_add(ns);
                    command.min_ns = if is_first { ns } else { command.min_ns.min(ns) };
                    command.max_ns = command.max_ns.max(ns);
                    latency.add(ns);
                }
                None => command.unfinished += 1,
            }
        }
        // an instant takes no time and is no request to the kernel module
        if call.outcome == Outcome::Instant {
            return;
        }
        match call.parent {
            Some(parent) => {
                let outer = self.open_call(call.tgid, parent);
                outer.all.add(spent);
                outer.add(row, spent);
            }
            None if waits(&call.name) => self.waited.add(spent),
            None => self.outside.add(spent),
        }
    }

    fn row(&mut self, call: &Call) -> Row {
        let request = call.effect.device_syscall();
        let command = request.and_then(|request| request.command.as_ref()).unwrap_or(&call.name);
        let mut key = (command.clone(), request.and_then(|request| request.device.clone()));
        if self.commands.len() >= MOST_COMMANDS && !self.rows.contains_key(&key) {
            key = (OTHERS, None);
        }
        *self.rows.entry(key).or_insert_with_key(|(command, device)| {
            let empty = CommandSummary {
                command: command.clone(),
                name: call.name.clone(),
                device: device.clone(),
                class: call.class,
                calls: 0,
                failures: 0,
                unfinished: 0,
                total_ns: 0,
                p50_ns: None,
                p99_ns: None,
                min_ns: 0,
                max_ns: 0,
                latency: Vec::new(),
            };
            self.commands.push((empty, Distribution::default()));
            self.commands.len() - 1
        })
    }

    fn open_call(&mut self, tgid: Tgid, id: u64) -> &mut Inside {
        // with this many open calls, the returns of most of them were lost
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&(tgid, id)) {
            self.open.clear();
        }
        self.open.entry((tgid, id)).or_default()
    }

    fn entered(&mut self, call: &Call, driver: Spent, inside: &Inside) {
        let key = (call.api, call.name.clone());
        if self.functions.len() >= MOST_FUNCTIONS && !self.functions.contains_key(&key) {
            return;
        }
        let function = self.functions.entry(key).or_default();
        function.calls += 1;
        function.driver.add(driver);
        for (row, spent) in &inside.commands {
            if let Some(sum) = function.commands.get_mut(row) {
                sum.add(*spent);
            } else if self.pairs < MOST_PAIRS {
                self.pairs += 1;
                function.commands.insert(*row, *spent);
            }
        }
    }
}

#[cfg(test)]
mod tests;
