//! Requests of a process to the NVIDIA kernel module, by command, as counters that never decrease: a command with a
//! series keeps it, and calls once counted under "other" stay there.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::UnifiedTotals;
use gpuprobe_event::counters::{CommandCounts, CommandTotals, ProcessKey};
use gpuprobe_event::driver::{CommandCode, DeviceKind};
use gpuprobe_event::event::Name;

/// Commands that get a series of their own from the start. A program uses more than a hundred when it starts.
const MOST_AT_FIRST: usize = 24;
/// The limit for commands that rank among the first [`MOST_AT_FIRST`] by time later on.
const MOST_EVER: usize = 48;

/// Commands with a series of their own, and the sum of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSeries {
    /// Sorted by device and name.
    named: Vec<((DeviceKind, Name), CommandTotals)>,
    other: CommandTotals,
    unified: UnifiedTotals,
}

impl CommandSeries {
    /// The commands with a series of their own.
    pub fn named(&self) -> impl Iterator<Item = (DeviceKind, &str, CommandTotals)> {
        self.named.iter().map(|((device, name), totals)| (*device, &**name, *totals))
    }

    /// The sum of all other commands.
    pub fn other(&self) -> CommandTotals {
        self.other
    }

    /// Faults and migrations of unified memory.
    pub fn unified(&self) -> &UnifiedTotals {
        &self.unified
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.other == CommandTotals::default()
    }

    fn add_totals(&mut self, key: (DeviceKind, &Name), more: CommandTotals, is_large: bool) {
        let most = if is_large { MOST_EVER } else { MOST_AT_FIRST };
        match self.named.binary_search_by(|((device, name), _)| (*device, name).cmp(&key)) {
            Ok(at) => self.named[at].1.add(more),
            Err(at) if self.named.len() < most => self.named.insert(at, ((key.0, key.1.clone()), more)),
            Err(_) => self.other.add(more),
        }
    }

    /// Adds the requests of another process.
    pub(crate) fn add(&mut self, more: &Self) {
        for ((device, name), totals) in &more.named {
            self.add_totals((*device, name), *totals, true);
        }
        self.other.add(more.other);
        self.unified.add(&more.unified);
    }
}

/// The requests of one process, updated from its table rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelModuleRequests {
    series: CommandSeries,
    /// The rows as of the last update.
    counted: HashMap<CommandCode, CommandTotals>,
}

impl KernelModuleRequests {
    pub fn series(&self) -> &CommandSeries {
        &self.series
    }

    /// Adds what is new in the rows of the process.
    pub fn update<'a>(&mut self, rows: impl IntoIterator<Item = &'a CommandCounts>) {
        // by command: its total time and what is new. One command can occur in requests of several sizes.
        let mut commands: HashMap<(DeviceKind, &Name), (u64, CommandTotals)> = HashMap::new();
        for row in rows {
            let counted = self.counted.entry(row.code).or_default();
            let (ns, new) = commands.entry((row.code.device, &row.command)).or_default();
            *ns = ns.saturating_add(row.totals.total_ns);
            new.add(row.totals.without(*counted));
            *counted = row.totals;
        }
        let mut commands: Vec<_> = commands.into_iter().collect();
        commands.sort_unstable_by_key(|(key, (ns, _))| (Reverse(*ns), *key));
        for (rank, (key, (_, new))) in commands.into_iter().enumerate() {
            if new != CommandTotals::default() {
                self.series.add_totals(key, new, rank < MOST_AT_FIRST);
            }
        }
    }

    /// Sets the totals of unified memory since the process started.
    pub fn update_unified(&mut self, totals: &UnifiedTotals) {
        self.series.unified = *totals;
    }

    /// Updates for the last time.
    pub(crate) fn finish<'a>(
        mut self,
        rows: impl IntoIterator<Item = &'a CommandCounts>,
        unified: impl IntoIterator<Item = &'a (ProcessKey, UnifiedTotals)>,
    ) -> CommandSeries {
        self.update(rows);
        unified.into_iter().for_each(|(_, totals)| self.update_unified(totals));
        self.series
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Moved, Tgid};

    use super::*;

    fn row(request: u32, calls: u64) -> CommandCounts {
        CommandCounts {
            process: ProcessKey { tgid: Tgid(1), instance: 1 },
            code: CommandCode { device: DeviceKind::Control, request, detail: 0 },
            command: Name::Owned(format!("command {}", request & 0xff)),
            totals: CommandTotals { calls, failures: calls / 2, total_ns: 100 * calls },
        }
    }

    fn calls_of(series: &CommandSeries, command: &str) -> Option<u64> {
        series.named().find(|(_, name, _)| *name == command).map(|(_, _, totals)| totals.calls)
    }

    #[test]
    fn requests_of_two_sizes_are_one_command_and_updates_add_up() {
        let mut requests = KernelModuleRequests::default();
        requests.update(&[row(0x101, 4), row(0x201, 6)]);
        assert_eq!(calls_of(requests.series(), "command 1"), Some(10));
        let series = requests.finish(&[row(0x101, 5), row(0x201, 6)], &[]);
        let (device, _, totals) = series.named().next().unwrap();
        assert_eq!(
            (device, totals.calls, totals.failures, totals.total_ns),
            (DeviceKind::Control, 11, 5, 1100)
        );
        assert!(series.other() == CommandTotals::default() && !series.is_empty());
    }

    #[test]
    fn series_are_bounded_never_decrease_and_sum_to_all_calls() {
        let mut requests = KernelModuleRequests::default();
        let first: Vec<_> = (0..40).map(|i| row(i, u64::from(100 - i))).collect();
        requests.update(&first);
        let before = requests.series().clone();
        assert_eq!(before.named().count(), MOST_AT_FIRST);
        let second: Vec<_> =
            (0..200).map(|i| row(i, if i < 40 { 100 - u64::from(i) } else { 500 })).collect();
        requests.update(&second);
        let after = requests.series();
        assert!(after.named().count() <= MOST_EVER && after.other().calls >= before.other().calls);
        assert!(before.named().all(|(_, name, totals)| calls_of(after, name) == Some(totals.calls)));
        let sum = after.named().map(|(_, _, totals)| totals.calls).sum::<u64>() + after.other().calls;
        assert_eq!(sum, second.iter().map(|row| row.totals.calls).sum::<u64>());
        let mut two = after.clone();
        two.add(after);
        let twice = two.named().map(|(_, _, totals)| totals.calls).sum::<u64>() + two.other().calls;
        assert_eq!(twice, 2 * sum);
    }

    #[test]
    fn unified_memory_totals_are_those_of_the_last_update_and_add_up_over_processes() {
        let key = ProcessKey { tgid: Tgid(1), instance: 1 };
        let totals = |n| UnifiedTotals {
            gpu_faults: n,
            to_gpu: Moved { migrations: n, bytes: 100 * n },
            ..UnifiedTotals::default()
        };
        let mut requests = KernelModuleRequests::default();
        requests.update_unified(&totals(2));
        let mut series = requests.clone().finish(&[], &[]);
        assert_eq!(series.unified(), &totals(2));
        series.add(&requests.finish(&[], &[(key, totals(5))]));
        assert_eq!(series.unified(), &totals(7));
    }
}
