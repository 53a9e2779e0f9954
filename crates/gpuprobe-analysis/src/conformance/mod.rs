//! Compares the two implementations of every figure: the tables of the BPF side and the replay of events. Both follow
//! the same definition, so every figure must be equal.

mod counted;
mod figures;
mod replayed;

use gpuprobe_event::counters::{CallCounts, FailureCounts, GpuOpRows, ProcessMemory, SiteMemory};

use self::figures::{ALLOCATED_BY_SITE, AllFigures, FREED_BY_SITE, Figures};
pub use self::replayed::EventTotals;
use crate::recording::summary::SummaryReport;

const GAPS: [&str; 4] = ["gaps", "time in gaps", "lengths of gaps", "longest gaps"];
/// Parts of the names of quantities that concern launches, graphs and copies.
const PARTS_OF_GPU_OPS: [&str; 4] = ["kernel", "launches", "graphs", "cop"];
/// Differences that are listed for one quantity.
const MOST_LISTED: usize = 8;

/// The rows of the tables, read after the end of observation.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Calls by process and function.
    pub calls: Vec<CallCounts>,
    /// Failures by process, function and error.
    pub failures: Vec<FailureCounts>,
    /// Memory by process.
    pub memory: Vec<ProcessMemory>,
    /// Memory by process and call site.
    pub sites: Vec<SiteMemory>,
    /// Launches, graphs, copies and gaps.
    pub gpu_ops: GpuOpRows,
}

/// One quantity that was compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub quantity: &'static str,
    /// The number of figures that are above zero in both implementations.
    pub figures: usize,
    /// The number of figures that differ.
    pub differ: usize,
    /// Descriptions of some of the differences.
    pub differences: Vec<String>,
    /// The reason if the quantity was not compared.
    pub not_compared: Option<&'static str>,
}

impl Comparison {
    fn new(quantity: &'static str) -> Self {
        Self { quantity, figures: 0, differ: 0, differences: Vec::new(), not_compared: None }
    }
}

/// Compares every quantity, sorted by name. `is_partial`: only some functions are recorded, so the tables also have
/// launches and copies of other functions.
pub fn compare(
    tables: &Tables,
    report: &SummaryReport,
    totals: &EventTotals,
    is_partial: bool,
) -> Vec<Comparison> {
    let (counted, replayed) = (counted::figures(tables), replayed::figures(report, totals));
    let is_gap_quantity = |quantity: &str| GAPS.contains(&quantity);
    let why_not = |quantity: &str| match quantity {
        ALLOCATED_BY_SITE | FREED_BY_SITE if tables.sites.is_empty() => Some("call sites were not collected"),
        FREED_BY_SITE if !totals.has_all_frees() => Some("events do not have the call site of every free"),
        _ if is_gap_quantity(quantity) && totals.has_shared_streams() => {
            Some("several threads launch on one stream, so its launches have no defined order")
        }
        _ if is_partial
            && (is_gap_quantity(quantity) || PARTS_OF_GPU_OPS.iter().any(|part| quantity.contains(part))) =>
        {
            Some("not all functions are recorded")
        }
        _ => None,
    };
    let mut quantities: Vec<_> = counted.0.keys().chain(replayed.0.keys()).copied().collect();
    quantities.sort_unstable();
    quantities.dedup();
    let none = Figures::new();
    let compare_one = |quantity| {
        let of = |all: &AllFigures| all.0.get(quantity).unwrap_or(&none).clone();
        match why_not(quantity) {
            None => compare_figures(quantity, &of(&counted), &of(&replayed)),
            why => Comparison { not_compared: why, ..Comparison::new(quantity) },
        }
    };
    quantities.into_iter().map(compare_one).collect()
}

fn compare_figures(quantity: &'static str, counted: &Figures, replayed: &Figures) -> Comparison {
    let mut compared = Comparison::new(quantity);
    let mut labels: Vec<_> = counted.keys().chain(replayed.keys()).collect();
    labels.sort_unstable();
    labels.dedup();
    for label in labels {
        let of = |figures: &Figures| figures.get(label).copied().unwrap_or(0);
        let (counted, replayed) = (of(counted), of(replayed));
        compared.figures += usize::from(counted > 0 && replayed > 0);
        if counted != replayed {
            compared.differ += 1;
            if compared.differences.len() < MOST_LISTED {
                compared.differences.push(format!("{label}: counted {counted}, replayed {replayed}"));
            }
        }
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_only_one_side_has_differs_and_zero_equals_a_missing_figure() {
        let figures = |of: &[(&str, u64)]| of.iter().map(|(label, n)| ((*label).to_owned(), *n)).collect();
        let compared = compare_figures(
            "calls",
            &figures(&[("a", 1), ("b", 2), ("c", 0), ("d", 4)]),
            &figures(&[("a", 1), ("b", 3), ("e", 5)]),
        );
        assert_eq!((compared.figures, compared.differ), (2, 3));
        assert_eq!(compared.differences[0], "b: counted 2, replayed 3");
        assert_eq!(compared.differences[2], "e: counted 0, replayed 5");
    }

    #[test]
    fn listed_differences_are_bounded() {
        let figures = (0..100).map(|i| (format!("{i}"), 1)).collect();
        let compared = compare_figures("calls", &figures, &Figures::new());
        assert_eq!((compared.figures, compared.differ, compared.differences.len()), (0, 100, MOST_LISTED));
    }
}
