//! `--kernel=GLOB`: which functions of the kernel are probed. They become rows of the catalogue, so they are chosen
//! before anybody uses it.

use std::path::Path;

use anyhow::{Context, Result};
use glob::Pattern;
use gpuprobe_capture::{
    Capture, CaptureConfig, CaptureError, Collect, KernelHook, KernelTier, ProbedFunctions, Returned, Tier,
    kernel_support, kernel_tiers, results,
};
use gpuprobe_discover::{KernelFunction, Skipped, kernel_functions, traceable_functions};
use gpuprobe_event::catalogue::{ResultKind, extend};
use gpuprobe_event::driver::{function_class, function_row, is_noisy};
use gpuprobe_event::{Class, FunctionId};

use crate::cli::{Cli, Command};

/// Functions that are probed at once.
const MOST: usize = 512;
/// Of a function that the kernel has no type of.
const UNKNOWN: Returned = (ResultKind::Unknown, "?");
/// What has no value of its own: the driver's devices alone.
pub(crate) const DEVICES_ALONE: &str = "";

/// Finds the functions that the command line asks for, and gives each its row.
pub(crate) fn choose(cli: &mut Cli) -> Result<()> {
    let args = match &mut cli.command {
        Some(Command::Run(args)) => &mut args.recording.attach,
        Some(Command::Record(args)) => &mut args.recording.attach,
        Some(Command::Trace(args)) => &mut args.attach,
        Some(Command::Memory(args)) => &mut args.attach,
        Some(Command::Demo(args)) => &mut args.attach,
        _ => return Ok(()),
    };
    let globs: Vec<_> = args.kernel.iter().filter(|glob| *glob != DEVICES_ALONE).cloned().collect();
    if !globs.is_empty() {
        args.kernel_hooks = hooks(&globs)?;
        add_rows(&args.kernel_hooks);
    }
    Ok(())
}

/// What globs stand for.
pub(crate) fn hooks(globs: &[String]) -> Result<Vec<KernelHook>> {
    let globs: Vec<_> = globs.iter().map(|glob| Glob::parse(glob)).collect::<Result<_>>()?;
    let wanted = |name: &str, _: Option<&str>| globs.iter().any(|glob| glob.takes(name));
    let found = kernel_functions(Path::new("/proc"), wanted);
    Ok(choices(&globs, found.context("cannot read the kernel's list of functions")?))
}

/// A glob, or a name.
#[derive(Debug)]
struct Glob {
    pattern: Pattern,
    is_name: bool,
}

impl Glob {
    fn parse(glob: &str) -> Result<Self> {
        let pattern = Pattern::new(glob).with_context(|| format!("--kernel: `{glob}` is no glob"))?;
        Ok(Self { pattern, is_name: !glob.contains(['*', '?', '[']) })
    }

    fn takes(&self, name: &str) -> bool {
        self.pattern.matches(name) && (self.is_name || !is_noisy(name))
    }
}

/// A hook for each function, and for each glob that none fits: one that is told of and not probed.
fn choices(globs: &[Glob], found: Vec<KernelFunction>) -> Vec<KernelHook> {
    let nothing = |glob: &&Glob| !found.iter().any(|f| glob.takes(&f.name));
    let missing: Vec<_> = globs.iter().filter(nothing).map(|glob| glob.pattern.as_str().to_owned()).collect();
    let types = results(&found[..found.len().min(MOST)]);
    let mut hooks: Vec<_> = found
        .into_iter()
        .enumerate()
        .map(|(place, function)| KernelHook {
            is_typed: types.get(place).is_some_and(Option::is_some),
            refused: refusal(place, &function.name),
            function,
            returned: types.get(place).copied().flatten().unwrap_or(UNKNOWN),
        })
        .collect();
    hooks.extend(missing.into_iter().map(|name| {
        let why =
            if is_noisy(&name) { "it is called all the time: name it without a star" } else { NOT_THERE };
        KernelHook {
            function: KernelFunction { name, module: None, addresses: Vec::new() },
            is_typed: false,
            refused: Some(why.to_owned()),
            returned: UNKNOWN,
        }
    }));
    hooks
}

fn refusal(place: usize, name: &str) -> Option<String> {
    // their rows are there already, and are those of calls on the driver's devices
    const TAKEN: [&str; 4] = ["ioctl", "mmap", "open", "poll"];
    if TAKEN.contains(&name) {
        return Some("a call of the kernel has this name".to_owned());
    }
    (place >= MOST).then(|| format!("{MOST} functions of the kernel are probed already"))
}

const NOT_THERE: &str =
    "the kernel has no such function: its module is not loaded, or it is part of those that call it";

/// Gives a row to each function that is to be probed.
fn add_rows(hooks: &[KernelHook]) {
    let probed = hooks.iter().filter(|hook| hook.refused.is_none());
    extend(|first| {
        let row = |(id, hook): (u32, &KernelHook)| {
            // as long as the catalogue, which is never dropped
            let name: &'static str = hook.function.name.clone().leak();
            function_row(FunctionId(id), name, hook.returned)
        };
        (first.0..).zip(probed).map(row).collect()
    });
}

/// Has the functions probed, and tells what became of it: how many are, and what is told of those that are not.
pub(crate) fn attach(
    capture: &mut Capture,
    config: &CaptureConfig,
    collect: Collect,
) -> Result<(String, Vec<Skipped>), CaptureError> {
    let wanted = config.hooks.iter().filter(|hook| hook.refused.is_none()).count();
    let tiers = kernel_tiers(&kernel_support(), config.tier, wanted);
    let ProbedFunctions { probed, mut skipped } = capture.attach_functions(&config.hooks, &tiers, collect)?;
    let ways = probed.iter().map(|(tier, count)| format!("{count} by {}", tier.as_str()));
    let mut told = ways.collect::<Vec<_>>().join(", ");
    if told.is_empty() {
        told = "none".to_owned();
    }
    told = format!("functions of the kernel: {told}, {} not probed", skipped.len());
    // a reason that holds for all of them is told once
    if let [(_, reason), _, ..] = skipped.as_slice()
        && skipped.iter().all(|(_, other)| other == reason)
    {
        skipped = vec![(format!("{} functions of the kernel", skipped.len()), reason.clone())];
    }
    let line = |(name, reason): (String, String)| {
        Skipped::function(Path::new(&name), format!("not probed: {reason}"))
    };
    Ok((told, skipped.into_iter().map(line).collect()))
}

/// A function of the kernel, for people to choose from.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) function: KernelFunction,
    pub(crate) class: Class,
    pub(crate) is_noisy: bool,
    /// How it would be probed, or that it cannot be.
    pub(crate) how: &'static str,
}

/// The functions that fit a glob; without one, those of the driver's modules.
pub(crate) fn listed(glob: Option<&str>) -> Result<Vec<Listed>> {
    let pattern =
        glob.map(|glob| Pattern::new(glob).with_context(|| format!("`{glob}` is no glob"))).transpose()?;
    let wanted = |name: &str, module: Option<&str>| match &pattern {
        Some(pattern) => pattern.matches(name),
        None => module.is_some_and(|module| module.starts_with("nvidia")),
    };
    let found =
        kernel_functions(Path::new("/proc"), wanted).context("cannot read the kernel's list of functions")?;
    let (types, support) = (results(&found), kernel_support());
    let traceable = traceable_functions(Path::new("/proc"));
    // of one alone, as of few
    let tiers = kernel_tiers(&support, None, 1);
    let listed = found.into_iter().zip(types).map(|(function, returned)| {
        let is_traceable = traceable.as_ref().is_none_or(|names| names.contains(&function.name));
        let fits = |tier: &&KernelTier| match tier {
            KernelTier::Fentry => returned.is_some() && is_traceable && function.addresses.len() == 1,
            KernelTier::Kprobes(Tier::Perf) => true,
            KernelTier::Kprobes(_) => is_traceable,
        };
        Listed {
            how: tiers.iter().find(fits).map_or("cannot be", |tier| tier.as_str()),
            class: function_class(&function.name),
            is_noisy: is_noisy(&function.name),
            function,
        }
    });
    Ok(listed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> KernelFunction {
        KernelFunction { name: name.to_owned(), module: Some("nvidia".to_owned()), addresses: vec![1] }
    }

    fn globs(globs: &[&str]) -> Vec<Glob> {
        globs.iter().map(|glob| Glob::parse(glob).unwrap()).collect()
    }

    fn refusals(hooks: &[KernelHook]) -> Vec<(&str, Option<&str>)> {
        hooks.iter().map(|hook| (hook.function.name.as_str(), hook.refused.as_deref())).collect()
    }

    #[test]
    fn noisy_functions_are_taken_by_their_own_names_alone() {
        let [all, poll] = &globs(&["nvidia_*", "nvidia_poll"])[..] else { panic!("two") };
        assert!(all.takes("nvidia_ioctl") && !all.takes("nvidia_poll") && !all.takes("nvidia_isr_msix"));
        assert!(poll.takes("nvidia_poll") && !poll.takes("nvidia_ioctl"));
    }

    #[test]
    fn a_glob_that_fits_nothing_is_told_and_harms_nobody() {
        let hooks = choices(&globs(&["nvidia_i*", "uvm_*", "nvidia_isr*"]), vec![function("nvidia_ioctl")]);
        let noisy = "it is called all the time: name it without a star";
        let expected = [("nvidia_ioctl", None), ("uvm_*", Some(NOT_THERE)), ("nvidia_isr*", Some(noisy))];
        assert_eq!(refusals(&hooks), expected);
        assert!(Glob::parse("[").is_err());
    }

    #[test]
    fn more_functions_than_are_probed_at_once_are_told_of() {
        let found = (0..MOST + 2).map(|n| function(&format!("nvidia_{n:04}"))).collect();
        let hooks = choices(&globs(&["nvidia_*"]), found);
        assert_eq!(hooks.iter().filter(|hook| hook.refused.is_none()).count(), MOST);
        assert_eq!(hooks[MOST].refused.as_deref(), Some("512 functions of the kernel are probed already"));
    }
}
