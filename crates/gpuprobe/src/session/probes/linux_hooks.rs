//! Resolves `--driver=GLOB` and the Linux kernel hooks of hook files to functions and tracepoints, and attaches them.
//! They become rows of the catalogue, so this runs before the catalogue is first used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use glob::Pattern;
use gpuprobe_capture::{
    Capture, CaptureConfig, CaptureError, Collect, LinuxFunctionHook, LinuxTier, MAX_TRACEPOINTS,
    ProbedFunctions, Refusal, Returned, Tier, TracepointHook, Unprobed, linux_support, linux_tiers, results,
    tracepoint_arguments,
};
use gpuprobe_discover::{LinuxFunction, SkipCause, Skipped, linux_functions, traceable_functions};
use gpuprobe_event::catalogue::{ResultKind, extend};
use gpuprobe_event::driver::{function_class, function_row, is_noisy, is_system_call, tracepoint_row};
use gpuprobe_event::hook::LinuxHookPoint;
use gpuprobe_event::{Class, FunctionId, Hooks};
use gpuprobe_output::units::count;

use super::hook_files;
use crate::cli::{Cli, Command, DEVICES_ONLY, ResolvedHooks};

/// Most functions probed at once.
const MOST: usize = 512;
/// The result of a function without BTF type information.
const UNKNOWN: Returned = (ResultKind::Unknown, "?");
/// Resolves the options of a command and adds its functions to the catalogue. The daemon calls [`resolve_hooks`]
/// itself.
pub(crate) fn resolve(cli: &mut Cli) -> Result<()> {
    let args = match &mut cli.command {
        Some(Command::Run(args)) => &mut args.recording.attach,
        Some(Command::Record(args)) => &mut args.recording.attach,
        Some(Command::Trace(args)) => &mut args.attach,
        Some(Command::Memory(args)) => &mut args.attach,
        Some(Command::Demo(args)) => &mut args.attach,
        _ => return Ok(()),
    };
    args.resolved = resolve_hooks(&args.driver, &args.hooks)?;
    Ok(())
}

/// Reads hook files and resolves them and the globs to functions and tracepoints of this Linux kernel.
pub(crate) fn resolve_hooks(globs: &[String], files: &[PathBuf]) -> Result<ResolvedHooks> {
    let hooks = hook_files::read(files)?;
    let globs: Vec<_> = globs.iter().filter(|glob| *glob != DEVICES_ONLY).collect();
    let globs: Vec<_> = globs.into_iter().map(|glob| Glob::parse(glob)).collect::<Result<_>>()?;
    let mut functions = Vec::new();
    if !globs.is_empty() || hooks.linux().iter().any(|hook| matches!(hook.point, LinuxHookPoint::Function(_)))
    {
        let wanted = |name: &str, _: Option<&str>| {
            globs.iter().any(|glob| glob.selects(name)) || hook_of(&hooks, name).is_some()
        };
        let found = linux_functions(Path::new("/proc"), wanted);
        functions = resolve_functions(
            &globs,
            &hooks,
            found.context("cannot read the Linux kernel's list of functions")?,
        );
    }
    let tracepoints = tracepoints(&hooks);
    add_rows(&functions, &tracepoints, &hooks);
    Ok(ResolvedHooks { hooks, functions, tracepoints })
}

/// The hook of a Linux kernel function. Functions that are called all the time must be named exactly.
fn hook_of<'h>(hooks: &'h Hooks, name: &str) -> Option<&'h gpuprobe_event::hook::LinuxHook> {
    hooks.linux_hook(name).filter(|hook| hook.point.is_exact() || !is_noisy(name))
}

/// A glob or an exact name.
#[derive(Debug)]
struct Glob {
    pattern: Pattern,
    is_name: bool,
}

impl Glob {
    fn parse(glob: &str) -> Result<Self> {
        let pattern =
            Pattern::new(glob).with_context(|| format!("--driver: `{glob}` is not a valid glob"))?;
        Ok(Self { pattern, is_name: !glob.contains(['*', '?', '[']) })
    }

    fn selects(&self, name: &str) -> bool {
        self.pattern.matches(name) && (self.is_name || !is_noisy(name))
    }
}

/// A hook for each function, and a refused one for each glob without a match, so that it is reported.
fn resolve_functions(globs: &[Glob], hooks: &Hooks, mut found: Vec<LinuxFunction>) -> Vec<LinuxFunctionHook> {
    // exact names come before matches of a glob: there may not be room for all
    let is_named = |name: &str| {
        globs.iter().any(|glob| glob.is_name && glob.selects(name))
            || hook_of(hooks, name).is_some_and(|hook| hook.point.is_exact())
    };
    found.sort_by_key(|function| !is_named(&function.name));
    let nothing = |takes: &dyn Fn(&str) -> bool| !found.iter().any(|f| takes(&f.name));
    let globs = globs.iter().filter(|glob| nothing(&|name| glob.selects(name)));
    let globs = globs.map(|glob| (glob.pattern.as_str().to_owned(), None));
    let rows = hooks.linux().iter().filter(|hook| matches!(hook.point, LinuxHookPoint::Function(_)));
    let rows = rows.filter(|hook| nothing(&|name| hook.point.takes(name)));
    let rows = rows.map(|hook| (hook.point.to_string(), Some(hook.source_line.to_string())));
    let missing: Vec<_> = globs.chain(rows).collect();
    let types = results(&found[..found.len().min(MOST)]);
    let mut resolved: Vec<_> = found
        .into_iter()
        .enumerate()
        .map(|(index, function)| LinuxFunctionHook {
            is_typed: types.get(index).is_some_and(Option::is_some),
            refused: refusal(index, &function.name),
            origin: hook_of(hooks, &function.name).map(|hook| hook.source_line.to_string()),
            function,
            returned: types.get(index).copied().flatten().unwrap_or(UNKNOWN),
        })
        .collect();
    resolved.extend(missing.into_iter().map(|(name, location)| {
        let why =
            if is_noisy(&name) { "it is called all the time: name it without a star" } else { NOT_THERE };
        LinuxFunctionHook {
            function: LinuxFunction { name, module: None, addresses: Vec::new() },
            is_typed: false,
            origin: location,
            refused: Some((SkipCause::NotThere, why.to_owned())),
            returned: UNKNOWN,
        }
    }));
    resolved
}

fn refusal(index: usize, name: &str) -> Option<Refusal> {
    if is_system_call(name) {
        return Some((SkipCause::Refused, "a system call has this name".to_owned()));
    }
    let too_many = || (SkipCause::TooMany, format!("more than {MOST} functions match: name fewer of them"));
    (index >= MOST).then(too_many)
}

const NOT_THERE: &str = "the Linux kernel has no such function: its module is not loaded, or it is inlined";

/// The tracepoints of hook files.
fn tracepoints(hooks: &Hooks) -> Vec<TracepointHook> {
    let mut tracepoints: Vec<TracepointHook> = Vec::new();
    for hook in hooks.linux() {
        let LinuxHookPoint::Tracepoint { group, name } = &hook.point else { continue };
        let accepted = tracepoints.iter().filter(|known| known.refused.is_none()).count();
        let refused = if accepted < MAX_TRACEPOINTS {
            let args = hook.signature.args.iter().flatten().count();
            refused_tracepoint(group, name, args, || tracepoint_arguments(name))
        } else {
            Some((SkipCause::TooMany, format!("{MAX_TRACEPOINTS} tracepoints are probed already")))
        };
        let (name, location) = (hook.point.to_string(), hook.source_line.to_string());
        tracepoints.push(TracepointHook { name, origin: location, refused });
    }
    tracepoints
}

/// Why a tracepoint with this many arguments is refused. `known` returns its real number of arguments, if the Linux
/// kernel has its type.
fn refused_tracepoint(
    group: &str,
    name: &str,
    args: usize,
    known: impl FnOnce() -> Option<usize>,
) -> Option<Refusal> {
    if name == "sched_process_exit" {
        let why = "a thread cannot be traced after its exit, and exits of processes are in every trace";
        return Some((SkipCause::Refused, why.to_owned()));
    }
    if group == "syscalls" {
        let why = "events of system calls are not tracepoints: hook `raw_syscalls:sys_enter`, whose arguments are the \
                   registers and the number of the system call, or `raw_syscalls:sys_exit`";
        return Some((SkipCause::NotThere, why.to_owned()));
    }
    // without arguments it is attached without a check
    match (args > 0).then(known)? {
        None => {
            let why = "the Linux kernel has no type for this tracepoint: its module is not loaded, or it can only be probed \
                       without `args`";
            Some((SkipCause::NotThere, why.to_owned()))
        }
        Some(has) if args > has => Some((
            SkipCause::Refused,
            format!("it has {}, not {args}", count(has as u64, "argument", "arguments")),
        )),
        Some(_) => None,
    }
}

/// Adds a catalogue row for each function and each tracepoint that is to be probed.
fn add_rows(functions: &[LinuxFunctionHook], tracepoints: &[TracepointHook], hooks: &Hooks) {
    // names live as long as the catalogue, which is never dropped
    let leak = |name: &str| -> &'static str { name.to_owned().leak() };
    let functions = functions.iter().filter(|hook| hook.refused.is_none());
    let functions: Vec<_> = functions.collect();
    let tracepoints = tracepoints.iter().filter(|hook| hook.refused.is_none());
    let tracepoints = tracepoints.filter_map(|tracepoint| {
        let hook = hooks.linux().iter().find(|hook| hook.point.to_string() == tracepoint.name)?;
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

/// Attaches functions and tracepoints. Returns lines with the number of attached ones, and the skips.
pub(crate) fn attach(
    capture: &mut Capture,
    config: &CaptureConfig,
    collect: Collect,
) -> Result<(Vec<String>, Vec<Skipped>), CaptureError> {
    let (mut lines, mut unprobed) = (Vec::new(), Vec::new());
    if !config.hooks.is_empty() {
        let wanted = config.hooks.iter().filter(|hook| hook.refused.is_none()).count();
        let tiers = linux_tiers(&linux_support(), config.tier, wanted);
        let ProbedFunctions { probed, skipped } =
            capture.attach_linux_functions(&config.hooks, &tiers, collect)?;
        let counts = probed.iter().map(|(tier, count)| format!("{count} by {}", tier.as_str()));
        let counts =
            if probed.is_empty() { "none".to_owned() } else { counts.collect::<Vec<_>>().join(", ") };
        lines.push(format!("Linux kernel functions: {counts}, {} not probed", skipped.len()));
        unprobed.extend(skipped);
    }
    if !config.tracepoints.is_empty() {
        let skipped = capture.attach_tracepoints(&config.tracepoints, collect)?;
        let probed = config.tracepoints.len() - skipped.len();
        lines.push(format!("tracepoints: {probed}, {} not probed", skipped.len()));
        unprobed.extend(skipped);
    }
    Ok((lines, skips(unprobed)))
}

/// Up to this many hooks with the same reason are reported one by one if there are other reasons too.
const FEW: usize = 3;

/// A skip for each hook that is not probed. Hooks of the same line of a file, or of the command line, that share a
/// reason are combined.
fn skips(unprobed: Vec<Unprobed>) -> Vec<Skipped> {
    let mut by_location: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for unprobed in unprobed {
        by_location.entry(unprobed.origin).or_default().push((unprobed.name, unprobed.refusal));
    }
    let mut skips = Vec::new();
    for (location, mut all) in by_location {
        let hook = if location.is_some() { "hook " } else { "" };
        all.iter_mut().for_each(|(name, _)| name.insert_str(0, hook));
        let mut by_reason: BTreeMap<_, Vec<_>> = BTreeMap::new();
        all.iter()
            .for_each(|(name, (_, reason))| by_reason.entry(reason.clone()).or_default().push(name.clone()));
        let is_one_reason = by_reason.len() == 1;
        let many = |names: &Vec<_>| names.len() > FEW || (is_one_reason && names.len() > 1);
        let mut combined = BTreeSet::new();
        all.retain_mut(|(name, (_, reason))| match by_reason.get(reason).filter(|names| many(names)) {
            Some(names) => {
                *name = format!("{} Linux kernel functions", names.len());
                combined.insert(reason.clone())
            }
            None => true,
        });
        skips.extend(all.into_iter().map(|(name, (cause, reason))| {
            let name =
                location.iter().map(String::as_str).chain([name.as_str()]).collect::<Vec<_>>().join(": ");
            Skipped::file(Path::new(&name), None, cause, format!("not probed: {reason}"))
        }));
    }
    skips
}

/// A Linux kernel function in the output of `list --driver`.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) function: LinuxFunction,
    pub(crate) class: Class,
    pub(crate) is_noisy: bool,
    /// How it would be probed, or `cannot be`.
    pub(crate) how: &'static str,
}

/// The functions that match a glob; without one, those of the NVIDIA kernel modules.
pub(crate) fn listed(glob: Option<&str>) -> Result<Vec<Listed>> {
    let pattern = glob
        .map(|glob| Pattern::new(glob).with_context(|| format!("`{glob}` is not a valid glob")))
        .transpose()?;
    let wanted = |name: &str, module: Option<&str>| match &pattern {
        Some(pattern) => pattern.matches(name),
        None => module.is_some_and(|module| module.starts_with("nvidia")),
    };
    let found = linux_functions(Path::new("/proc"), wanted)
        .context("cannot read the Linux kernel's list of functions")?;
    let (types, support) = (results(&found), linux_support());
    let traceable = traceable_functions(Path::new("/proc"));
    // the tiers for a single function
    let tiers = linux_tiers(&support, None, 1);
    let listed = found.into_iter().zip(types).map(|(function, returned)| {
        let is_traceable = traceable.as_ref().is_none_or(|names| names.contains(&function.name));
        let fits = |tier: &&LinuxTier| match tier {
            LinuxTier::Fentry => returned.is_some() && is_traceable && function.addresses.len() == 1,
            LinuxTier::Kprobes(Tier::Perf) => true,
            LinuxTier::Kprobes(_) => is_traceable,
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

    fn function(name: &str) -> LinuxFunction {
        LinuxFunction { name: name.to_owned(), module: Some("nvidia".to_owned()), addresses: vec![1] }
    }

    fn globs(globs: &[&str]) -> Vec<Glob> {
        globs.iter().map(|glob| Glob::parse(glob).unwrap()).collect()
    }

    fn refusals(hooks: &[LinuxFunctionHook]) -> Vec<(&str, Option<&str>)> {
        hooks
            .iter()
            .map(|hook| (hook.function.name.as_str(), hook.refused.as_ref().map(|(_, why)| why.as_str())))
            .collect()
    }

    #[test]
    fn noisy_functions_match_only_exact_names() {
        let [all, poll] = &globs(&["nvidia_*", "nvidia_poll"])[..] else { panic!("two") };
        assert!(
            all.selects("nvidia_ioctl") && !all.selects("nvidia_poll") && !all.selects("nvidia_isr_msix")
        );
        assert!(poll.selects("nvidia_poll") && !poll.selects("nvidia_ioctl"));
    }

    #[test]
    fn a_glob_without_a_match_is_reported_and_others_are_kept() {
        let globs = globs(&["nvidia_i*", "uvm_*", "nvidia_isr*"]);
        let hooks = resolve_functions(&globs, &Hooks::default(), vec![function("nvidia_ioctl")]);
        let noisy = "it is called all the time: name it without a star";
        let expected = [("nvidia_ioctl", None), ("uvm_*", Some(NOT_THERE)), ("nvidia_isr*", Some(noisy))];
        assert_eq!(refusals(&hooks), expected);
        assert!(Glob::parse("[").is_err());
    }

    #[test]
    fn functions_beyond_the_limit_are_refused() {
        let found = (0..MOST + 2).map(|n| function(&format!("nvidia_{n:04}"))).collect();
        let hooks = resolve_functions(&globs(&["nvidia_*", "nvidia_0513"]), &Hooks::default(), found);
        assert_eq!(hooks.iter().filter(|hook| hook.refused.is_none()).count(), MOST);
        let why = "more than 512 functions match: name fewer of them".to_owned();
        assert_eq!(hooks[MOST].refused, Some((SkipCause::TooMany, why)));
        // an exact name comes before matches of a glob
        assert_eq!(hooks[0].function.name, "nvidia_0513");
    }

    #[test]
    fn hooks_with_the_same_reason_are_combined() {
        let unprobed = |name: &str, why: &str| Unprobed {
            name: name.to_owned(),
            origin: None,
            refusal: (SkipCause::Refused, why.to_owned()),
        };
        let mut all: Vec<_> = (0..80).map(|n| unprobed(&format!("vfs_{n}"), "no kprobes")).collect();
        all.push(unprobed("nosuch_*", "not there"));
        let lines: Vec<_> = skips(all).iter().map(super::super::skips::line).collect();
        assert_eq!(
            lines,
            ["80 Linux kernel functions: not probed: no kprobes", "nosuch_*: not probed: not there"]
        );
    }

    fn file(text: &str) -> Hooks {
        let mut hooks = Hooks::default();
        hooks.parse("h", text).unwrap();
        hooks
    }

    #[test]
    fn an_exact_hook_takes_precedence_and_is_reported_with_its_line() {
        let hooks = file(
            "[[hook]]\nkernel = true\nfunction = \"nvidia_*\"\n\
             [[hook]]\nkernel = true\nfunction = \"nvidia_open\"\nreturns = \"ptr\"\n\
             [[hook]]\nkernel = true\nfunction = \"nowhere\"\n",
        );
        let found = ["nvidia_open", "nvidia_ioctl", "uvm_open"].map(function).to_vec();
        let resolved = resolve_functions(&globs(&["uvm_*"]), &hooks, found);
        let locations: Vec<_> =
            resolved.iter().map(|hook| (hook.function.name.as_str(), hook.origin.as_deref())).collect();
        let expected = [
            ("nvidia_open", Some("h:4")),
            ("nvidia_ioctl", Some("h:1")),
            ("uvm_open", None),
            ("nowhere", Some("h:8")),
        ];
        assert_eq!(locations, expected);
        assert!(hook_of(&hooks, "nvidia_poll").is_none(), "it is called all the time");
        let refused = |name: &str, location: Option<&str>, why: &str| Unprobed {
            name: name.to_owned(),
            origin: location.map(str::to_owned),
            refusal: (SkipCause::Refused, why.to_owned()),
        };
        let skipped = skips(vec![
            refused("a", Some("h:1"), "no"),
            refused("f", None, "no"),
            refused("b", Some("h:1"), "no"),
            refused("g", None, "never"),
        ]);
        let lines: Vec<_> = skipped.iter().map(super::super::skips::line).collect();
        let expected =
            ["f: not probed: no", "g: not probed: never", "h:1: 2 Linux kernel functions: not probed: no"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_refused_tracepoint_has_a_reason() {
        let why = |group, args, known| refused_tracepoint(group, "name", args, || known);
        assert_eq!(why("sched", 2, Some(3)), None);
        assert_eq!(why("sched", 0, None), None, "it is attached without a check");
        let (cause, reason) = why("sched", 2, Some(1)).unwrap();
        assert_eq!((cause, reason.as_str()), (SkipCause::Refused, "it has 1 argument, not 2"));
        assert!(why("sched", 1, None).unwrap().1.contains("without `args`"));
        assert!(why("syscalls", 0, None).unwrap().1.contains("raw_syscalls:sys_enter"));
        let many: String =
            (0..=MAX_TRACEPOINTS).map(|n| format!("[[hook]]\ntracepoint = \"g:t{n}\"\n")).collect();
        let refused: Vec<_> =
            tracepoints(&file(&many)).into_iter().filter(|hook| hook.refused.is_some()).collect();
        assert_eq!((refused.len(), refused[0].name.as_str()), (1, "g:t16"));
    }
}
