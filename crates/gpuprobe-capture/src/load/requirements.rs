//! What the machine must support before anything is loaded.

use super::config::CaptureConfig;
use super::probe_programs::lossless_program;
use crate::error::CaptureError;
use crate::host::machine_checks::{PROC, Verdict};
use crate::host::release::{OLDEST, is_too_old};
use crate::host::support::{Support, Tier, support};

/// Fails with the reason if nothing can be traced on this machine.
pub fn check_machine(forced: Option<Tier>) -> Result<(), CaptureError> {
    check(&support(), forced).map(drop)
}

/// Checks the Linux kernel and the privileges, in the order in which a user would have to fix them.
pub(crate) fn check(support: &Support, forced: Option<Tier>) -> Result<Tier, CaptureError> {
    if is_too_old(&support.kernel) {
        return Err(CaptureError::KernelTooOld { found: support.kernel.clone(), needed: OLDEST });
    }
    if let Some(bad) = support.checks.iter().find(|c| c.verdict == Verdict::Bad) {
        return Err(match bad.name {
            PROC => CaptureError::NoProc,
            "capabilities" => CaptureError::NotPermitted,
            name => CaptureError::Forbidden { name, found: bad.found.clone() },
        });
    }
    if !support.has_btf() {
        return Err(CaptureError::NoBtf);
    }
    match forced {
        None => support.best_tier().ok_or(CaptureError::NoBtf),
        Some(tier) => match support.lacks(tier) {
            None => Ok(tier),
            Some(feature) => {
                Err(CaptureError::TierMissing { tier, missing: format!("it has no {}", feature.name) })
            }
        },
    }
}

/// Checks that no record needs to be lost, if none may be.
pub(crate) fn check_lossless(config: &CaptureConfig, tier: Tier) -> Result<(), CaptureError> {
    let probes_linux = config.device_syscalls || !config.hooks.is_empty() || !config.tracepoints.is_empty();
    match lossless_program(tier) {
        _ if !config.lossless => Ok(()),
        None => Err(CaptureError::LossyTier(tier)),
        Some(_) if probes_linux => Err(CaptureError::LossyLinux),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::machine_checks::Check;

    /// This machine with another Linux kernel and changed properties.
    fn machine(kernel: &str, change: impl Fn(&mut Support)) -> Support {
        let mut support = support();
        support.kernel = kernel.to_owned();
        support.checks = vec![Check { name: "capabilities", verdict: Verdict::Good, found: String::new() }];
        support.features.iter_mut().for_each(|f| f.present = true);
        change(&mut support);
        support
    }

    fn refusal(support: &Support, forced: Option<Tier>) -> String {
        check(support, forced).unwrap_err().to_string()
    }

    #[test]
    fn an_old_kernel_or_one_without_btf_is_refused_with_what_is_needed() {
        let old = refusal(&machine("5.10.0-28-amd64", |_| {}), None);
        assert_eq!(old, "the kernel is 5.10.0-28-amd64, gpuprobe needs 5.17 or newer");
        let no_btf = machine("6.1.0", |s| s.features.iter_mut().for_each(|f| f.present = false));
        assert!(refusal(&no_btf, None).contains("CONFIG_DEBUG_INFO_BTF=y"));
    }

    #[test]
    fn a_recording_without_losses_is_refused_where_calls_cannot_wait() {
        let config = CaptureConfig { lossless: true, ..CaptureConfig::default() };
        let refusal = |config: &CaptureConfig, tier| check_lossless(config, tier).unwrap_err().to_string();
        assert!(
            check_lossless(&config, Tier::Multi).is_ok() && check_lossless(&config, Tier::Session).is_ok()
        );
        assert!(check_lossless(&CaptureConfig::default(), Tier::Perf).is_ok());
        assert!(refusal(&config, Tier::Perf).contains("Linux 6.6"));
        let driver = CaptureConfig { device_syscalls: true, ..config };
        assert!(refusal(&driver, Tier::Session).contains("leave out --driver"));
    }

    #[test]
    fn a_machine_that_forbids_tracing_is_refused_with_the_reason() {
        let unprivileged = machine("6.1.0", |s| s.checks[0].verdict = Verdict::Bad);
        assert!(refusal(&unprivileged, None).contains("try sudo"));
        let no_proc = machine("", |s| {
            let proc = Check { name: PROC, verdict: Verdict::Bad, found: String::new() };
            s.checks.insert(0, proc);
            s.checks[1].verdict = Verdict::Bad;
        });
        let said = refusal(&no_proc, None);
        assert!(
            said.starts_with("/proc is not mounted") && said.contains("mount -t proc proc /proc"),
            "{said}"
        );
        assert!(!said.contains("root"), "{said}");
        let locked = machine("6.1.0", |s| {
            s.checks.push(Check {
                name: "lockdown",
                verdict: Verdict::Bad,
                found: "confidentiality".to_owned(),
            });
        });
        assert_eq!(refusal(&locked, None), "lockdown forbids tracing: confidentiality");
    }

    #[test]
    fn the_best_tier_is_chosen_and_an_unsupported_one_refused() {
        let all = machine("6.18.0", |_| {});
        assert_eq!(check(&all, None).unwrap(), Tier::Session);
        assert_eq!(check(&all, Some(Tier::Perf)).unwrap(), Tier::Perf);
        let multi = machine("6.12.0", |s| {
            s.features.iter_mut().filter(|f| f.name.contains("sessions")).for_each(|f| f.present = false);
        });
        assert_eq!(check(&multi, None).unwrap(), Tier::Multi);
        assert!(refusal(&multi, Some(Tier::Session)).contains("it has no uprobe sessions"));
        assert_eq!(machine("5.10.0", |_| {}).best_tier(), None);
    }
}
