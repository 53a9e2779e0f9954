//! Selects the functions to probe, and what their probes collect.

use anyhow::{Context, Result, bail};
use glob::Pattern;
use gpuprobe_capture::{
    Collect, Tier, changes_addresses, changes_captures, changes_contexts, changes_graphs, gives_kernel_names,
    identifies_gpus,
};
use gpuprobe_discover::Library;
use gpuprobe_event::{Api, Class, Function, FunctionId, Hooks, catalogue};

use super::glob_advice::advice;
use crate::cli::Layer;

/// A selection of functions. Functions that are not selected can still be probed for state that the selected ones need.
#[derive(Debug)]
pub(crate) enum Selection {
    /// By the user's globs. With `few`, only the most important state-only probes are added.
    Globs {
        included: Vec<Pattern>,
        excluded: Vec<Pattern>,
        layer: Layer,
        classes: Vec<Class>,
        follows_gpu_ops: bool,
        few: bool,
    },
    /// The essential functions, without those that the user excludes.
    Essential { excluded: Vec<Pattern>, layer: Layer, follows_gpu_ops: bool },
    /// What a daemon counts: the functions of these classes of the CUDA driver, and of NCCL's only those of
    /// communicators, in which ranks wait for each other. `named` says that the user named the classes; if not, `few`
    /// selects only the essential functions and those that track live memory. `failures` selects functions of these
    /// classes of the runtime, for calls that fail before they reach the CUDA driver. Of other functions that match
    /// `entry_counted`, only entries are counted.
    Driver {
        classes: Vec<Class>,
        named: bool,
        few: bool,
        failures: RuntimeFailures,
        entry_counted: Vec<Pattern>,
    },
}

/// Which functions of the runtime are probed only for calls that fail before they reach the CUDA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeFailures {
    None,
    /// Not those for memory and copies: a second pair of probes would double the cost of each.
    Rare,
    /// Also those that allocate, free, copy and fill, if they wait for the GPU.
    WithMemory,
}

impl Selection {
    /// From `-e` arguments. Without any, or with exclusions only, the informative set is the base. Hooked functions are
    /// requested by their hook file, so globs can only exclude them.
    pub(crate) fn from_globs(globs: &[String], layer: Layer, hooks: &Hooks) -> Result<Self> {
        // what a hook with a glob matches is only known when its library has been found
        let may_be_hooked = |pattern: &Pattern| {
            let mut hooks = hooks.libraries().iter();
            hooks.any(|hook| !hook.is_exact() || pattern.matches(hook.function.as_str()))
        };
        let (mut included, mut excluded) = (Vec::new(), Vec::new());
        for glob in globs {
            let (name, patterns) = match glob.strip_prefix('!') {
                Some(name) => (name, &mut excluded),
                None => (glob.as_str(), &mut included),
            };
            // check each one: a mistyped glob would otherwise go unnoticed
            patterns.push(pattern_or(name, may_be_hooked)?);
        }
        let (classes, follows_gpu_ops, few) = (Vec::new(), false, false);
        let mut selection = Self::Globs { included, excluded, layer, classes, follows_gpu_ops, few };
        let taken = catalogue().functions().iter().filter(|f| selection.selects(f));
        let mut all: Vec<_> = taken.map(|f| f.class).chain(hooks.classes()).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() && layer != Layer::Both {
            bail!("no function of this --layer matches {}", globs.join(" "));
        }
        if all.is_empty() {
            bail!("no function matches {}: all of them are excluded again", globs.join(" "));
        }
        if let Self::Globs { classes, .. } = &mut selection {
            *classes = all;
        }
        Ok(selection)
    }

    /// Adds the state-only probes that are needed to follow launches and copies.
    pub(crate) fn following_gpu_ops(mut self) -> Self {
        if let Self::Globs { follows_gpu_ops, .. } | Self::Essential { follows_gpu_ops, .. } = &mut self {
            *follows_gpu_ops = true;
        }
        self
    }

    /// Whether functions of a class are selected.
    pub(crate) fn has(&self, class: Class) -> bool {
        match self {
            Self::Globs { classes, .. } | Self::Driver { classes, .. } => classes.contains(&class),
            Self::Essential { .. } => true,
        }
    }

    /// Whether copies or memsets are selected.
    pub(crate) fn has_copies(&self) -> bool {
        self.has(Class::Memcpy) || self.has(Class::Memset)
    }

    /// The selection for this way to attach. With perf events, each function is detached by itself, which takes a
    /// tenth of a second, so without `-e` only the essential functions are selected.
    pub(crate) fn on(self, tier: Tier) -> Self {
        match self {
            Self::Globs { included, excluded, layer, follows_gpu_ops, .. }
                if tier == Tier::Perf && included.is_empty() =>
            {
                Self::Essential { excluded, layer, follows_gpu_ops }
            }
            Self::Globs { included, excluded, layer, classes, follows_gpu_ops, .. } => {
                let few = tier == Tier::Perf;
                Self::Globs { included, excluded, layer, classes, follows_gpu_ops, few }
            }
            Self::Driver { classes, named, failures, entry_counted, .. } => {
                let is_slow = tier == Tier::Perf;
                let failures = if is_slow { RuntimeFailures::None } else { failures };
                let few = is_slow && !named;
                Self::Driver { classes, named, few, failures, entry_counted }
            }
            other => other,
        }
    }

    /// Whether fewer functions are selected because of how probes are attached.
    pub(crate) fn is_reduced(&self) -> bool {
        matches!(self, Self::Essential { .. } | Self::Driver { few: true, .. })
    }

    /// Whether a function is selected.
    pub(crate) fn selects(&self, f: &Function) -> bool {
        if matches!(f.api, Api::Hook | Api::Framework) {
            return f.api == Api::Hook && !self.excludes(f.name); // --tensors selects those of frameworks
        }
        match self {
            Self::Globs { layer, .. } | Self::Essential { layer, .. } if !layer.has(f.api) => false,
            Self::Globs { included, excluded, .. } => {
                let fits = |patterns: &[Pattern]| patterns.iter().any(|p| p.matches(f.name));
                let is_included = if included.is_empty() { informative(f) } else { fits(included) };
                is_included && !fits(excluded)
            }
            // state-only probes are recorded too, so that the recording agrees with the BPF tables
            Self::Essential { excluded, .. } => {
                let is_probed = is_essential(f) || self.is_state_only(f);
                is_probed && !excluded.iter().any(|p| p.matches(f.name))
            }
            Self::Driver { .. } => self.counts(f) || self.counts_entries(f),
        }
    }

    /// Whether the daemon counts calls, errors and durations of a function.
    fn counts(&self, f: &Function) -> bool {
        let Self::Driver { classes, few, .. } = self else { return false };
        let is_most_useful = is_essential(f) || matches!(f.class, Class::Alloc | Class::Free);
        let is_of_api = f.api.does_work() || (f.api, f.class) == (Api::Nccl, Class::Comm);
        is_of_api && !f.hot && classes.contains(&f.class) && (!few || is_most_useful)
    }

    /// Whether `--calls-only` matches a function.
    fn counts_entries(&self, f: &Function) -> bool {
        let Self::Driver { entry_counted, .. } = self else { return false };
        f.api != Api::Hook && entry_counted.iter().any(|pattern| pattern.matches(f.name))
    }

    /// Whether the user excludes a function.
    fn excludes(&self, name: &str) -> bool {
        match self {
            Self::Globs { excluded, .. } | Self::Essential { excluded, .. } => {
                excluded.iter().any(|pattern| pattern.matches(name))
            }
            Self::Driver { .. } => false,
        }
    }

    /// Whether any function of an API is selected.
    pub(crate) fn selects_any(&self, api: Api) -> bool {
        catalogue().functions().iter().any(|f| f.api == api && self.selects(f))
    }

    /// The catalogue row of a function, if it is to be probed.
    pub(crate) fn function(&self, library: &Library, name: &str) -> Option<FunctionId> {
        let f = catalogue().lookup(library.kind, library.cuda_major, name)?;
        // a function that ends with a jump to another export would be counted twice
        let jumps = f.roles.jumps_to.is_some_and(|to| library.functions.iter().any(|s| s.name == to));
        let selects = self.selects(f) || self.is_state_only(f) || self.needed_for_failures(f);
        (!jumps && selects).then_some(f.id)
    }

    /// The catalogue row of a function of which only failures are counted, at its failure points: they are in the
    /// runtime, before it calls the CUDA driver, and its calls are not probed.
    pub(crate) fn failure_point(&self, library: &Library, name: &str) -> Option<FunctionId> {
        let Self::Driver { classes, failures, .. } = self else { return None };
        let f = catalogue().lookup(library.kind, library.cuda_major, name)?;
        let is_wanted = *failures != RuntimeFailures::None
            && f.api.is_above()
            && classes.contains(&f.class)
            && f.roles.jumps_to.is_none()
            && !self.needed_for_failures(f);
        is_wanted.then_some(f.id)
    }

    /// Whether a function is probed only for state.
    fn is_state_only(&self, f: &Function) -> bool {
        self.needed_for_names(f)
            || self.needed_for_contexts(f)
            || self.needed_for_gpu_ops(f)
            || self.needed_for_addresses(f)
            || self.needed_for_frees(f)
            || self.needed_for_references(f)
    }

    /// Whether the function of a catalogue row is selected.
    pub(crate) fn selects_id(&self, id: FunctionId) -> bool {
        catalogue().get(id).is_some_and(|f| self.selects(f))
    }

    /// What the probes of a function collect; `wanted` applies to selected functions.
    pub(crate) fn collect(&self, id: FunctionId, wanted: Collect) -> Collect {
        let counts_entries = |f: &Function| self.counts_entries(f) && !self.counts(f);
        match catalogue().get(id) {
            Some(f) if f.api == Api::Framework => Collect::Tensors,
            // functions that have return probes anyway are counted with durations and errors
            Some(f) if counts_entries(f) && !self.is_state_only(f) && !self.needed_for_failures(f) => {
                Collect::EntryCount
            }
            Some(f) if self.selects(f) => wanted,
            Some(f) if self.needed_for_failures(f) => Collect::Failures,
            _ => Collect::StateOnly,
        }
    }

    /// Whether a function is probed only for failures: a runtime function that is not called often. Functions that
    /// select a GPU are always included.
    fn needed_for_failures(&self, f: &Function) -> bool {
        let Self::Driver { classes, failures, .. } = self else { return false };
        let is_called_often = match f.class {
            Class::Launch | Class::GraphLaunch | Class::Sync => true,
            Class::Alloc | Class::Free | Class::Memcpy | Class::Memset => {
                *failures != RuntimeFailures::WithMemory
            }
            _ => false,
        };
        *failures != RuntimeFailures::None
            && f.api.is_above()
            && !(is_called_often || f.hot || f.roles.asynchronous)
            && (classes.contains(&f.class) || f.class == Class::Device)
    }

    /// Whether a function is probed only because it provides names of CUDA kernels, if launches are selected. Hot
    /// functions would cost too much.
    fn needed_for_names(&self, f: &Function) -> bool {
        let launches = self.has(Class::Launch) || self.has(Class::GraphLaunch);
        match self {
            Self::Globs { layer, .. } => {
                launches && gives_kernel_names(f) && !f.hot && (layer.has(f.api) || f.api.does_work())
            }
            // each costs a tenth of a second with perf events: only those that every CUDA kernel passes through
            Self::Essential { .. } => gives_kernel_names(f) && f.api.does_work() && f.class == Class::Module,
            Self::Driver { classes, few, .. } => {
                let cheap = !few || f.class == Class::Module;
                classes.contains(&Class::Launch)
                    && gives_kernel_names(f)
                    && f.api.does_work()
                    && !f.hot
                    && cheap
            }
        }
    }

    /// Whether a function is probed only because it shows what happens to launches and copies: on a captured stream
    /// they become part of a graph.
    fn needed_for_gpu_ops(&self, f: &Function) -> bool {
        let (launches, copies) = (self.has(Class::Launch), self.has_copies());
        let captures = (launches || copies) && changes_captures(f);
        let is_needed = match self {
            Self::Driver { few, .. } => captures || (launches && !few && changes_graphs(f)),
            Self::Essential { follows_gpu_ops, .. } => *follows_gpu_ops && captures,
            // waits are visible in the records themselves; copies of the runtime are seen at the CUDA driver
            Self::Globs { follows_gpu_ops, few, .. } => {
                // the nodes of a captured graph are launches on captured streams
                let makes_graphs = changes_graphs(f) || changes_captures(f) || f.class == Class::Launch;
                let graphs = self.has(Class::GraphLaunch) && makes_graphs && f.class != Class::Sync;
                let moves = copies && matches!(f.class, Class::Memcpy | Class::Memset);
                *follows_gpu_ops && (captures || (!few && (graphs || moves)))
            }
        };
        is_needed && f.api.does_work() && !f.hot
    }

    /// Whether a function is probed only because it shows which addresses are GPU memory or pinned memory, if copies
    /// are selected.
    fn needed_for_addresses(&self, f: &Function) -> bool {
        let registers = matches!(f.class, Class::HostRegister | Class::HostUnregister);
        let is_needed = match self {
            Self::Driver { few, .. } => !few || matches!(f.class, Class::Alloc | Class::Free),
            // the essential copies have the direction in their names
            Self::Essential { follows_gpu_ops, .. } => *follows_gpu_ops && registers,
            Self::Globs { follows_gpu_ops, .. } => *follows_gpu_ops,
        };
        is_needed && self.has(Class::Memcpy) && changes_addresses(f) && f.api.does_work() && !f.hot
    }

    /// Whether a function is probed only because it frees memory whose allocations are selected: without it, the
    /// memory would stay live forever.
    fn needed_for_frees(&self, f: &Function) -> bool {
        let Self::Globs { follows_gpu_ops: true, .. } = self else { return false };
        let frees = match f.class {
            Class::Free => self.has(Class::Alloc),
            Class::HostUnregister => self.has(Class::HostRegister),
            Class::Vmm => self.has(Class::Vmm),
            _ => false,
        };
        frees && f.api.does_work() && !f.hot
    }

    /// Whether a function is probed only because it takes references to memory objects, if allocations are selected:
    /// memory is freed with the last reference.
    fn needed_for_references(&self, f: &Function) -> bool {
        f.class == Class::Reference && self.has(Class::Alloc) && f.api.does_work()
    }

    /// Whether a function is probed only because it shows which context is current, if allocations are selected. The
    /// daemon counts by the host's GPUs, so it also needs the functions that identify a GPU.
    fn needed_for_contexts(&self, f: &Function) -> bool {
        let allocates = match self {
            Self::Globs { follows_gpu_ops, .. } => {
                self.has(Class::Alloc) || (*follows_gpu_ops && self.has(Class::Memcpy))
            }
            Self::Essential { .. } => true,
            Self::Driver { .. } => self.has(Class::Alloc) || self.has(Class::Memcpy),
        };
        allocates && (changes_contexts(f) || (matches!(self, Self::Driver { .. }) && identifies_gpus(f)))
    }
}

/// A glob that matches functions of the catalogue.
pub(crate) fn pattern(glob: &str) -> Result<Pattern> {
    pattern_or(glob, |_| false)
}

/// The same, but the glob may also match something else.
fn pattern_or(glob: &str, matches_other: impl Fn(&Pattern) -> bool) -> Result<Pattern> {
    let pattern = Pattern::new(glob).with_context(|| format!("`{glob}` is not a valid glob"))?;
    if !matches_other(&pattern) && !catalogue().functions().iter().any(|f| pattern.matches(f.name)) {
        bail!("no function matches `{glob}`: {}", advice(glob));
    }
    Ok(pattern)
}

/// Whether a function is probed although each probe is expensive.
fn is_essential(f: &Function) -> bool {
    f.api.row().essential.contains(&f.base)
}

/// Everything except hot functions, calls that compilers insert, and NVML.
fn informative(f: &Function) -> bool {
    !f.hot && !f.class.is_internal() && f.api != Api::Nvml
}

#[cfg(test)]
mod tests;
