//! What probes cost, as a table.

use gpuprobe_analysis::{CostReport, ModeCost, Spread};

use crate::table::{Align, rows};

/// The table, with a line above it that says how it was measured.
pub fn cost(report: &CostReport) -> String {
    use Align::{Left, Right};
    let mut out = format!(
        "attached by {}, kernel {}, {} rounds of {} in each mode\n\n",
        report.tier, report.kernel, report.rounds, report.calls_per_round
    );
    let titles = ["", "median", "half of all", "to the floor", "half of all"];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    table.extend(report.modes.iter().map(row));
    rows(&mut out, "", &[Left, Right, Right, Right, Right], &table);
    out
}

fn row(mode: &ModeCost) -> Vec<String> {
    let Spread { median, low, high } = mode.ns;
    let mut row = vec![mode.what.to_owned(), format!("{median:.0} ns"), format!("{low:.0} to {high:.0}")];
    if let Some(Spread { median, low, high }) = mode.ratio {
        row.extend([format!("{median:.2}"), format!("{low:.2} to {high:.2}")]);
    }
    row
}
