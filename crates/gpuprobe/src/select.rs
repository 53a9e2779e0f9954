//! Which functions to probe.

use anyhow::{Context, Result, bail};
use glob::Pattern;
use gpuprobe_capture::{
    Collect, Tier, tells_addresses, tells_captures, tells_contexts, tells_gpus, tells_graphs, tells_names,
};
use gpuprobe_discover::Library;
use gpuprobe_event::{Api, Class, Function, FunctionId, Hooks, catalogue};

/// A choice of functions.
#[derive(Debug)]
pub(crate) enum Selection {
    /// By the user's globs. Of what they need beside themselves, `few` takes only what tells most.
    Globs { wanted: Vec<Pattern>, unwanted: Vec<Pattern>, classes: Vec<Class>, tells_work: bool, few: bool },
    /// The few that tell most, without those that the user does not want.
    Few { unwanted: Vec<Pattern>, tells_work: bool },
    /// What a daemon counts: the driver's functions of these classes. Of those that were not asked for by name, `few`
    /// takes only what tells most and what live memory is made of. With `failures`, also the runtime's functions of these
    /// classes, for calls that fail before they reach the driver. Calls of whatever else fits one of `tallied` are counted
    /// as they begin.
    Driver { classes: Vec<Class>, named: bool, few: bool, failures: bool, tallied: Vec<Pattern> },
}

impl Selection {
    /// From `-e` arguments. None at all, or only exclusions, begin with the informative set. What is hooked is asked for
    /// by its file, so that it can only be left out.
    pub(crate) fn from_globs(globs: &[String], hooks: &Hooks) -> Result<Self> {
        // what their globs fit is known when a library has been found
        let may_be_hooked = |pattern: &Pattern| {
            let mut hooks = hooks.libraries().iter();
            hooks.any(|hook| !hook.is_exact() || pattern.matches(hook.function.as_str()))
        };
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for glob in globs {
            let (name, patterns) = match glob.strip_prefix('!') {
                Some(name) => (name, &mut unwanted),
                None => (glob.as_str(), &mut wanted),
            };
            // each of them: one that was mistyped would only be missed among the calls of the others
            patterns.push(pattern_or(name, may_be_hooked)?);
        }
        let mut selection =
            Self::Globs { wanted, unwanted, classes: Vec::new(), tells_work: false, few: false };
        let taken = catalogue().functions().iter().filter(|f| selection.takes(f));
        let mut all: Vec<_> = taken.map(|f| f.class).chain(hooks.classes()).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            bail!("no function fits {}: all of them are left out again", globs.join(" "));
        }
        if let Self::Globs { classes, .. } = &mut selection {
            *classes = all;
        }
        Ok(selection)
    }

    /// The same, with what it takes to know what becomes of launches and copies.
    pub(crate) fn telling_work(mut self) -> Self {
        if let Self::Globs { tells_work, .. } | Self::Few { tells_work, .. } = &mut self {
            *tells_work = true;
        }
        self
    }

    /// Whether functions of a class are wanted.
    pub(crate) fn has(&self, class: Class) -> bool {
        match self {
            Self::Globs { classes, .. } | Self::Driver { classes, .. } => classes.contains(&class),
            Self::Few { .. } => true,
        }
    }

    /// Whether anything that copies or fills is wanted.
    pub(crate) fn has_copies(&self) -> bool {
        self.has(Class::Memcpy) || self.has(Class::Memset)
    }

    /// What is taken on a kernel that attaches in this way. Where each function has to be taken out by itself, at a
    /// tenth of a second, nobody who named none wants a thousand of them.
    pub(crate) fn on(self, tier: Tier) -> Self {
        match self {
            Self::Globs { wanted, unwanted, tells_work, .. } if tier == Tier::Perf && wanted.is_empty() => {
                Self::Few { unwanted, tells_work }
            }
            Self::Globs { wanted, unwanted, classes, tells_work, .. } => {
                Self::Globs { wanted, unwanted, classes, tells_work, few: tier == Tier::Perf }
            }
            Self::Driver { classes, named, failures, tallied, .. } => {
                let is_slow = tier == Tier::Perf;
                let (few, failures) = (is_slow && !named, failures && !is_slow);
                Self::Driver { classes, named, few, failures, tallied }
            }
            other => other,
        }
    }

    /// Whether less is taken than elsewhere.
    pub(crate) fn is_few(&self) -> bool {
        matches!(self, Self::Few { .. } | Self::Driver { few: true, .. })
    }

    /// Whether a function is wanted.
    pub(crate) fn takes(&self, f: &Function) -> bool {
        if f.api == Api::Hook {
            return !self.leaves_out(f.name);
        }
        match self {
            Self::Globs { wanted, unwanted, .. } => {
                let fits = |patterns: &[Pattern]| patterns.iter().any(|p| p.matches(f.name));
                let wanted = if wanted.is_empty() { informative(f) } else { fits(wanted) };
                wanted && !fits(unwanted)
            }
            // what is probed in any case is recorded too: the recording then comes to what the tables have
            Self::Few { unwanted, .. } => {
                let is_probed = TELLING.contains(&f.base) || self.takes_aside(f);
                is_probed && !unwanted.iter().any(|p| p.matches(f.name))
            }
            Self::Driver { .. } => self.counts(f) || self.tallies(f),
        }
    }

    /// Whether a daemon counts a function whole.
    fn counts(&self, f: &Function) -> bool {
        let Self::Driver { classes, few, .. } = self else { return false };
        let tells_most = TELLING.contains(&f.base) || matches!(f.class, Class::Alloc | Class::Free);
        f.api == Api::Driver && !f.hot && classes.contains(&f.class) && (!few || tells_most)
    }

    /// Whether a daemon has been asked for the calls of a function, though it has no other use for it.
    fn tallies(&self, f: &Function) -> bool {
        let Self::Driver { tallied, .. } = self else { return false };
        f.api != Api::Hook && tallied.iter().any(|pattern| pattern.matches(f.name))
    }

    /// Whether the user does not want a function.
    fn leaves_out(&self, name: &str) -> bool {
        match self {
            Self::Globs { unwanted, .. } | Self::Few { unwanted, .. } => {
                unwanted.iter().any(|pattern| pattern.matches(name))
            }
            Self::Driver { .. } => false,
        }
    }

    /// Whether any function of a family is wanted.
    pub(crate) fn takes_any(&self, api: Api) -> bool {
        catalogue().functions().iter().any(|f| f.api == api && self.takes(f))
    }

    /// The row of a library's function, if it is to be probed.
    pub(crate) fn function(&self, library: &Library, name: &str) -> Option<FunctionId> {
        let f = catalogue().lookup(library.kind, library.cuda_major, name)?;
        // what jumps to another export at its end would be counted twice
        let jumps = f.roles.jumps_to.is_some_and(|to| library.functions.iter().any(|s| s.name == to));
        let takes = self.takes(f) || self.takes_aside(f) || self.takes_for_failures(f);
        (!jumps && takes).then_some(f.id)
    }

    /// Whether a function is probed for what its calls tell of others.
    fn takes_aside(&self, f: &Function) -> bool {
        self.takes_for_names(f)
            || self.takes_for_contexts(f)
            || self.takes_for_work(f)
            || self.takes_for_addresses(f)
            || self.takes_for_frees(f)
    }

    /// Whether a function is wanted, by its row.
    pub(crate) fn takes_id(&self, id: FunctionId) -> bool {
        catalogue().get(id).is_some_and(|f| self.takes(f))
    }

    /// What the probes of a function do, where `wanted` is for those that are asked for.
    pub(crate) fn collect(&self, id: FunctionId, wanted: Collect) -> Collect {
        let is_tallied = |f: &Function| self.tallies(f) && !self.counts(f);
        match catalogue().get(id) {
            // what has return probes in any case is counted whole
            Some(f) if is_tallied(f) && !self.takes_aside(f) && !self.takes_for_failures(f) => {
                Collect::Entries
            }
            Some(f) if self.takes(f) => wanted,
            Some(f) if self.takes_for_failures(f) => Collect::Failures,
            _ => Collect::Aside,
        }
    }

    /// Whether a function is probed only because it may fail by itself: one of the runtime's that is not called all the
    /// time, as launches and what returns at once are. Whatever is looked at, it begins with the choice of a GPU.
    fn takes_for_failures(&self, f: &Function) -> bool {
        let Self::Driver { classes, failures: true, .. } = self else { return false };
        let is_called_often = f.hot
            || f.roles.asynchronous
            || matches!(f.class, Class::Launch | Class::GraphLaunch | Class::Sync);
        f.api == Api::Runtime && !is_called_often && (classes.contains(&f.class) || f.class == Class::Device)
    }

    /// Whether a function is probed only because its calls tell what kernels are called: where launches are wanted,
    /// and what is called all the time costs too much for that.
    fn takes_for_names(&self, f: &Function) -> bool {
        match self {
            Self::Globs { .. } => self.has(Class::Launch) && tells_names(f) && !f.hot,
            // each costs a tenth of a second there: those by which every kernel passes
            Self::Few { .. } => tells_names(f) && f.api == Api::Driver && f.class == Class::Module,
            Self::Driver { classes, few, .. } => {
                let cheap = !few || f.class == Class::Module;
                classes.contains(&Class::Launch) && tells_names(f) && f.api == Api::Driver && !f.hot && cheap
            }
        }
    }

    /// Whether a function is probed only because its calls tell what becomes of launches and copies: on a stream that
    /// is captured they are part of a graph.
    fn takes_for_work(&self, f: &Function) -> bool {
        let (launches, copies) = (self.has(Class::Launch), self.has_copies());
        let captures = (launches || copies) && tells_captures(f);
        let is_needed = match self {
            Self::Driver { few, .. } => captures || (launches && !few && tells_graphs(f)),
            Self::Few { tells_work, .. } => *tells_work && captures,
            // a record tells by itself when there was a wait; the driver tells of the runtime's copies
            Self::Globs { tells_work, few, .. } => {
                // what is captured into a graph is launched, and on streams that are captured
                let makes_graphs = tells_graphs(f) || tells_captures(f) || f.class == Class::Launch;
                let graphs = self.has(Class::GraphLaunch) && makes_graphs && f.class != Class::Sync;
                let moves = copies && matches!(f.class, Class::Memcpy | Class::Memset);
                *tells_work && (captures || (!few && (graphs || moves)))
            }
        };
        is_needed && f.api == Api::Driver && !f.hot
    }

    /// Whether a function is probed only because its calls tell which addresses are those of a GPU, or pinned: where
    /// copies are wanted.
    fn takes_for_addresses(&self, f: &Function) -> bool {
        let registers = matches!(f.class, Class::HostRegister | Class::HostUnregister);
        let is_needed = match self {
            Self::Driver { few, .. } => !few || matches!(f.class, Class::Alloc | Class::Free),
            // their copies have the direction in their names
            Self::Few { tells_work, .. } => *tells_work && registers,
            Self::Globs { tells_work, .. } => *tells_work,
        };
        is_needed && self.has(Class::Memcpy) && tells_addresses(f) && f.api == Api::Driver && !f.hot
    }

    /// Whether a function is probed only because its calls free memory whose allocations are wanted: it would seem to be
    /// live forever.
    fn takes_for_frees(&self, f: &Function) -> bool {
        let Self::Globs { tells_work: true, .. } = self else { return false };
        let frees = match f.class {
            Class::Free => self.has(Class::Alloc),
            Class::HostUnregister => self.has(Class::HostRegister),
            Class::Vmm => self.has(Class::Vmm),
            _ => false,
        };
        frees && f.api == Api::Driver && !f.hot
    }

    /// Whether a function is probed only because its calls tell which context is current, where allocations are
    /// wanted; for a daemon, which counts by the host's GPUs, also because they tell which one a GPU is.
    fn takes_for_contexts(&self, f: &Function) -> bool {
        let allocates = match self {
            Self::Globs { tells_work, .. } => {
                self.has(Class::Alloc) || (*tells_work && self.has(Class::Memcpy))
            }
            Self::Few { .. } => true,
            Self::Driver { .. } => self.has(Class::Alloc) || self.has(Class::Memcpy),
        };
        allocates && (tells_contexts(f) || (matches!(self, Self::Driver { .. }) && tells_gpus(f)))
    }
}

/// A glob that fits functions of the catalogue.
pub(crate) fn pattern(glob: &str) -> Result<Pattern> {
    pattern_or(glob, |_| false)
}

/// The same, or one that fits something else.
fn pattern_or(glob: &str, fits_other: impl Fn(&Pattern) -> bool) -> Result<Pattern> {
    let pattern = Pattern::new(glob).with_context(|| format!("`{glob}` is no glob"))?;
    if !fits_other(&pattern) && !catalogue().functions().iter().any(|f| pattern.matches(f.name)) {
        bail!("no function fits `{glob}`: {}", advice(glob));
    }
    Ok(pattern)
}

/// Names that a glob may have meant: those that differ least from it.
fn advice(glob: &str) -> String {
    const MOST: usize = 3;
    let word = letters(glob);
    let mut near: Vec<_> = catalogue()
        .functions()
        .iter()
        .map(|f| {
            // what a star stands for is not compared
            let name = letters(f.base);
            (distance(&word, &name[..name.len().min(word.len())]), f.base)
        })
        .filter(|(distance, _)| word.len() > 2 && *distance <= 3)
        .collect();
    near.sort_by_key(|(distance, name)| (*distance, name.len(), *name));
    near.dedup_by_key(|(_, name)| *name);
    let near: Vec<_> = near.into_iter().take(MOST).map(|(_, name)| name).collect();
    match near.as_slice() {
        [] if glob.contains(',') => "-e takes one name or glob, and can be repeated".to_owned(),
        [] => "`gpuprobe list` shows their names".to_owned(),
        near => format!("did you mean {}? `gpuprobe list` shows all names", near.join(", ")),
    }
}

fn letters(glob: &str) -> Vec<u8> {
    glob.bytes().filter(u8::is_ascii_alphanumeric).map(|b| b.to_ascii_lowercase()).collect()
}

/// How many letters have to be put in, taken out or changed to make one word of the other.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// Allocations, copies, launches and waiting at the driver, where every library passes: about sixty probes.
const TELLING: [&str; 22] = [
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemAllocHost",
    "cuMemAllocAsync",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuGraphLaunch",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
];

/// The functions that say something, without those that are called all the time and say nothing.
fn informative(f: &Function) -> bool {
    !f.hot && f.api != Api::Nvml
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(globs: &[&str], name: &str) -> bool {
        let globs: Vec<String> = globs.iter().map(|g| (*g).to_owned()).collect();
        let selection = Selection::from_globs(&globs, &Hooks::default()).unwrap();
        catalogue().functions().iter().any(|f| f.name == name && selection.takes(f))
    }

    #[test]
    fn hot_functions_are_left_out_unless_asked_for() {
        assert!(taken(&[], "cudaMalloc"));
        assert!(!taken(&[], "cudaGetDevice"));
        assert!(!taken(&[], "nvmlInit_v2"));
        assert!(taken(&["*"], "cudaGetDevice"));
        assert!(taken(&["nvml*"], "nvmlInit_v2"));
    }

    #[test]
    fn exclusions_win() {
        assert!(!taken(&["!cudaMalloc"], "cudaMalloc"));
        assert!(taken(&["!cudaMalloc"], "cudaFree"));
        assert!(!taken(&["cuda*", "!cudaMem*"], "cudaMemcpy"));
        assert!(!taken(&["cuda*"], "cuMemAlloc_v2"));
    }

    #[test]
    fn the_few_that_tell_most_are_in_the_catalogue() {
        for base in TELLING {
            assert!(catalogue().functions().iter().any(|f| f.base == base), "{base}");
        }
        let few = Selection::from_globs(&[], &Hooks::default()).unwrap().on(Tier::Perf);
        let taken =
            |selection: &Selection| catalogue().functions().iter().filter(|f| selection.takes(f)).count();
        assert!(taken(&few) < 70, "{}", taken(&few));
        let named = Selection::from_globs(&["cuda*".to_owned()], &Hooks::default()).unwrap().on(Tier::Perf);
        assert!(taken(&named) > 400, "what is named is taken");

        let daemon = |named| {
            let classes = vec![Class::Alloc, Class::Free, Class::Memcpy, Class::Launch, Class::Context];
            Selection::Driver { classes, named, few: false, failures: true, tallied: Vec::new() }
                .on(Tier::Perf)
        };
        let (few, named) = (daemon(false), daemon(true));
        assert!(few.is_few() && taken(&few) < 80, "{}", taken(&few));
        assert!(!named.is_few() && taken(&named) > 150, "{}", taken(&named));
        let takes = |name: &str| few.takes(catalogue().lookup(Api::Driver, None, name).unwrap());
        assert!(["cuMemAllocFromPoolAsync", "cuMemFree_v2", "cuLaunchKernel"].iter().all(|name| takes(name)));
        assert!(!takes("cuMemcpyAtoA_v2") && !takes("cuStreamSynchronize"), "telling, but of no such class");
    }

    #[test]
    fn what_becomes_of_work_is_followed_where_it_is_wanted_and_not_told() {
        let of = |glob: &str, tier| {
            Selection::from_globs(&[glob.to_owned()], &Hooks::default()).unwrap().telling_work().on(tier)
        };
        let driver = |name: &str| catalogue().lookup(Api::Driver, None, name).unwrap();
        let follows = |selection: &Selection, name: &str| {
            let f = driver(name);
            !selection.takes(f) && (selection.takes_for_work(f) || selection.takes_for_addresses(f))
        };
        let launches = of("cudaLaunchKernel", Tier::Session);
        assert!(follows(&launches, "cuStreamBeginCapture_v2") && !follows(&launches, "cuMemAlloc_v2"));
        assert!(!follows(&launches, "cuGraphInstantiateWithFlags"), "no graph is launched");
        assert!(follows(&of("cudaGraphLaunch", Tier::Session), "cuGraphInstantiateWithFlags"));
        let copies = of("cudaMemcpy*", Tier::Session);
        assert!(["cuMemcpyHtoD_v2", "cuMemAlloc_v2", "cuMemMap"].iter().all(|name| follows(&copies, name)));
        assert!(!follows(&copies, "cuMemSetAccess") && !follows(&copies, "cuStreamSynchronize"));
        assert!(!follows(&of("cudaMemcpy*", Tier::Perf), "cuMemcpyHtoD_v2"));
        assert!(!follows(&of("cudaMalloc", Tier::Session), "cuStreamBeginCapture_v2"));
        let few = Selection::from_globs(&[], &Hooks::default()).unwrap().telling_work().on(Tier::Perf);
        assert!(few.takes(driver("cuStreamBeginCapture_v2")) && few.takes(driver("cuMemHostRegister_v2")));
        let traced = Selection::from_globs(&["cudaLaunchKernel".to_owned()], &Hooks::default()).unwrap();
        assert!(!follows(&traced, "cuStreamBeginCapture_v2"), "a trace does not need it");
    }

    #[test]
    fn globs_that_fit_nothing_or_are_none_are_refused() {
        let error = |glob: &str| {
            Selection::from_globs(&[glob.to_owned()], &Hooks::default()).unwrap_err().to_string()
        };
        assert!(error("vulkan*").contains("gpuprobe list"));
        assert!(error("cudaMalocManaged").contains("did you mean cudaMallocManaged?"));
        assert!(error("cumemaloc*").contains("did you mean cuMemAlloc, "), "{}", error("cumemaloc*"));
        assert!(error("CUDAFREE").contains("cudaFree"));
        assert!(error("[").contains("is no glob"));
        assert!(error("cudaMalloc,cudaFree").contains("can be repeated"));

        let second = |glob: &str| {
            let globs = ["cudaFree".to_owned(), glob.to_owned()];
            Selection::from_globs(&globs, &Hooks::default()).unwrap_err().to_string()
        };
        assert!(second("cudaMaloc").contains("`cudaMaloc`: did you mean cudaMalloc, "), "one of several");
        assert!(second("!cudaMaloc").contains("did you mean cudaMalloc, "), "it would leave nothing out");
        assert!(second("!cuda*").contains("left out again"));
    }
}
