//! The measured cost of probes, as tables.

use gpuprobe_analysis::{CostReport, Judged, ModeCost, Spread, TierCost};

use crate::table::{Align, rows};

/// A table for each attach mechanism, with a line above it that says how it was measured. Targets, if there are any,
/// are in a second table below it.
pub fn cost(report: &CostReport) -> String {
    let mut out = String::new();
    for tier in &report.tiers {
        let separator = if out.is_empty() { "" } else { "\n" };
        out += &format!(
            "{separator}attached by {}, Linux {}, {} rounds of {} in each mode\n\n",
            tier.tier, report.kernel, report.rounds, report.calls_per_round
        );
        modes(&mut out, tier);
        if !tier.targets.is_empty() {
            out.push('\n');
            targets(&mut out, tier);
        }
    }
    out
}

fn modes(out: &mut String, tier: &TierCost) {
    use Align::{Left, Right};
    let titles = ["", "median", "half of all", "ratio", "half of all", "to", "reader"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    table.extend(tier.modes.iter().map(row));
    rows(out, "", &[Left, Right, Right, Right, Right, Left, Right], &table);
}

fn row(mode: &ModeCost) -> Vec<String> {
    let Spread { median, low, high } = mode.ns;
    let mut row = vec![mode.what.to_owned(), format!("{median:.0} ns"), format!("{low:.0} to {high:.0}")];
    if let (Some(Spread { median, low, high }), Some(floor)) = (mode.ratio, mode.floor) {
        row.extend([format!("{median:.2}"), format!("{low:.2} to {high:.2}"), floor.to_owned()]);
        row.extend(mode.reader_ns.map(|ns| format!("{ns:.0} ns")));
    }
    row
}

fn targets(out: &mut String, tier: &TierCost) {
    use Align::{Left, Right};
    let titles = ["aimed at", "ratio", "at most", ""];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    table.extend(tier.targets.iter().map(|target| {
        let Judged { mode, to, limit, ratio } = target;
        let verdict = if ratio <= limit { "met" } else { "missed" };
        vec![format!("{mode} to {to}"), format!("{ratio:.3}"), format!("{limit:.2}"), verdict.to_owned()]
    }));
    rows(out, "", &[Left, Right, Right, Left], &table);
}
