//! Functions that were left out to keep to a budget, in a line each.

use gpuprobe_analysis::LeftOut;

use crate::units::{count, duration};

/// What is told of one, wherever; `since` is when it was left out last.
pub fn left_out(function: &LeftOut, since: &str) -> String {
    let name = function.function;
    let all = format!("{}, {} in all", count(function.times, "time", "times"), duration(function.missed_ns));
    let when = if function.is_out { format!("from {since} on") } else { "for a while".to_owned() };
    format!("{name}: not counted {when} ({all}): over the budget, so its figures are lower bounds")
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    #[test]
    fn whether_it_is_back_or_not_its_figures_are_lower_bounds() {
        let mut function = LeftOut {
            api: Api::Driver,
            function: "cuLaunchKernel",
            is_out: true,
            times: 1,
            missed_ns: 1_500_000_000,
            since_ns: 0,
        };
        let rest = "over the budget, so its figures are lower bounds";
        let line = "cuLaunchKernel: not counted from 2.0 s on (1 time, 1.5 s in all)";
        assert_eq!(left_out(&function, "2.0 s"), format!("{line}: {rest}"));
        (function.is_out, function.times) = (false, 3);
        let line = "cuLaunchKernel: not counted for a while (3 times, 1.5 s in all)";
        assert_eq!(left_out(&function, "2.0 s"), format!("{line}: {rest}"));
    }
}
