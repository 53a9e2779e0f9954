//! The predicted cost of probes for the processes that run now, as a table.

use gpuprobe_analysis::Prediction;
use gpuprobe_analysis::prediction::COMMANDS;

use crate::table::{Align, rows};
use crate::units::printable;

/// The table, with a line above it that says how it was measured.
pub fn prediction(prediction: &Prediction) -> String {
    let Prediction { tier, seconds, processes } = prediction;
    if processes.is_empty() {
        return "no process uses CUDA now: run this again while one does\n".to_owned();
    }
    let mut out =
        format!("calls counted for {seconds:.1} s; predicted share of one core, attached by {tier}\n\n");
    let percent = |shares: &[f64; COMMANDS.len()]| shares.map(|share| format!("{:.2}%", share * 100.0));
    let mut table =
        vec![["process", "calls/s"].into_iter().chain(COMMANDS).map(str::to_owned).collect::<Vec<_>>()];
    for process in processes {
        let mut row = vec![format!("{} {}", process.pid, printable(&process.name))];
        row.push(format!("{:.0}", process.calls_per_second));
        row.extend(percent(&process.shares));
        table.push(row);
        for function in &process.functions {
            let mut row =
                vec![format!("  {}", function.function), format!("{:.0}", function.calls_per_second)];
            row.extend(percent(&function.shares));
            table.push(row);
        }
    }
    rows(&mut out, "", &[Align::Left, Align::Right, Align::Right, Align::Right, Align::Right], &table);
    out
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::prediction::{PredictedFunction, PredictedProcess};
    use gpuprobe_event::Tgid;

    use super::*;

    #[test]
    fn each_process_is_followed_by_its_most_expensive_functions() {
        assert!(prediction(&Prediction::default()).starts_with("no process uses CUDA now"));
        let function = PredictedFunction {
            function: "cuLaunchKernel",
            calls_per_second: 20_000.0,
            shares: [0.02, 0.0, 0.03],
        };
        let process = PredictedProcess {
            pid: Tgid(7),
            name: "a\u{1b}pp".to_owned(),
            calls_per_second: 20_000.4,
            shares: [0.02, 0.0, 0.03],
            functions: vec![function],
        };
        let text =
            prediction(&Prediction { tier: "multi".to_owned(), seconds: 2.04, processes: vec![process] });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "calls counted for 2.0 s; predicted share of one core, attached by multi");
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            ["process", "calls/s", "daemon", "memory", "trace"]
        );
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(lines[3])[2..], ["20000", "2.00%", "0.00%", "3.00%"], "{}", lines[3]);
        assert_eq!(words(lines[4]), ["cuLaunchKernel", "20000", "2.00%", "0.00%", "3.00%"]);
        assert!(lines[4].starts_with("  cu"), "below its process");
        assert!(!text.contains('\u{1b}'));
    }
}
