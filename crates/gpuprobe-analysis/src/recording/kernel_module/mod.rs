//! What was asked of the driver beneath CUDA: commands, and how much of each function's time was spent there.
//!
//! Calls of the kernel are told before the call that they were made in. So what they came to is held under the id of
//! that call until it is told, and then handed on to the one around it.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::driver::is_system_call;
use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, DriverTime, Outcome, Tgid, UnifiedUse};
use serde::Serialize;

use crate::recording::functions::FunctionSummary;
use crate::stats::distribution::{Bucket, Distribution};

/// Commands told apart. The tables of the driver have fewer that programs use; more come only from files.
const MOST_COMMANDS: usize = 1 << 11;
/// Functions told apart.
const MOST_FUNCTIONS: usize = 1 << 13;
/// Pairs of a function and a command.
const MOST_PAIRS: usize = 1 << 16;
/// Calls that are open around others. More are left over by calls that were never told to end.
const MOST_OPEN: usize = 1 << 12;
/// Commands that are told apart in one call: the first of a program uses more than a hundred.
const MOST_IN_CALL: usize = 512;
/// Commands of a function that are told.
const TOP: usize = 3;
/// What all others are called.
const OTHERS: Name = Name::Borrowed("(others)");

/// What was asked of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverSummary {
    /// Functions that entered the driver, those that spent most time there first.
    pub layers: Vec<Layer>,
    /// By command and device, those that took most time first, and after them those that only wait.
    pub commands: Vec<CommandSummary>,
    /// Calls outside of any call of CUDA, without those that only wait.
    pub outside: Spent,
    /// Calls outside of any call of CUDA that only wait: a thread of the driver's own does that.
    pub waited: Spent,
    /// What became of unified memory, by process.
    pub unified: Vec<UnifiedUse>,
}

/// Calls and their time together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// How many.
    pub calls: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// One function, by the layers in which its time was spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// The library family.
    pub api: Api,
    /// The function.
    pub name: Name,
    /// All calls.
    pub calls: u64,
    /// Of these, how many entered the driver.
    pub entered: u64,
    /// Time inside, of all calls that returned.
    pub total_ns: u64,
    /// Of this, what was spent in calls of the kernel, which may have been more than one in a call.
    pub driver: Spent,
    /// The commands that most of that time was spent in.
    pub commands: Vec<CommandShare>,
    /// All others, and those that were not told.
    pub other: Spent,
}

impl Layer {
    /// Time in libraries, above the driver.
    pub fn user_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.driver.ns)
    }
}

/// A part of what a function did in the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandShare {
    /// What was asked.
    pub command: Name,
    /// How often, and how long it took.
    pub spent: Spent,
}

/// What was seen of one command on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandSummary {
    /// What was asked: the command of an ioctl, or what the call is called.
    pub command: Name,
    /// The call of the kernel.
    pub name: Name,
    /// What it was asked of; `None` of a function of the driver.
    pub device: Option<Name>,
    /// What the call is for.
    pub class: Class,
    /// How often.
    pub calls: u64,
    /// Of these, how many failed, by the system's word or by the driver's own.
    pub failures: u64,
    /// Of these, how many were not seen to return, or are over at once.
    pub unfinished: u64,
    /// Time inside.
    pub total_ns: u64,
    /// What half of the calls that returned did not exceed.
    pub p50_ns: Option<u64>,
    /// What all but one in a hundred did not exceed.
    pub p99_ns: Option<u64>,
    /// The shortest; 0 where none returned.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How the times of those that returned are spread.
    pub latency: Vec<Bucket>,
}

impl CommandSummary {
    /// The mean time of the calls that returned.
    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.calls - self.unfinished)
    }

    /// Whether it is a function of the kernel, and no call on a device.
    pub fn is_function(&self) -> bool {
        // a file that could not be opened is no device
        self.device.is_none() && !is_system_call(&self.name)
    }

    /// Whether it only waits for something to happen.
    pub fn waits(&self) -> bool {
        waits(&self.name)
    }
}

impl DriverSummary {
    /// Whether nothing was seen of the driver.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.layers.is_empty() && self.unified.is_empty()
    }

    /// Calls of this name together.
    pub fn calls_of(&self, name: &str) -> Spent {
        self.sum(|command| command.name == name)
    }

    /// Functions of the driver's scheduler, context switches and faults: `None` where none was watched.
    pub fn scheduler(&self) -> Option<Spent> {
        Some(self.sum(|command| command.class == Class::Scheduler)).filter(|spent| spent.calls > 0)
    }

    fn sum(&self, is_meant: impl Fn(&CommandSummary) -> bool) -> Spent {
        let mut sum = Spent::default();
        for command in self.commands.iter().filter(|command| is_meant(command)) {
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

impl From<DriverTime> for Spent {
    fn from(DriverTime { calls, ns }: DriverTime) -> Self {
        Self { calls, ns }
    }
}

fn waits(name: &str) -> bool {
    name == "poll"
}

/// Which row of the commands.
type Row = usize;

/// What was done in the driver in one call that is open.
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

/// Of one function.
#[derive(Clone, Debug, Default)]
struct Entered {
    calls: u64,
    driver: Spent,
    commands: HashMap<Row, Spent>,
}

/// Collects a [`DriverSummary`]. Memory has a bound, whatever a trace says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Driver {
    commands: Vec<(CommandSummary, Distribution)>,
    rows: HashMap<(Name, Option<Name>), Row>,
    functions: HashMap<(Api, Name), Entered>,
    pairs: usize,
    open: HashMap<(Tgid, u64), Inside>,
    outside: Spent,
    waited: Spent,
    pub(crate) unified: Vec<UnifiedUse>,
}

impl Driver {
    /// Takes in a call that is over.
    pub(crate) fn feed(&mut self, call: &Call) {
        // most recordings have nothing of this
        if !call.is_kernel() && self.open.is_empty() && call.driver.is_none() {
            return;
        }
        let inside = self.open.remove(&(call.tgid, call.id));
        if call.is_kernel() {
            // what the driver did in it is a part of it
            return self.kernel(call);
        }
        let told = call.driver.map(Spent::from);
        let Some(driver) = told.or(inside.as_ref().map(|inside| inside.all)) else { return };
        let inside = inside.unwrap_or_default();
        if call.duration_ns().is_some() {
            self.entered(call, driver, &inside);
        }
        if let Some(parent) = call.parent {
            self.around(call.tgid, parent).merge(&inside);
        }
    }

    /// A process has ended, or runs another program.
    pub(crate) fn clear(&mut self, tgid: Tgid) {
        self.open.retain(|(of, _), _| *of != tgid);
    }

    /// What it came to so far; `functions` tells of all calls, also of those that did not enter the driver.
    pub(crate) fn report(&self, functions: &[FunctionSummary]) -> DriverSummary {
        let mut layers: Vec<_> = functions.iter().filter_map(|function| self.layer(function)).collect();
        layers.sort_by(|a, b| {
            let key = |layer: &Layer| (Reverse(layer.driver.ns), Reverse(layer.driver.calls), layer.api);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        let command = |(row, latency): &(CommandSummary, Distribution)| CommandSummary {
            // buckets are coarser than what is known of the shortest and the longest
            p50_ns: latency.quantile(500).map(|ns| ns.clamp(row.min_ns, row.max_ns)),
            p99_ns: latency.quantile(990).map(|ns| ns.clamp(row.min_ns, row.max_ns)),
            latency: latency.buckets().collect(),
            ..row.clone()
        };
        let mut commands: Vec<_> = self.commands.iter().map(command).collect();
        commands.sort_by(|a, b| {
            let key = |row: &CommandSummary| (row.waits(), Reverse(row.total_ns), Reverse(row.calls));
            key(a).cmp(&key(b)).then_with(|| (&a.command, &a.device).cmp(&(&b.command, &b.device)))
        });
        let unified = self.unified.clone();
        DriverSummary { layers, commands, outside: self.outside, waited: self.waited, unified }
    }

    fn layer(&self, function: &FunctionSummary) -> Option<Layer> {
        let entered = self.functions.get(&(function.api, function.name.clone()))?;
        let mut commands: Vec<_> = entered.commands.iter().map(|(row, spent)| (*row, *spent)).collect();
        commands.sort_by_key(|(row, spent)| (Reverse(spent.ns), Reverse(spent.calls), *row));
        commands.truncate(TOP);
        let told = commands.iter().fold(Spent::default(), |mut sum, (_, spent)| {
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
            other: entered.driver.without(told),
            commands: commands.into_iter().map(share).collect(),
        })
    }

    fn kernel(&mut self, call: &Call) {
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
        // it takes no time, and asks nothing of the driver
        if call.outcome == Outcome::Instant {
            return;
        }
        match call.parent {
            Some(parent) => {
                let around = self.around(call.tgid, parent);
                around.all.add(spent);
                around.add(row, spent);
            }
            None if waits(&call.name) => self.waited.add(spent),
            None => self.outside.add(spent),
        }
    }

    fn row(&mut self, call: &Call) -> Row {
        let asked = call.effect.driver_call();
        let command = asked.and_then(|asked| asked.command.as_ref()).unwrap_or(&call.name);
        let mut key = (command.clone(), asked.and_then(|asked| asked.device.clone()));
        if self.commands.len() >= MOST_COMMANDS && !self.rows.contains_key(&key) {
            key = (OTHERS, None);
        }
        *self.rows.entry(key).or_insert_with_key(|(command, device)| {
            let nothing = CommandSummary {
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
            self.commands.push((nothing, Distribution::default()));
            self.commands.len() - 1
        })
    }

    fn around(&mut self, tgid: Tgid, id: u64) -> &mut Inside {
        // whoever is still among so many was never told to end
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
