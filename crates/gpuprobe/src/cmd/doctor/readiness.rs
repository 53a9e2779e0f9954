//! The last line of `doctor`: whether gpuprobe can work on this machine, and what it lacks.

use gpuprobe_capture::{Feature, Support, Verdict};

/// Whether anything can be traced.
pub(super) fn is_ready(support: &Support) -> bool {
    support.privileged() && support.best_tier().is_some()
}

/// `ready`, or what is missing and what that costs. Optional features do not count.
pub(super) fn verdict(support: &Support, has_driver: bool) -> String {
    let checks_of = |verdict| {
        let found = support.checks.iter().filter(move |check| check.verdict == verdict);
        found.map(|check| format!("{}: {}", check.name, check.found))
    };
    let missing = missing(&support.features);
    if !is_ready(support) {
        return format!(
            "not ready: {}",
            checks_of(Verdict::Bad).chain(missing).collect::<Vec<_>>().join("; ")
        );
    }
    let driver = (!has_driver).then(|| {
        "no NVIDIA driver: CUDA programs do not run here, only `demo` and recorded traces".to_owned()
    });
    let limits: Vec<_> = driver.into_iter().chain(missing).chain(checks_of(Verdict::Limited)).collect();
    match limits.is_empty() {
        true => "ready".to_owned(),
        false => format!("ready, with limits: {}", limits.join("; ")),
    }
}

fn missing(features: &[Feature]) -> impl Iterator<Item = String> {
    let missing = features.iter().filter(|feature| !feature.present && !feature.optional);
    missing.map(|feature| format!("no {}: {}", feature.name, feature.without))
}

#[cfg(test)]
mod tests {
    use gpuprobe_capture::{Check, support};

    use super::*;

    /// A machine without any defect, but for this change.
    fn machine(change: impl Fn(&mut Support)) -> Support {
        let mut support = support();
        support.checks = ["capabilities", "seccomp"]
            .map(|name| Check { name, verdict: Verdict::Good, found: "fine".to_owned() })
            .to_vec();
        support.features.iter_mut().for_each(|feature| feature.present = true);
        change(&mut support);
        support
    }

    #[test]
    fn optional_features_do_not_count() {
        assert_eq!(verdict(&machine(|_| {}), true), "ready");
        let slow = machine(|s| s.features.iter_mut().for_each(|f| f.present = !f.optional));
        assert_eq!(verdict(&slow, true), "ready");
        assert!(is_ready(&slow));
    }

    #[test]
    fn the_line_names_what_is_missing_and_the_cost() {
        let bad = machine(|s| {
            s.checks[0] =
                Check { name: "capabilities", verdict: Verdict::Bad, found: "CAP_BPF missing".to_owned() };
        });
        assert_eq!(verdict(&bad, true), "not ready: capabilities: CAP_BPF missing");
        let no_btf = machine(|s| s.features[0].present = false);
        assert!(!is_ready(&no_btf));
        let line = verdict(&no_btf, false);
        assert!(line.starts_with("not ready: no BTF type information: nothing can be loaded"), "{line}");
        let limited = machine(|s| s.checks[1].verdict = Verdict::Limited);
        assert_eq!(verdict(&limited, true), "ready, with limits: seccomp: fine");
        assert!(verdict(&machine(|_| {}), false).starts_with("ready, with limits: no NVIDIA driver: "));
    }
}
