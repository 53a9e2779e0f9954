//! The line that reports a function whose probes were removed to stay within the budget.

use gpuprobe_analysis::UnprobedFunction;

use crate::units::{count, duration};

/// One line for a function; `since` is when its probes were last removed.
pub fn over_budget_line(function: &UnprobedFunction, since: &str) -> String {
    let name = function.function;
    let total =
        format!("{}, {} in all", count(function.times, "time", "times"), duration(function.missed_ns));
    let when = if function.is_unprobed { format!("from {since} on") } else { "for a while".to_owned() };
    format!("{name}: not counted {when} ({total}): over the budget, so its figures are lower bounds")
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    #[test]
    fn the_line_says_that_the_figures_are_lower_bounds_whether_the_function_is_probed_again_or_not() {
        let mut function = UnprobedFunction {
            api: Api::Driver,
            function: "cuLaunchKernel",
            is_unprobed: true,
            times: 1,
            missed_ns: 1_500_000_000,
            since_ns: 0,
        };
        let rest = "over the budget, so its figures are lower bounds";
        let line = "cuLaunchKernel: not counted from 2.0 s on (1 time, 1.5 s in all)";
        assert_eq!(over_budget_line(&function, "2.0 s"), format!("{line}: {rest}"));
        (function.is_unprobed, function.times) = (false, 3);
        let line = "cuLaunchKernel: not counted for a while (3 times, 1.5 s in all)";
        assert_eq!(over_budget_line(&function, "2.0 s"), format!("{line}: {rest}"));
    }
}
