//! Which figures of a summary are incomplete because something was lost or not probed.

use gpuprobe_analysis::SummaryReport;
use gpuprobe_event::Figures;

/// Added to the headings of figures that are incomplete.
const MARK: &str = " (incomplete)";

/// Groups of figures that are made of the same data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Incomplete {
    pub(super) calls: bool,
    /// Launches, copies and gaps.
    pub(super) gpu_ops: bool,
    pub(super) memory: bool,
    pub(super) memory_by_site: bool,
    pub(super) gpu_time: bool,
}

impl Incomplete {
    pub(super) fn of(report: &SummaryReport) -> Self {
        let any = |figures: Figures| {
            report.losses.iter().any(|loss| loss.count > 0 && loss.cause.affects().contains(&figures))
        };
        if !report.skipped.is_empty() {
            let gpu_time = any(Figures::GpuTime);
            return Self { calls: true, gpu_ops: true, memory: true, memory_by_site: true, gpu_time };
        }
        let calls = any(Figures::Events);
        let memory = any(Figures::Memory) || calls && !report.memory_from_tables;
        Self {
            calls,
            gpu_ops: calls || any(Figures::GpuOps),
            memory,
            memory_by_site: memory || any(Figures::MemoryBySite),
            gpu_time: any(Figures::GpuTime),
        }
    }
}

/// A heading, marked if its figures are incomplete.
pub(super) fn marked(heading: &str, is_incomplete: bool) -> String {
    format!("{heading}{}", if is_incomplete { MARK } else { "" })
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::LossCount;
    use gpuprobe_event::LossCause;

    use super::*;

    fn of(cause: LossCause, memory_from_tables: bool) -> Incomplete {
        let losses = vec![LossCount { cause, count: 1 }];
        Incomplete::of(&SummaryReport { losses, memory_from_tables, ..SummaryReport::default() })
    }

    #[test]
    fn lost_records_affect_everything_except_memory_counted_in_bpf() {
        let counted = of(LossCause::RingFull, true);
        assert_eq!(
            (counted.calls, counted.gpu_ops, counted.memory, counted.memory_by_site),
            (true, true, false, false)
        );
        assert!(of(LossCause::RingFull, false).memory);
    }

    #[test]
    fn full_tables_affect_only_the_figures_made_from_them() {
        let full = of(LossCause::LiveFull, true);
        assert_eq!((full.calls, full.gpu_ops, full.memory, full.memory_by_site), (false, false, true, true));
        assert_eq!(of(LossCause::LostStack, true), Incomplete::default());
        let sites = of(LossCause::SitesFull, true);
        assert_eq!((sites.memory, sites.memory_by_site), (false, true));
    }

    #[test]
    fn skipped_libraries_affect_everything() {
        let report =
            SummaryReport { skipped: vec!["libcuda.so: no room".to_owned()], ..SummaryReport::default() };
        assert!(Incomplete::of(&report).memory && Incomplete::of(&report).calls);
        assert_eq!(Incomplete::of(&SummaryReport::default()), Incomplete::default());
    }
}
