//! `--verify`: compares the figures of a recording with the counters of the BPF programs.

use anyhow::{Result, bail};
use gpuprobe_analysis::SummaryReport;
use gpuprobe_analysis::conformance::{Comparison, EventTotals, Tables, compare};
use gpuprobe_capture::Capture;
use gpuprobe_event::Event;

use crate::terminal::notes::print_stderr;

/// Compares both implementations of the figures of a recording.
#[derive(Debug)]
pub(crate) struct Verification {
    event_counts: EventTotals,
    compared: Vec<Comparison>,
    /// Only some functions are selected.
    is_partial: bool,
}

impl Verification {
    /// For a recording of what these globs select.
    pub(crate) fn new(events: &[String]) -> Self {
        let is_partial = !events.is_empty() && !events.iter().all(|glob| glob == "*");
        Self { event_counts: EventTotals::default(), compared: Vec::new(), is_partial }
    }

    pub(crate) fn feed(&mut self, event: &Event) {
        if let Event::Call(call) = event {
            self.event_counts.feed(call);
        }
    }

    /// Reads the counters after the probes were detached, and compares them with the figures from events.
    pub(crate) fn compare(&mut self, capture: &mut Capture, replayed: &SummaryReport) -> Result<()> {
        let tables = Tables {
            calls: capture.counts()?,
            failures: capture.failures()?,
            memory: capture.memory()?.0,
            sites: capture.sites()?,
            gpu_ops: capture.gpu_ops()?,
        };
        self.compared = compare(&tables, replayed, &self.event_counts, self.is_partial);
        Ok(())
    }

    /// Prints the compared quantities. It is an error if a figure differs.
    pub(crate) fn print(&self) -> Result<()> {
        print_stderr(format_args!("{}", table(&self.compared)));
        let figures: usize = self.compared.iter().map(|one| one.figures).sum();
        match self.compared.iter().map(|one| one.differ).sum() {
            0 => Ok(()),
            differ @ 1.. => bail!(
                "{differ} figures of the recording differ from what the BPF programs counted, {figures} were compared"
            ),
        }
    }
}

fn table(compared: &[Comparison]) -> String {
    let mut out = String::from("\nverified (counted in the kernel = replayed from events)\n");
    for Comparison { quantity, figures, differ, differences, not_compared } in compared {
        if let Some(why) = not_compared {
            out.push_str(&format!("  {quantity:<30}    not compared  {why}\n"));
            continue;
        }
        let result = if *differ == 0 { "equal".to_owned() } else { format!("{differ} differ") };
        out.push_str(&format!("  {quantity:<30} {figures:>6} figures  {result}\n"));
        differences.iter().for_each(|difference| out.push_str(&format!("    {difference}\n")));
    }
    out
}
