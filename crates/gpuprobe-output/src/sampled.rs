//! Functions that are sampled to stay within the budget: the line that reports one, and the mark of its figures.

use gpuprobe_analysis::{FunctionSummary, SampledFunction, Snapshot};
use gpuprobe_event::trace::SampledCalls;
use gpuprobe_event::{Api, Class, catalogue};

use crate::units::{count, printable};

/// The mark of estimated figures.
pub(crate) const MARK: &str = "~";

/// One line for a function.
pub(crate) fn sampled_line(function: &SampledFunction) -> String {
    let now = match function.ratio {
        ..1.0 => format!("probed {:.1}% of the time", function.ratio * 100.0),
        _ => "probed a part of the time until some time ago".to_owned(),
    };
    line(function.function, &now, function.estimated_calls as u64, function.standard_error.ceil() as u64)
}

/// The same at the end of a recording.
pub(crate) fn recorded_line(function: &SampledCalls) -> String {
    let SampledCalls { function, estimated_calls, standard_error, .. } = function;
    line(function, "probed a part of the time", *estimated_calls, *standard_error)
}

/// Lines for all sampled functions at the end of a recording.
pub fn sampled_lines(sampled: &[SampledCalls]) -> String {
    let line = |function| format!("sampled: {}\n", printable(&recorded_line(function)));
    sampled.iter().map(line).collect()
}

/// The mark of times of which some are those of earlier launches.
pub(crate) fn time_mark(unprobed_returns: u64) -> &'static str {
    if unprobed_returns > 0 { MARK } else { "" }
}

/// What is not known of launches whose return was not probed.
pub(crate) fn unprobed_returns(calls: u64) -> Option<String> {
    (calls > 0).then(|| {
        let (calls, have) = (count(calls, "launch", "launches"), if calls == 1 { "has" } else { "have" });
        format!(
            "{calls} without a return probe {have} the times ({MARK}) of earlier launches of the same kernel, and count as \
             successful (--all-launch-returns probes all)"
        )
    })
}

fn line(function: &str, how: &str, estimated: u64, error: u64) -> String {
    format!(
        "{function}: {how}: its figures ({MARK}) are estimates; {estimated} of its calls were added by scaling, standard error {error} calls"
    )
}

/// The mark of a function in a recording if its figures are estimates. They are also if no turn has come yet.
pub(crate) fn recorded_mark(sampled: &[SampledCalls], row: &FunctionSummary) -> &'static str {
    let is_it = |s: &SampledCalls| *s.function == *row.name && s.api.is_none_or(|api| api == row.api);
    let is_sampled = row.estimated > 0 || sampled.iter().any(is_it);
    if is_sampled { MARK } else { "" }
}

/// The mark of what functions of these classes did in a recording; without classes, of what any function did.
pub(crate) fn recorded_mark_of_classes(sampled: &[SampledCalls], classes: &[Class]) -> &'static str {
    let is_one = |s: &SampledCalls| {
        let apis = s.api.map_or_else(|| Api::gpu_libraries().collect(), |api| vec![api]);
        let mut found = apis.into_iter().filter_map(|api| catalogue().lookup(api, None, &s.function));
        found.any(|f| classes.contains(&f.class))
    };
    let is_sampled = if classes.is_empty() { !sampled.is_empty() } else { sampled.iter().any(is_one) };
    if is_sampled { MARK } else { "" }
}

/// The mark if some of the figures of a function are estimated, and else nothing.
pub(crate) fn mark_of(snapshot: &Snapshot, api: Api, function: &str) -> &'static str {
    mark(snapshot, |sampled| (sampled.api, sampled.function) == (api, function))
}

/// The same for what functions of these classes do together.
pub(crate) fn mark_of_classes(snapshot: &Snapshot, classes: &[Class]) -> &'static str {
    mark(snapshot, |sampled| {
        let function = catalogue().lookup(sampled.api, None, sampled.function);
        function.is_some_and(|f| classes.contains(&f.class))
    })
}

fn mark(snapshot: &Snapshot, is_it: impl Fn(&SampledFunction) -> bool) -> &'static str {
    let is_estimated = snapshot.budget.as_ref().is_some_and(|budget| budget.sampled.iter().any(is_it));
    if is_estimated { MARK } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_estimated_and_the_error_whether_the_function_is_still_sampled_or_not() {
        let mut function = SampledFunction {
            api: Api::Driver,
            function: "cuLaunchKernel",
            ratio: 0.125,
            estimated_calls: 1234.4,
            standard_error: 56.0,
            variance: 3136.0,
            current_variance: 0.0,
        };
        let rest =
            "its figures (~) are estimates; 1234 of its calls were added by scaling, standard error 56 calls";
        assert_eq!(sampled_line(&function), format!("cuLaunchKernel: probed 12.5% of the time: {rest}"));
        function.ratio = 1.0;
        let line = "cuLaunchKernel: probed a part of the time until some time ago";
        assert_eq!(sampled_line(&function), format!("{line}: {rest}"));
    }

    #[test]
    fn only_what_a_sampled_function_did_is_marked() {
        let sampled = |api, function: &str| SampledCalls {
            api,
            function: function.to_owned(),
            estimated_calls: 7,
            standard_error: 2,
        };
        let row = |api, name: &'static str, estimated| FunctionSummary {
            api,
            name: name.into(),
            calls: 9,
            estimated,
            errors: 0,
            unobserved: 0,
            unprobed_returns: 0,
            unfinished: 0,
            total_ns: 0,
            min_ns: 0,
            max_ns: 0,
            bytes: 0,
            p50_ns: None,
            p99_ns: None,
            latency: Vec::new(),
            class: Class::Other,
        };
        let copies = [sampled(Some(Api::Driver), "cuMemcpyHtoD_v2"), sampled(Some(Api::Hook), "work")];
        let mark = |api, name| recorded_mark(&copies, &row(api, name, 0));
        assert_eq!(mark(Api::Driver, "cuMemcpyHtoD_v2"), MARK);
        assert_eq!(mark(Api::Driver, "cuMemcpyDtoH_v2"), "");
        assert_eq!(mark(Api::Hook, "work"), MARK);
        assert_eq!(mark(Api::Runtime, "work"), "", "another function with its name");
        assert_eq!(recorded_mark(&[], &row(Api::Driver, "cuInit", 1)), MARK, "estimated");
        // traces of earlier versions have no API
        assert_eq!(recorded_mark(&[sampled(None, "work")], &row(Api::Runtime, "work", 0)), MARK);

        let of = |classes: &[Class]| recorded_mark_of_classes(&copies, classes);
        assert_eq!(of(&[Class::Memcpy]), MARK);
        assert_eq!(of(&[Class::Launch, Class::Memset]), "");
        assert_eq!(of(&[]), MARK, "the total of all calls");
        assert_eq!(recorded_mark_of_classes(&[], &[]), "");
        let earlier = [sampled(None, "cudaLaunchKernel")];
        assert_eq!(recorded_mark_of_classes(&earlier, &[Class::Launch]), MARK);
        let hooked = [sampled(Some(Api::Hook), "cudaLaunchKernel")];
        assert_eq!(recorded_mark_of_classes(&hooked, &[Class::Launch]), "", "a hook with its name");
    }
}
