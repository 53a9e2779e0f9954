//! Call sites as people distinguish them. Stacks that read the same are one call site, no matter how many addresses
//! they have. A call site is named after the function that requested the memory, not after the library functions that
//! it called to get it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::{Api, Frame, SiteId, catalogue};
use serde::Serialize;

use super::user_code::innermost_user_code;

/// CUDA libraries, and frameworks that allocate on behalf of their callers: their frames are never the name of a call
/// site.
const CUDA_LIBRARIES: [&str; 6] =
    ["libcuda.so", "libcudart", "libcudadebugger", "libnvidia-", "libc10", "libtorch"];
/// Prefixes of the runtime's internal functions when it is linked statically.
const STATIC_RUNTIME: [&str; 3] = ["__cudart", "libcudart_static_", "cudart::"];
/// Prefixes of template libraries, which allocate on behalf of their callers.
const TEMPLATE_LIBRARIES: [&str; 4] = ["std::", "__gnu_cxx::", "thrust::", "cub::"];

/// PyTorch's backward pass runs in threads of its own, without any Python.
const AUTOGRAD: &str = "torch::autograd::";

/// A call site: one stack of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct CallSite {
    /// The frames from the one to show outwards; empty if the stack is not known. Only the Python frames, if there are
    /// any: between them are the functions of the interpreter, which has several ways to make the same call.
    pub frames: Vec<Frame>,
}

impl CallSite {
    /// The call site of a stack, innermost frame first.
    pub fn of(mut frames: Vec<Frame>) -> Self {
        let first = shown_frame(&frames);
        let has_python = frames.iter().any(|frame| frame.python);
        frames.drain(..first);
        frames.retain(|frame| frame.python || !has_python);
        Self { frames }
    }

    /// The function to show, with its line if known. The source file is shown without its directory.
    pub fn name(&self) -> String {
        self.frames.first().map_or_else(|| UNKNOWN.to_owned(), |frame| self.short_first(frame))
    }

    /// The source file without its directory and the line of the function to show, `train.py:88`; its name if they
    /// are not known, and `None` if the stack is not known.
    pub fn place(&self) -> Option<String> {
        let frame = self.frames.first()?;
        let line = frame.file.as_ref().zip(frame.line);
        Some(line.map_or_else(
            || self.short_first(frame),
            |(file, line)| format!("{}:{line}", without_folder(file)),
        ))
    }

    /// The first frame in short. If the outermost frames of a thread of autograd are not known, it says so.
    fn short_first(&self, first: &Frame) -> String {
        let is_cut = self.frames.last().is_some_and(Frame::stands_for_autograd_thread);
        let function = first.function.as_deref().filter(|_| is_cut && self.frames.len() > 1);
        match function {
            Some(function) if autograd_node(first).is_none() => {
                format!("{} (autograd thread)", without_arguments(function))
            }
            _ => short(first),
        }
    }

    /// All frames in short, the innermost first.
    fn short_stack(&self) -> Vec<String> {
        let first = self.frames.first().map(|frame| self.short_first(frame));
        first.into_iter().chain(self.frames.iter().skip(1).map(short)).collect()
    }

    /// All frames, the innermost first.
    pub fn stack(&self) -> Vec<String> {
        self.frames.iter().map(Frame::to_string).collect()
    }
}

/// A frame without the directory of its source file; a node of PyTorch's autograd by its name alone.
fn short(frame: &Frame) -> String {
    if let Some(node) = autograd_node(frame) {
        return format!("{node} (autograd thread)");
    }
    let file = frame.file.as_deref().map(|file| without_folder(file).to_owned());
    Frame { file, ..frame.clone() }.to_string()
}

fn without_folder(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// What a function of PyTorch's autograd computes: `AddmmBackward0` of
/// `torch::autograd::generated::AddmmBackward0::apply(...)`.
fn autograd_node(frame: &Frame) -> Option<&str> {
    let function = frame.function.as_deref()?.strip_prefix(AUTOGRAD)?;
    let function = function.strip_prefix("generated::").unwrap_or(function);
    let name = without_arguments(function);
    Some(name.strip_suffix("::apply").unwrap_or(name))
}

fn without_arguments(function: &str) -> &str {
    function.split_once('(').map_or(function, |(name, _)| name)
}

/// The name of the call site of allocations whose stack is not known.
pub const UNKNOWN: &str = "unknown";

/// The index of the frame to show. With Python frames: the innermost of the user's own code. In a thread of PyTorch's
/// autograd: the innermost of autograd's own functions; if none is known, the outermost known function. Otherwise the first with a known function that is neither in a
/// CUDA library nor in a template library; or else the first outside of CUDA libraries; or else the first.
fn shown_frame(frames: &[Frame]) -> usize {
    let outside = |f: &Frame| !is_of_cuda(f);
    let is_program = |f: &Frame| {
        let is_template = |name: &String| TEMPLATE_LIBRARIES.iter().any(|prefix| name.starts_with(prefix));
        outside(f) && f.function.as_ref().is_some_and(|name| !is_template(name))
    };
    if let Some(frame) = innermost_user_frame(frames) {
        return frame;
    }
    if frames.iter().any(Frame::is_of_autograd_thread) {
        let is_own = |f: &Frame| f.function.as_ref().is_some_and(|name| name.starts_with(AUTOGRAD));
        let is_known = |f: &Frame| f.function.is_some() && !f.stands_for_autograd_thread();
        let own = frames.iter().position(is_own);
        return own.or_else(|| frames.iter().rposition(is_known)).unwrap_or(0);
    }
    let found = |wanted: &dyn Fn(&Frame) -> bool| frames.iter().position(wanted);
    found(&is_program).or_else(|| found(&outside)).unwrap_or(0)
}

/// The index of the innermost Python frame of the user's own code, or of the innermost Python frame.
fn innermost_user_frame(frames: &[Frame]) -> Option<usize> {
    let python: Vec<usize> = (0..frames.len()).filter(|at| frames[*at].python).collect();
    let file = |at: &usize| frames[*at].file.as_deref().unwrap_or_default();
    innermost_user_code(python.iter().map(file)).and_then(|at| python.get(at).copied())
}

fn is_of_cuda(frame: &Frame) -> bool {
    let in_library = |module: &String| CUDA_LIBRARIES.iter().any(|library| module.starts_with(library));
    let is_runtime = |name: &String| {
        STATIC_RUNTIME.iter().any(|prefix| name.starts_with(prefix))
            || Api::gpu_libraries().any(|api| catalogue().lookup(api, None, name).is_some())
    };
    frame.module.as_ref().is_some_and(in_library) || frame.function.as_ref().is_some_and(is_runtime)
}

/// The number of a call site, in the order of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct CallSiteId(u64);

/// Maps the site ids of the BPF side to call sites.
#[derive(Clone, Debug, Default)]
pub struct CallSites {
    of_site: HashMap<SiteId, CallSiteId>,
    by_stack: HashMap<Vec<String>, CallSiteId>,
    call_sites: HashMap<CallSiteId, Arc<CallSite>>,
    found: u64,
}

impl CallSites {
    /// Whether the stack of a site has been set.
    pub fn is_named(&self, site: SiteId) -> bool {
        self.of_site.contains_key(&site)
    }

    /// Sets the stack of a site, innermost frame first.
    pub fn name(&mut self, site: SiteId, frames: Vec<Frame>) {
        let call_site = CallSite::of(frames);
        let id = *self.by_stack.entry(call_site.stack()).or_insert_with(|| {
            self.found += 1;
            CallSiteId(self.found)
        });
        self.call_sites.entry(id).or_insert_with(|| Arc::new(call_site));
        self.of_site.insert(site, id);
    }

    /// The call site of a site id; `None` if its stack has not been set.
    pub fn of(&self, site: SiteId) -> Option<CallSiteId> {
        self.of_site.get(&site).copied()
    }

    pub fn get(&self, id: CallSiteId) -> Option<&Arc<CallSite>> {
        self.call_sites.get(&id)
    }

    /// Forgets all other sites, and the call sites that only they belong to.
    pub fn keep(&mut self, sites: &HashSet<SiteId>) {
        self.of_site.retain(|site, _| sites.contains(site));
        let used: HashSet<CallSiteId> = self.of_site.values().copied().collect();
        self.call_sites.retain(|id, _| used.contains(id));
        self.by_stack.retain(|_, id| used.contains(id));
    }
}

/// Distinct names for call sites that are shown together. If several have the same first frame, for example because
/// they allocate through one function, the next frames in which they differ are appended.
pub fn distinct_names(call_sites: &[Arc<CallSite>]) -> Vec<String> {
    let stacks: Vec<Vec<String>> = call_sites.iter().map(|call_site| call_site.short_stack()).collect();
    let mut names = names_of_stacks(&stacks);
    number_duplicates(&mut names, call_sites);
    names
}

/// Names for stacks, the innermost frame first. Names of different stacks are different if no frame contains ` < `.
pub fn names_of_stacks(stacks: &[Vec<String>]) -> Vec<String> {
    let first = |stack: &Vec<String>| stack.first().map_or_else(|| UNKNOWN.to_owned(), Clone::clone);
    let mut names: Vec<String> = stacks.iter().map(first).collect();
    // groups of stacks whose first frames are equal, with the number of these frames
    let mut groups = vec![(0, (0..stacks.len()).collect::<Vec<_>>())];
    while let Some((from, group)) = groups.pop() {
        let at = |index: usize, i: usize| stacks[index].get(i);
        let longest = group.iter().map(|index| stacks[*index].len()).max().unwrap_or_default();
        let differs = |i: &usize| group.iter().any(|index| at(*index, *i) != at(group[0], *i));
        let Some(i) = (from..longest).find(differs) else { continue };
        let mut parts: HashMap<Option<&String>, Vec<usize>> = HashMap::new();
        group.iter().for_each(|index| parts.entry(at(*index, i)).or_default().push(*index));
        for (caller, part) in parts {
            if let Some(caller) = caller.filter(|_| i > 0) {
                part.iter().for_each(|index| names[*index] += &format!(" < {caller}"));
            }
            groups.push((i + 1, part));
        }
    }
    names
}

/// The first frame of a name of [`distinct_names`]. The other frames depend on the call sites that it was named with.
pub fn first_frame(name: &str) -> &str {
    let first = name.split(" < ").next().unwrap_or(name);
    match first.rsplit_once(" #") {
        Some((frame, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => frame,
        _ => first,
    }
}

/// Appends numbers to equal names. The numbers follow the order of the stacks, because the order in the list changes.
pub fn number_duplicates(names: &mut [String], call_sites: &[Arc<CallSite>]) {
    let mut order: Vec<usize> = (0..names.len().min(call_sites.len())).collect();
    order.sort_by_cached_key(|i| call_sites[*i].stack());
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    let mut seen = HashSet::new();
    for i in order {
        if seen.insert(names[i].clone()) {
            continue;
        }
        let free = (2_u64..).map(|n| format!("{} #{n}", names[i])).find(|name| !taken.contains(name));
        if let Some(name) = free {
            taken.insert(name.clone());
            names[i] = name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, module: &str, line: u32) -> Frame {
        Frame {
            address: u64::from(line),
            function: (!function.is_empty()).then(|| function.to_owned()),
            offset: u64::from(line),
            module: Some(module.to_owned()),
            file: (line > 0).then(|| "/src/lib/app.cc".to_owned()),
            line: (line > 0).then_some(line),
            inlined: false,
            python: false,
        }
    }

    fn named(frames: &[Frame]) -> String {
        CallSite::of(frames.to_vec()).name()
    }

    #[test]
    fn the_name_is_the_function_that_requested_the_memory() {
        let cases: &[(&[Frame], &str)] = &[
            (&[frame("load", "app", 3), frame("main", "app", 9)], "load (app.cc:3)"),
            (&[frame("cudaMalloc", "libcudart.so.12", 0), frame("load", "app", 3)], "load (app.cc:3)"),
            (
                &[frame("", "libcudart.so.12", 0), frame("", "libcuda.so.1", 0), frame("load", "app", 3)],
                "load (app.cc:3)",
            ),
            (
                &[frame("cudaMalloc", "app", 0), frame("__cudart1234", "app", 0), frame("load", "app", 3)],
                "load (app.cc:3)",
            ),
            (
                &[frame("thrust::device_vector<int>::allocate()", "app", 7), frame("load", "app", 3)],
                "load (app.cc:3)",
            ),
            (
                &[frame("", "libcublas.so.12", 0), frame("cublasCreate_v2", "libcublas.so.12", 0)],
                "cublasCreate_v2+0x0 (libcublas.so.12)",
            ),
            (&[frame("", "libcuda.so.1", 0), frame("", "app", 0)], "app+0x0"),
            (&[frame("cuMemAlloc_v2", "libcuda.so.1", 0)], "cuMemAlloc_v2+0x0 (libcuda.so.1)"),
            (&[frame("std::allocate()", "app", 0)], "std::allocate()+0x0 (app)"),
            (&[], "unknown"),
        ];
        for (frames, name) in cases {
            assert_eq!(named(frames), *name);
        }
    }

    fn python(function: &str, file: &str, line: u32) -> Frame {
        let (function, file) = (Some(function.to_owned()), Some(file.to_owned()));
        Frame { function, file, line: Some(line), python: true, ..Frame::default() }
    }

    #[test]
    fn the_call_site_of_a_python_program_is_a_line_of_its_own_code() {
        let torch = "/usr/lib/python3/dist-packages/torch/functional.py";
        let stack = |address| {
            vec![
                frame("at::native::empty_cuda", "libtorch_cuda.so", 0),
                python("empty", torch, 7),
                frame("vectorcall", "python3", address),
                python("remember", "/home/user/train.py", 12),
                frame("PyEval_EvalCode", "python3", address),
                python("<module>", "/home/user/train.py", 30),
            ]
        };
        let mut call_sites = CallSites::default();
        call_sites.name(SiteId(1), stack(0x10));
        call_sites.name(SiteId(2), stack(0x20));
        let id = call_sites.of(SiteId(1)).unwrap();
        assert_eq!(call_sites.of(SiteId(2)), Some(id), "the interpreter has several ways to make a call");
        let call_site = call_sites.get(id).unwrap();
        assert_eq!(call_site.name(), "remember (train.py:12)");
        assert_eq!(call_site.place().as_deref(), Some("train.py:12"));
        assert_eq!(call_site.frames.len(), 2);
        let only_library = CallSite::of(stack(0).into_iter().take(3).collect());
        assert_eq!(only_library.name(), "empty (functional.py:7)");
    }

    #[test]
    fn the_threads_of_autograd_run_no_python_and_are_named_after_what_they_compute() {
        let frames = [
            frame("at::native::empty_cuda", "libtorch_cuda.so", 0),
            frame(
                "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)",
                "libtorch_cpu.so",
                0,
            ),
            frame("torch::autograd::Engine::evaluate_function(int)", "libtorch_cpu.so", 0),
            frame("torch::autograd::Engine::thread_main(int)", "libtorch_cpu.so", 0),
        ];
        let name = |from: usize| CallSite::of(frames[from..].to_vec()).name();
        assert_eq!(name(0), "AddmmBackward0 (autograd thread)");
        assert_eq!(name(2), "Engine::evaluate_function (autograd thread)");
        assert_eq!(
            CallSite::of(frames[..1].to_vec()).name(),
            "at::native::empty_cuda+0x0 (libtorch_cuda.so)"
        );
        // cut off: by its thread
        let cut = |to: usize| {
            let frames = frames[..to].iter().cloned().chain([Frame::of_autograd_thread()]);
            CallSite::of(frames.collect())
        };
        assert_eq!(cut(3).name(), "AddmmBackward0 (autograd thread)");
        assert_eq!(cut(1).name(), "at::native::empty_cuda (autograd thread)");
        assert_eq!(cut(1).place(), Some(cut(1).name()));
        assert_eq!(distinct_names(&[Arc::new(cut(1))]), ["at::native::empty_cuda (autograd thread)"]);
        assert_eq!(cut(0).name(), "... (autograd thread)");
        let place = |frames: &[Frame]| CallSite::of(frames.to_vec()).place();
        assert_eq!(place(&frames).as_deref(), Some("AddmmBackward0 (autograd thread)"));
        assert_eq!(place(&[]), None);
    }

    #[test]
    fn stacks_that_read_the_same_are_one_call_site() {
        let mut call_sites = CallSites::default();
        let stack = |address| vec![Frame { address, ..frame("load", "app", 3) }, frame("main", "app", 9)];
        call_sites.name(SiteId(1), stack(0x10));
        call_sites.name(SiteId(2), [vec![frame("", "libcuda.so.1", 0)], stack(0x20)].concat());
        call_sites.name(SiteId(3), vec![frame("load", "app", 3), frame("main", "app", 10)]);
        call_sites.name(SiteId(4), vec![]);
        call_sites.name(SiteId(5), vec![]);
        let of = |site| call_sites.of(SiteId(site)).unwrap();
        assert_eq!((of(1), of(4)), (of(2), of(5)));
        assert_ne!(of(1), of(3));
        assert!(call_sites.is_named(SiteId(5)) && !call_sites.is_named(SiteId(6)));
        assert_eq!(
            call_sites.get(of(2)).unwrap().stack(),
            ["load (/src/lib/app.cc:3)", "main (/src/lib/app.cc:9)"]
        );

        call_sites.keep(&HashSet::from([SiteId(2), SiteId(6)]));
        assert!(
            call_sites.of(SiteId(1)).is_none()
                && call_sites.call_sites.len() == 1
                && call_sites.by_stack.len() == 1
        );
        let kept = call_sites.of(SiteId(2));
        call_sites.name(SiteId(7), stack(0x30));
        assert_eq!(call_sites.of(SiteId(7)), kept);
    }

    #[test]
    fn call_sites_of_one_function_are_named_with_their_callers() {
        let call_site = |frames: &[Frame]| Arc::new(CallSite::of(frames.to_vec()));
        let (get, main) = (frame("get", "app", 3), frame("main", "app", 9));
        let shown = distinct_names(&[
            call_site(&[get.clone(), frame("pool", "app", 4), frame("load", "app", 5), main.clone()]),
            call_site(&[get.clone(), frame("pool", "app", 4), frame("save", "app", 6), main.clone()]),
            call_site(&[main]),
        ]);
        assert_eq!(
            shown,
            ["get (app.cc:3) < load (app.cc:5)", "get (app.cc:3) < save (app.cc:6)", "main (app.cc:9)"]
        );
    }

    #[test]
    fn no_two_call_sites_have_the_same_name() {
        let call_site = |names: &[&str]| {
            let frames = names.iter().enumerate().map(|(i, name)| frame(name, "app", i as u32 + 1));
            Arc::new(CallSite::of(frames.collect()))
        };
        let folder = |folder: &str| {
            let file = Some(format!("{folder}/app.cc"));
            Arc::new(CallSite::of(vec![Frame { file, ..frame("put", "app", 1) }]))
        };
        let call_sites = [
            call_site(&["get", "mid", "one", "main"]),
            call_site(&["get", "mid", "two", "main"]),
            call_site(&["get", "alt", "three", "main"]),
            call_site(&["get", "mid", "two", "main", "start"]),
            folder("/b"),
            folder("/a"),
            folder("/c"),
        ];
        let expected = [
            "get (app.cc:1) < mid (app.cc:2) < one (app.cc:3)",
            "get (app.cc:1) < mid (app.cc:2) < two (app.cc:3)",
            "get (app.cc:1) < alt (app.cc:2)",
            "get (app.cc:1) < mid (app.cc:2) < two (app.cc:3) < start (app.cc:5)",
            "put (app.cc:1) #2",
            "put (app.cc:1)",
            "put (app.cc:1) #3",
        ];
        assert_eq!(distinct_names(&call_sites), expected);
        // the order of the input does not matter
        let (backwards, expected): (Vec<_>, Vec<_>) = call_sites.into_iter().zip(expected).rev().unzip();
        assert_eq!(distinct_names(&backwards), expected);
    }

    #[test]
    fn the_first_frame_of_a_name_does_not_depend_on_other_call_sites() {
        for (name, frame) in [
            ("get (app.cc:1) < mid (app.cc:2) #2", "get (app.cc:1)"),
            ("put (app.cc:1) #3", "put (app.cc:1)"),
            ("f()::{lambda()#1}+0x2 (app)", "f()::{lambda()#1}+0x2 (app)"),
            ("x #y", "x #y"),
            ("unknown", "unknown"),
            ("", ""),
        ] {
            assert_eq!(first_frame(name), frame);
        }
    }

    #[test]
    fn names_that_equal_generated_names_are_numbered() {
        let bare = |function: &str| Frame {
            function: Some(function.to_owned()),
            module: Some("app".to_owned()),
            ..Frame::default()
        };
        let call_site =
            |names: &[&str]| Arc::new(CallSite::of(names.iter().map(|name| bare(name)).collect()));
        let call_sites = [
            call_site(&["get", "one"]),
            call_site(&["get", "two"]),
            call_site(&["get+0x0 (app) < one"]),
            call_site(&["main"]),
        ];
        let names = distinct_names(&call_sites);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), call_sites.len(), "{names:?}");
        let mut names = ["a", "a", "a #2", "b"].map(str::to_owned);
        number_duplicates(&mut names, &call_sites);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 4, "{names:?}");
        assert!(names.contains(&"a #3".to_owned()) && names.contains(&"b".to_owned()), "{names:?}");
    }
}
