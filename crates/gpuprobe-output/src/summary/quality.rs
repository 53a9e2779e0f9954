//! Which figures of a summary are incomplete because something was lost or not probed, and which are estimates.

use gpuprobe_analysis::SummaryReport;
use gpuprobe_event::{Class, Figures};

use crate::sampled::recorded_mark_of_classes;

/// What the heading of figures says about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quality {
    #[default]
    Exact,
    /// Functions were sampled because of a budget.
    Estimated,
    /// Something was lost or not probed.
    Incomplete,
}

/// Groups of figures that are made of the same data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Qualities {
    /// All calls together. A row of a single function has a mark of its own.
    pub(super) calls: Quality,
    pub(super) launches: Quality,
    pub(super) copies: Quality,
    /// Launches, copies, waits and gaps together.
    pub(super) gpu_ops: Quality,
    pub(super) memory: Quality,
    pub(super) memory_by_site: Quality,
    pub(super) gpu_time: Quality,
}

impl Qualities {
    pub(super) fn of(report: &SummaryReport) -> Self {
        const LAUNCHES: [Class; 2] = [Class::Launch, Class::GraphLaunch];
        const COPIES: [Class; 2] = [Class::Memcpy, Class::Memset];
        let any = |figures: Figures| {
            report.losses.iter().any(|loss| loss.count > 0 && loss.cause.affects().contains(&figures))
        };
        let is_skipped = !report.skipped.is_empty();
        let incomplete = |is_incomplete: bool| match is_incomplete || is_skipped {
            true => Quality::Incomplete,
            false => Quality::Exact,
        };
        let sampled = |classes: &[Class]| match recorded_mark_of_classes(&report.sampled, classes) {
            "" => Quality::Exact,
            _ => Quality::Estimated,
        };
        let calls = any(Figures::Events);
        let gpu_ops = incomplete(calls || any(Figures::GpuOps));
        // live memory is never sampled
        let memory = any(Figures::Memory) || calls && !report.memory_from_tables;
        Self {
            calls: incomplete(calls).max(sampled(&[])),
            launches: gpu_ops.max(sampled(&LAUNCHES)),
            copies: gpu_ops.max(sampled(&COPIES)),
            gpu_ops: gpu_ops.max(sampled(&[&LAUNCHES[..], &COPIES, &[Class::Sync]].concat())),
            memory: incomplete(memory),
            memory_by_site: incomplete(memory || any(Figures::MemoryBySite)),
            gpu_time: match any(Figures::GpuTime) {
                true => Quality::Incomplete,
                false => Quality::Exact,
            },
        }
    }
}

/// A heading, marked if its figures are incomplete or estimates.
pub(super) fn marked(heading: &str, quality: Quality) -> String {
    let mark = match quality {
        Quality::Exact => "",
        Quality::Estimated => " (~ estimated)",
        Quality::Incomplete => " (incomplete)",
    };
    format!("{heading}{mark}")
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::LossCount;
    use gpuprobe_event::trace::SampledCalls;
    use gpuprobe_event::{Api, LossCause};

    use super::Quality::{Estimated, Exact, Incomplete};
    use super::*;

    fn of(cause: LossCause, memory_from_tables: bool) -> Qualities {
        let losses = vec![LossCount { cause, count: 1 }];
        Qualities::of(&SummaryReport { losses, memory_from_tables, ..SummaryReport::default() })
    }

    #[test]
    fn lost_records_affect_everything_except_memory_counted_in_bpf() {
        let counted = of(LossCause::RingFull, true);
        assert_eq!(
            (counted.calls, counted.gpu_ops, counted.memory, counted.memory_by_site),
            (Incomplete, Incomplete, Exact, Exact)
        );
        assert_eq!(of(LossCause::RingFull, false).memory, Incomplete);
    }

    #[test]
    fn full_tables_affect_only_the_figures_made_from_them() {
        let full = of(LossCause::LiveFull, true);
        assert_eq!(
            (full.calls, full.gpu_ops, full.memory, full.memory_by_site),
            (Exact, Exact, Incomplete, Incomplete)
        );
        assert_eq!(of(LossCause::LostStack, true), Qualities::default());
        let sites = of(LossCause::SitesFull, true);
        assert_eq!((sites.memory, sites.memory_by_site), (Exact, Incomplete));
    }

    #[test]
    fn skipped_libraries_affect_everything() {
        let report =
            SummaryReport { skipped: vec!["libcuda.so: no room".to_owned()], ..SummaryReport::default() };
        let of_report = Qualities::of(&report);
        assert_eq!((of_report.memory, of_report.calls), (Incomplete, Incomplete));
        assert_eq!(Qualities::of(&SummaryReport::default()), Qualities::default());
    }

    #[test]
    fn what_sampled_functions_did_is_an_estimate_unless_it_is_incomplete_and_memory_never_is() {
        let sampled = vec![SampledCalls {
            api: Some(Api::Driver),
            function: "cuMemcpyHtoD_v2".to_owned(),
            estimated_calls: 7,
            standard_error: 2,
        }];
        let mut report = SummaryReport { sampled, memory_from_tables: true, ..SummaryReport::default() };
        let of = Qualities::of(&report);
        assert_eq!((of.calls, of.copies, of.gpu_ops), (Estimated, Estimated, Estimated));
        assert_eq!((of.launches, of.memory, of.memory_by_site, of.gpu_time), (Exact, Exact, Exact, Exact));
        report.losses = vec![LossCount { cause: LossCause::RingFull, count: 1 }];
        let of = Qualities::of(&report);
        assert_eq!((of.calls, of.copies, of.memory), (Incomplete, Incomplete, Exact));
    }
}
