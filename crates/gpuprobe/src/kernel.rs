//! `--kernel=GLOB` and the hooks of the kernel: which functions and tracepoints are probed. They become rows of the
//! catalogue, so they are chosen before anybody uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use glob::Pattern;
use gpuprobe_capture::{
    Capture, CaptureConfig, CaptureError, Collect, KernelHook, KernelTier, MOST_TRACEPOINTS, ProbedFunctions,
    Refusal, Returned, Tier, TracepointHook, Unprobed, kernel_support, kernel_tiers, results,
    tracepoint_arguments,
};
use gpuprobe_discover::{KernelFunction, SkipCause, Skipped, kernel_functions, traceable_functions};
use gpuprobe_event::catalogue::{ResultKind, extend};
use gpuprobe_event::driver::{function_class, function_row, is_noisy, is_system_call, tracepoint_row};
use gpuprobe_event::hook::KernelPoint;
use gpuprobe_event::{Class, FunctionId, Hooks};
use gpuprobe_output::units::count;

use crate::cli::{Cli, Command};
use crate::hooks;

/// Functions that are probed at once.
const MOST: usize = 512;
/// Of a function that the kernel has no type of.
const UNKNOWN: Returned = (ResultKind::Unknown, "?");
/// What has no value of its own: the driver's devices alone.
pub(crate) const DEVICES_ALONE: &str = "";

/// What is probed in the kernel, and what the files of hooks name besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) functions: Vec<KernelHook>,
    pub(crate) tracepoints: Vec<TracepointHook>,
}

/// Finds what the command line asks for, and gives each function its row.
pub(crate) fn choose(cli: &mut Cli) -> Result<()> {
    let args = match &mut cli.command {
        Some(Command::Run(args)) => &mut args.recording.attach,
        Some(Command::Record(args)) => &mut args.recording.attach,
        Some(Command::Trace(args)) => &mut args.attach,
        Some(Command::Memory(args)) => &mut args.attach,
        Some(Command::Demo(args)) => &mut args.attach,
        _ => return Ok(()),
    };
    args.chosen = chosen(&args.kernel, &args.hooks)?;
    Ok(())
}

/// Reads the files of hooks and finds out what they and the globs stand for on this kernel.
pub(crate) fn chosen(kernel: &[String], files: &[PathBuf]) -> Result<Chosen> {
    let hooks = hooks::read(files)?;
    let globs: Vec<_> = kernel.iter().filter(|glob| *glob != DEVICES_ALONE).collect();
    let globs: Vec<_> = globs.into_iter().map(|glob| Glob::parse(glob)).collect::<Result<_>>()?;
    let mut functions = Vec::new();
    if !globs.is_empty() || hooks.kernel().iter().any(|hook| matches!(hook.point, KernelPoint::Function(_))) {
        let wanted = |name: &str, _: Option<&str>| {
            globs.iter().any(|glob| glob.takes(name)) || hook_of(&hooks, name).is_some()
        };
        let found = kernel_functions(Path::new("/proc"), wanted);
        functions = choices(&globs, &hooks, found.context("cannot read the kernel's list of functions")?);
    }
    let tracepoints = tracepoints(&hooks);
    add_rows(&functions, &tracepoints, &hooks);
    Ok(Chosen { hooks, functions, tracepoints })
}

/// The hook of a function of the kernel. What is called all the time has to be named.
fn hook_of<'h>(hooks: &'h Hooks, name: &str) -> Option<&'h gpuprobe_event::hook::KernelHook> {
    hooks.of_kernel(name).filter(|hook| hook.point.is_exact() || !is_noisy(name))
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
fn choices(globs: &[Glob], hooks: &Hooks, mut found: Vec<KernelFunction>) -> Vec<KernelHook> {
    // what is named goes before what a star stands for: there may not be room for all
    let is_named = |name: &str| {
        globs.iter().any(|glob| glob.is_name && glob.takes(name))
            || hook_of(hooks, name).is_some_and(|hook| hook.point.is_exact())
    };
    found.sort_by_key(|function| !is_named(&function.name));
    let nothing = |takes: &dyn Fn(&str) -> bool| !found.iter().any(|f| takes(&f.name));
    let globs = globs.iter().filter(|glob| nothing(&|name| glob.takes(name)));
    let globs = globs.map(|glob| (glob.pattern.as_str().to_owned(), None));
    let rows = hooks.kernel().iter().filter(|hook| matches!(hook.point, KernelPoint::Function(_)));
    let rows = rows.filter(|hook| nothing(&|name| hook.point.takes(name)));
    let rows = rows.map(|hook| (hook.point.to_string(), Some(hook.place.to_string())));
    let missing: Vec<_> = globs.chain(rows).collect();
    let types = results(&found[..found.len().min(MOST)]);
    let mut choices: Vec<_> = found
        .into_iter()
        .enumerate()
        .map(|(place, function)| KernelHook {
            is_typed: types.get(place).is_some_and(Option::is_some),
            refused: refusal(place, &function.name),
            place: hook_of(hooks, &function.name).map(|hook| hook.place.to_string()),
            function,
            returned: types.get(place).copied().flatten().unwrap_or(UNKNOWN),
        })
        .collect();
    choices.extend(missing.into_iter().map(|(name, place)| {
        let why =
            if is_noisy(&name) { "it is called all the time: name it without a star" } else { NOT_THERE };
        KernelHook {
            function: KernelFunction { name, module: None, addresses: Vec::new() },
            is_typed: false,
            place,
            refused: Some((SkipCause::NotThere, why.to_owned())),
            returned: UNKNOWN,
        }
    }));
    choices
}

fn refusal(place: usize, name: &str) -> Option<Refusal> {
    if is_system_call(name) {
        return Some((SkipCause::Refused, "a call of the kernel has this name".to_owned()));
    }
    let too_many = || (SkipCause::TooMany, format!("more than {MOST} functions fit: name fewer of them"));
    (place >= MOST).then(too_many)
}

const NOT_THERE: &str =
    "the kernel has no such function: its module is not loaded, or it is part of those that call it";

/// The tracepoints that files name.
fn tracepoints(hooks: &Hooks) -> Vec<TracepointHook> {
    let mut tracepoints: Vec<TracepointHook> = Vec::new();
    for hook in hooks.kernel() {
        let KernelPoint::Tracepoint { group, name } = &hook.point else { continue };
        let accepted = tracepoints.iter().filter(|known| known.refused.is_none()).count();
        let refused = if accepted < MOST_TRACEPOINTS {
            let args = hook.signature.args.iter().flatten().count();
            refused_tracepoint(group, name, args, || tracepoint_arguments(name))
        } else {
            Some((SkipCause::TooMany, format!("{MOST_TRACEPOINTS} tracepoints are told of already")))
        };
        let (name, place) = (hook.point.to_string(), hook.place.to_string());
        tracepoints.push(TracepointHook { name, place, refused });
    }
    tracepoints
}

/// Why a tracepoint is not told of, with so many arguments; the kernel may know how many it has.
fn refused_tracepoint(
    group: &str,
    name: &str,
    args: usize,
    known: impl FnOnce() -> Option<usize>,
) -> Option<Refusal> {
    if name == "sched_process_exit" {
        let why = "nothing is told of a thread after its end, and the ends of processes are in every trace";
        return Some((SkipCause::Refused, why.to_owned()));
    }
    if group == "syscalls" {
        let why = "events of system calls are no tracepoints: hook `raw_syscalls:sys_enter`, whose arguments are the \
                   registers and the number of the call, or `raw_syscalls:sys_exit`";
        return Some((SkipCause::NotThere, why.to_owned()));
    }
    // without arguments it is tried as it is
    match (args > 0).then(known)? {
        None => {
            let why = "the kernel has no type of such a tracepoint: its module is not loaded, or it can be told of \
                       without `args` alone";
            Some((SkipCause::NotThere, why.to_owned()))
        }
        Some(has) if args > has => Some((
            SkipCause::Refused,
            format!("it has {}, and not {args}", count(has as u64, "argument", "arguments")),
        )),
        Some(_) => None,
    }
}

/// Gives a row to each function and each tracepoint that is to be probed.
fn add_rows(functions: &[KernelHook], tracepoints: &[TracepointHook], hooks: &Hooks) {
    // as long as the catalogue, which is never dropped
    let leak = |name: &str| -> &'static str { name.to_owned().leak() };
    let functions = functions.iter().filter(|hook| hook.refused.is_none());
    let functions: Vec<_> = functions.collect();
    let tracepoints = tracepoints.iter().filter(|hook| hook.refused.is_none());
    let tracepoints = tracepoints.filter_map(|tracepoint| {
        let hook = hooks.kernel().iter().find(|hook| hook.point.to_string() == tracepoint.name)?;
        Some((leak(&tracepoint.name), &hook.signature))
    });
    let tracepoints: Vec<_> = tracepoints.collect();
    if functions.is_empty() && tracepoints.is_empty() {
        return;
    }
    extend(|first| {
        let mut ids = (first.0..).map(FunctionId);
        let mut rows: Vec<_> = ids
            .by_ref()
            .zip(functions)
            .map(|(id, function)| {
                let name = &function.function.name;
                let hook = hook_of(hooks, name).map(|hook| &hook.signature);
                function_row(id, leak(name), function.returned, hook)
            })
            .collect();
        rows.extend(ids.zip(tracepoints).map(|(id, (name, hook))| tracepoint_row(id, name, hook)));
        rows
    });
}

/// Has functions and tracepoints probed, and tells what became of it: how many are, and what is told of those that are
/// not.
pub(crate) fn attach(
    capture: &mut Capture,
    config: &CaptureConfig,
    collect: Collect,
) -> Result<(Vec<String>, Vec<Skipped>), CaptureError> {
    let (mut told, mut unprobed) = (Vec::new(), Vec::new());
    if !config.hooks.is_empty() {
        let wanted = config.hooks.iter().filter(|hook| hook.refused.is_none()).count();
        let tiers = kernel_tiers(&kernel_support(), config.tier, wanted);
        let ProbedFunctions { probed, skipped } = capture.attach_functions(&config.hooks, &tiers, collect)?;
        let ways = probed.iter().map(|(tier, count)| format!("{count} by {}", tier.as_str()));
        let ways = if probed.is_empty() { "none".to_owned() } else { ways.collect::<Vec<_>>().join(", ") };
        told.push(format!("functions of the kernel: {ways}, {} not probed", skipped.len()));
        unprobed.extend(skipped);
    }
    if !config.tracepoints.is_empty() {
        let skipped = capture.attach_tracepoints(&config.tracepoints, collect)?;
        let probed = config.tracepoints.len() - skipped.len();
        told.push(format!("tracepoints: {probed}, {} not told of", skipped.len()));
        unprobed.extend(skipped);
    }
    Ok((told, skips(unprobed)))
}

/// So many that are not probed for the same reason are told of one by one, where others have other reasons.
const FEW: usize = 3;

/// A line for each that is not probed; one for many of a line of a file, or of the command line, that share a reason.
fn skips(unprobed: Vec<Unprobed>) -> Vec<Skipped> {
    let mut by_place: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for unprobed in unprobed {
        by_place.entry(unprobed.place).or_default().push((unprobed.name, unprobed.refusal));
    }
    let mut skips = Vec::new();
    for (place, mut all) in by_place {
        let hook = if place.is_some() { "hook " } else { "" };
        all.iter_mut().for_each(|(name, _)| name.insert_str(0, hook));
        let mut by_reason: BTreeMap<_, Vec<_>> = BTreeMap::new();
        all.iter()
            .for_each(|(name, (_, reason))| by_reason.entry(reason.clone()).or_default().push(name.clone()));
        let is_one_reason = by_reason.len() == 1;
        let many = |names: &Vec<_>| names.len() > FEW || (is_one_reason && names.len() > 1);
        let mut told = BTreeSet::new();
        all.retain_mut(|(name, (_, reason))| match by_reason.get(reason).filter(|names| many(names)) {
            Some(names) => {
                *name = format!("{} functions of the kernel", names.len());
                told.insert(reason.clone())
            }
            None => true,
        });
        skips.extend(all.into_iter().map(|(name, (cause, reason))| {
            let name = place.iter().map(String::as_str).chain([name.as_str()]).collect::<Vec<_>>().join(": ");
            Skipped::file(Path::new(&name), None, cause, format!("not probed: {reason}"))
        }));
    }
    skips
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
        hooks
            .iter()
            .map(|hook| (hook.function.name.as_str(), hook.refused.as_ref().map(|(_, why)| why.as_str())))
            .collect()
    }

    #[test]
    fn noisy_functions_are_taken_by_their_own_names_alone() {
        let [all, poll] = &globs(&["nvidia_*", "nvidia_poll"])[..] else { panic!("two") };
        assert!(all.takes("nvidia_ioctl") && !all.takes("nvidia_poll") && !all.takes("nvidia_isr_msix"));
        assert!(poll.takes("nvidia_poll") && !poll.takes("nvidia_ioctl"));
    }

    #[test]
    fn a_glob_that_fits_nothing_is_told_and_harms_nobody() {
        let globs = globs(&["nvidia_i*", "uvm_*", "nvidia_isr*"]);
        let hooks = choices(&globs, &Hooks::default(), vec![function("nvidia_ioctl")]);
        let noisy = "it is called all the time: name it without a star";
        let expected = [("nvidia_ioctl", None), ("uvm_*", Some(NOT_THERE)), ("nvidia_isr*", Some(noisy))];
        assert_eq!(refusals(&hooks), expected);
        assert!(Glob::parse("[").is_err());
    }

    #[test]
    fn more_functions_than_are_probed_at_once_are_told_of() {
        let found = (0..MOST + 2).map(|n| function(&format!("nvidia_{n:04}"))).collect();
        let hooks = choices(&globs(&["nvidia_*", "nvidia_0513"]), &Hooks::default(), found);
        assert_eq!(hooks.iter().filter(|hook| hook.refused.is_none()).count(), MOST);
        let why = "more than 512 functions fit: name fewer of them".to_owned();
        assert_eq!(hooks[MOST].refused, Some((SkipCause::TooMany, why)));
        // one that is named goes before what a star stands for
        assert_eq!(hooks[0].function.name, "nvidia_0513");
    }

    #[test]
    fn many_that_share_a_reason_are_one_line() {
        let unprobed = |name: &str, why: &str| Unprobed {
            name: name.to_owned(),
            place: None,
            refusal: (SkipCause::Refused, why.to_owned()),
        };
        let mut all: Vec<_> = (0..80).map(|n| unprobed(&format!("vfs_{n}"), "no kprobes")).collect();
        all.push(unprobed("nosuch_*", "not there"));
        let lines: Vec<_> = skips(all).iter().map(crate::skips::line).collect();
        assert_eq!(
            lines,
            ["80 functions of the kernel: not probed: no kprobes", "nosuch_*: not probed: not there"]
        );
    }

    fn file(text: &str) -> Hooks {
        let mut hooks = Hooks::default();
        hooks.parse("h", text).unwrap();
        hooks
    }

    #[test]
    fn a_hook_goes_before_a_glob_and_is_told_with_its_line() {
        let hooks = file(
            "[[hook]]\nkernel = true\nfunction = \"nvidia_*\"\n\
             [[hook]]\nkernel = true\nfunction = \"nvidia_open\"\nreturns = \"ptr\"\n\
             [[hook]]\nkernel = true\nfunction = \"nowhere\"\n",
        );
        let found = ["nvidia_open", "nvidia_ioctl", "uvm_open"].map(function).to_vec();
        let chosen = choices(&globs(&["uvm_*"]), &hooks, found);
        let places: Vec<_> =
            chosen.iter().map(|hook| (hook.function.name.as_str(), hook.place.as_deref())).collect();
        let expected = [
            ("nvidia_open", Some("h:4")),
            ("nvidia_ioctl", Some("h:1")),
            ("uvm_open", None),
            ("nowhere", Some("h:8")),
        ];
        assert_eq!(places, expected);
        assert!(hook_of(&hooks, "nvidia_poll").is_none(), "it is called all the time");
        let refused = |name: &str, place: Option<&str>, why: &str| Unprobed {
            name: name.to_owned(),
            place: place.map(str::to_owned),
            refusal: (SkipCause::Refused, why.to_owned()),
        };
        let skipped = skips(vec![
            refused("a", Some("h:1"), "no"),
            refused("f", None, "no"),
            refused("b", Some("h:1"), "no"),
            refused("g", None, "never"),
        ]);
        let lines: Vec<_> = skipped.iter().map(crate::skips::line).collect();
        let expected =
            ["f: not probed: no", "g: not probed: never", "h:1: 2 functions of the kernel: not probed: no"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_tracepoint_that_cannot_be_told_of_says_why() {
        let why = |group, args, known| refused_tracepoint(group, "name", args, || known);
        assert_eq!(why("sched", 2, Some(3)), None);
        assert_eq!(why("sched", 0, None), None, "it is tried");
        let (cause, told) = why("sched", 2, Some(1)).unwrap();
        assert_eq!((cause, told.as_str()), (SkipCause::Refused, "it has 1 argument, and not 2"));
        assert!(why("sched", 1, None).unwrap().1.contains("without `args`"));
        assert!(why("syscalls", 0, None).unwrap().1.contains("raw_syscalls:sys_enter"));
        let many: String =
            (0..=MOST_TRACEPOINTS).map(|n| format!("[[hook]]\ntracepoint = \"g:t{n}\"\n")).collect();
        let refused: Vec<_> =
            tracepoints(&file(&many)).into_iter().filter(|hook| hook.refused.is_some()).collect();
        assert_eq!((refused.len(), refused[0].name.as_str()), (1, "g:t16"));
    }
}
