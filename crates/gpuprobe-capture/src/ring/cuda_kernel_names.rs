//! Learns the names of CUDA kernels from what programs do: they register kernels, look them up by name, and launch
//! handles that point to an object of the CUDA driver with the name in it. The layout of that object is not
//! documented. So a word of it is trusted only for a CUDA driver whose handles were seen to have their names there:
//! names that were known from elsewhere, or several texts that can only be names of kernels. Besides, it is trusted
//! in a process whose own files contain a name that was read there. Pure.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use gpuprobe_discover::demangled;
use gpuprobe_event::counters::ProcessKey;

use crate::wire::LibraryNumber;

/// The most handles of one process. PyTorch registers some twenty thousand; names of more are not stored.
const MAX_HANDLES: usize = 1 << 17;
/// The most forms of one kernel handle: host function, kernel, function.
const MAX_ALIASES: usize = 4;
/// Words of a handle's object that may point to the name.
const WORDS: usize = 16;
/// How many different C++ functions the handles must point to before the texts are trusted as names.
const ENOUGH: usize = 4;
/// How many texts of one process are searched for in its files. Every text would be found if the word is right,
/// except those of code that was compiled while the program ran.
const MAX_SEARCHES: usize = 4;
/// The word in every CUDA driver that was examined.
pub(crate) const LIKELY_WORD: u16 = 1;

/// The word with the name, for CUDA drivers that were examined.
pub(crate) fn proven_word(driver: &Path) -> Option<u16> {
    /// The word had the name of every CUDA kernel in the tests on a GPU.
    const PROVEN: [(&str, u16); 1] = [("libcuda.so.580.159.04", 1)];
    let name = driver.file_name()?.to_str()?;
    PROVEN.iter().find(|(driver, _)| name == *driver).map(|(_, word)| *word)
}

/// What a record says about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleInfo<'a> {
    /// Its name, and a bit for each word of its object that points to the same text.
    Name { text: &'a str, matches: u32 },
    /// It is another form of this handle.
    AliasOf(u64),
    /// The text that one of its words points to, and the handle of the outer launch call.
    Candidate { text: &'a str, word: u16, outer: u64 },
}

/// The name of a handle. PyTorch registers twenty thousand kernels and waits while it does; it launches some hundred of
/// them. So a name is demangled when it is first needed.
#[derive(Debug)]
struct KnownName {
    text: Box<str>,
    demangled: OnceLock<Arc<str>>,
}

impl KnownName {
    fn new(text: &str) -> Self {
        Self { text: text.into(), demangled: OnceLock::new() }
    }

    fn demangled(&self) -> &Arc<str> {
        self.demangled.get_or_init(|| demangled(&self.text).into())
    }
}

/// What a word of a handle points to.
#[derive(Clone, Debug)]
struct Candidate {
    word: u16,
    text: Arc<str>,
    /// The text, demangled.
    name: Arc<str>,
}

#[derive(Debug, Default)]
struct ProcessKernels {
    known: HashMap<u64, KnownName>,
    aliases: HashMap<u64, u64>,
    candidates: HashMap<u64, Candidate>,
    driver: Option<LibraryNumber>,
    /// The word that had a name which the files of the process contain.
    proven_word: Option<u16>,
    /// Texts that were searched for in its files.
    searched: HashSet<Arc<str>>,
}

/// How often each word of a CUDA driver's handles had the name, and how often not.
#[derive(Debug, Default)]
struct Layout {
    right: [u32; WORDS],
    wrong: [u32; WORDS],
    /// Plausible names found at each word.
    plausible: [HashSet<Arc<str>>; WORDS],
}

impl Layout {
    fn saw(&mut self, matches: u32) {
        for word in 0..WORDS {
            if matches & 1 << word != 0 {
                self.right[word] = self.right[word].saturating_add(1);
            } else {
                self.wrong[word] = self.wrong[word].saturating_add(1);
            }
        }
    }

    /// Notes a text at a word of a handle whose name is not known.
    fn found(&mut self, candidate: &Candidate) {
        let Candidate { word, text, name } = candidate;
        let Some(plausible) = self.plausible.get_mut(usize::from(*word)) else { return };
        // only mangled names can be distinguished from other texts
        if plausible.len() < ENOUGH && text.starts_with("_Z") && name != text {
            plausible.insert(Arc::clone(name));
            if plausible.len() == ENOUGH {
                self.right[usize::from(*word)] += 1;
            }
        }
    }

    /// Whether a handle was seen whose name is not at this word.
    fn is_refuted(&self, word: u16) -> bool {
        self.wrong.get(usize::from(word)).is_none_or(|wrong| *wrong > 0)
    }

    /// The word that had the name of every handle whose name was known.
    fn word(&self) -> Option<u16> {
        (0..WORDS).find(|w| self.right[*w] > 0 && self.wrong[*w] == 0).and_then(|w| u16::try_from(w).ok())
    }
}

/// The names of all processes.
#[derive(Debug, Default)]
pub(crate) struct KernelNames {
    processes: HashMap<ProcessKey, ProcessKernels>,
    layouts: HashMap<LibraryNumber, Layout>,
    /// The CUDA driver of processes whose driver calls are not seen, if only one is attached.
    only_driver: Option<LibraryNumber>,
}

impl KernelNames {
    /// Adds a CUDA driver whose layout is known.
    pub(crate) fn trust(&mut self, driver: LibraryNumber, word: u16) {
        self.layouts.entry(driver).or_default().saw(1 << word);
    }

    /// Sets the CUDA drivers that are probed.
    pub(crate) fn set_drivers(&mut self, drivers: &[LibraryNumber]) {
        self.only_driver = if let [only] = drivers { Some(*only) } else { None };
    }

    /// Adds what a record says. `driver` is the file that it comes from, if that is a CUDA driver.
    pub(crate) fn learn(
        &mut self,
        key: ProcessKey,
        driver: Option<LibraryNumber>,
        handle: u64,
        info: HandleInfo<'_>,
    ) {
        let kernels = self.processes.entry(key).or_default();
        kernels.driver = driver.or(kernels.driver);
        if kernels.known.len() + kernels.aliases.len() + kernels.candidates.len() >= MAX_HANDLES {
            return;
        }
        match info {
            HandleInfo::Name { text, matches } => {
                if let Some(driver) = driver {
                    self.layouts.entry(driver).or_default().saw(matches);
                }
                // an empty text is no name
                if !text.is_empty() {
                    kernels.known.insert(handle, KnownName::new(text));
                }
            }
            HandleInfo::AliasOf(other) => {
                kernels.aliases.insert(handle, other);
            }
            HandleInfo::Candidate { text, word, outer } => {
                if outer != 0 && outer != handle {
                    kernels.aliases.entry(outer).or_insert(handle);
                }
                if is_name(text) {
                    let name: Arc<str> = demangled(text).into();
                    let candidate = Candidate { word, text: text.into(), name };
                    if let Some(driver) = driver {
                        self.layouts.entry(driver).or_default().found(&candidate);
                    }
                    kernels.candidates.insert(handle, candidate);
                    self.compare(key, outer);
                }
            }
        }
    }

    /// Compares the known name of the handle of an outer launch call with what a word of the inner handle points to.
    fn compare(&mut self, key: ProcessKey, outer: u64) {
        let Some(kernels) = self.processes.get(&key) else { return };
        let inner = kernels.aliases.get(&outer).and_then(|inner| kernels.candidates.get(inner));
        if let (Some(known), Some(inner), Some(driver)) = (kernels.known.get(&outer), inner, kernels.driver) {
            let matches = if *known.demangled() == inner.name {
                1_u32.checked_shl(inner.word.into()).unwrap_or(0)
            } else {
                0
            };
            self.layouts.entry(driver).or_default().saw(matches);
        }
    }

    /// Adds a name that was found in the program's own symbols.
    pub(crate) fn found(&mut self, key: ProcessKey, handle: u64, name: &str) {
        let kernels = self.processes.entry(key).or_default();
        // the host stub of a CUDA kernel has the kernel's name, with a prefix in old toolkits
        let name = name.trim_start_matches("__device_stub__");
        kernels.known.insert(handle, KnownName::new(name));
        self.compare(key, handle);
    }

    /// The text to search for in the files of a process, if that could prove that it is the name of this handle.
    pub(crate) fn unproven(&self, key: ProcessKey, handle: u64) -> Option<Arc<str>> {
        let kernels = self.processes.get(&key)?;
        let Candidate { word, text, .. } = kernels.candidates.get(&handle)?;
        let is_open = kernels.proven_word.is_none()
            && kernels.searched.len() < MAX_SEARCHES
            && !kernels.searched.contains(text)
            && self.layout(kernels).is_none_or(|layout| layout.word().is_none() && !layout.is_refuted(*word));
        is_open.then(|| Arc::clone(text))
    }

    /// Notes whether the files of the process contain the text of this handle.
    pub(crate) fn searched(&mut self, key: ProcessKey, handle: u64, is_found: bool) {
        let Some(kernels) = self.processes.get_mut(&key) else { return };
        let Some(candidate) = kernels.candidates.get(&handle) else { return };
        kernels.searched.insert(Arc::clone(&candidate.text));
        if is_found {
            kernels.proven_word = Some(candidate.word);
        }
    }

    /// The name of a handle, if it is known.
    pub(crate) fn name(&self, key: ProcessKey, handle: u64) -> Option<&Arc<str>> {
        let kernels = self.processes.get(&key)?;
        let mut handle = handle;
        for _ in 0..MAX_ALIASES {
            let known = kernels.known.get(&handle).map(KnownName::demangled);
            if let Some(name) = known.or_else(|| self.candidate(kernels, handle)) {
                return Some(name);
            }
            handle = *kernels.aliases.get(&handle)?;
        }
        None
    }

    /// The text at the word of a handle where this CUDA driver, or this process, is known to have names.
    fn candidate<'a>(&self, kernels: &'a ProcessKernels, handle: u64) -> Option<&'a Arc<str>> {
        let Candidate { word, name, .. } = kernels.candidates.get(&handle)?;
        let layout = self.layout(kernels);
        let is_proven = layout.and_then(Layout::word) == Some(*word)
            || (kernels.proven_word == Some(*word) && !layout.is_some_and(|layout| layout.is_refuted(*word)));
        is_proven.then_some(name)
    }

    /// The layout of the handles of a process.
    fn layout(&self, kernels: &ProcessKernels) -> Option<&Layout> {
        self.layouts.get(&kernels.driver.or(self.only_driver)?)
    }

    /// The word to read in new handles.
    pub(crate) fn word(&self) -> u16 {
        self.layouts.values().find_map(Layout::word).unwrap_or(LIKELY_WORD)
    }

    /// The word to read in a handle whose name is wanted, if another word or none was read before.
    pub(crate) fn unread_word(&self, key: ProcessKey, handle: u64) -> Option<(LibraryNumber, u16)> {
        let kernels = self.processes.get(&key)?;
        let driver = kernels.driver.or(self.only_driver)?;
        let word = self.layouts.get(&driver)?.word()?;
        let looked_at = kernels.candidates.get(&handle).is_some_and(|read| read.word == word);
        (!looked_at).then_some((driver, word))
    }

    /// Forgets an exited process.
    pub(crate) fn forget(&mut self, key: ProcessKey) {
        self.processes.remove(&key);
    }
}

/// Whether a text can be the name of a CUDA kernel, by the characters that linkers accept.
fn is_name(text: &str) -> bool {
    let first = text.bytes().next();
    first.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b'$' || b == b'.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.' | b'@'))
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;

    use super::*;

    const KEY: ProcessKey = ProcessKey { tgid: Tgid(1), instance: 1 };
    const DRIVER: LibraryNumber = 3;

    fn named(text: &str, matches: u32) -> HandleInfo<'_> {
        HandleInfo::Name { text, matches }
    }

    fn candidate(text: &str, outer: u64) -> HandleInfo<'_> {
        HandleInfo::Candidate { text, word: 1, outer }
    }

    fn name(names: &KernelNames, handle: u64) -> Option<&str> {
        names.name(KEY, handle).map(|name| &**name)
    }

    #[test]
    fn a_registered_kernel_is_known_under_all_its_handles() {
        let mut names = KernelNames::default();
        names.learn(KEY, None, 0x10, named("_Z3addPfS_i", 0));
        names.learn(KEY, Some(DRIVER), 0x20, HandleInfo::AliasOf(0x10));
        names.learn(KEY, Some(DRIVER), 0x30, HandleInfo::AliasOf(0x20));
        for handle in [0x10, 0x20, 0x30] {
            assert_eq!(name(&names, handle), Some("add(float*, float*, int)"));
        }
        assert_eq!(name(&names, 0x40), None);
        names.learn(KEY, None, 0x50, HandleInfo::AliasOf(0x60));
        names.learn(KEY, None, 0x60, HandleInfo::AliasOf(0x50));
        assert_eq!(name(&names, 0x50), None, "a cycle of aliases has no name and ends");
        names.forget(KEY);
        assert_eq!(name(&names, 0x10), None);
    }

    #[test]
    fn text_in_a_handle_is_trusted_only_after_it_matched_a_known_name() {
        let mut names = KernelNames::default();
        names.learn(KEY, Some(DRIVER), 0x10, candidate("late_kernel", 0));
        assert_eq!((name(&names, 0x10), names.word()), (None, LIKELY_WORD));
        names.learn(KEY, Some(DRIVER), 0x20, named("known_kernel", 0b10));
        assert_eq!(name(&names, 0x10), Some("late_kernel"));
        let other = ProcessKey { tgid: Tgid(2), instance: 1 };
        names.learn(other, Some(DRIVER + 1), 0x10, candidate("of_another_driver", 0));
        assert_eq!(names.name(other, 0x10), None);
        names.learn(KEY, Some(DRIVER), 0x30, named("a_name_that_is_elsewhere", 0b100));
        assert_eq!(name(&names, 0x10), None, "one mismatch ends the trust");
    }

    #[test]
    fn names_are_read_from_the_word_that_matched() {
        let mut names = KernelNames::default();
        names.learn(KEY, Some(DRIVER), 0x10, candidate("not_the_name", 0));
        assert_eq!(names.unread_word(KEY, 0x10), None, "nothing is known about this driver");
        names.learn(KEY, Some(DRIVER), 0x20, named("known_kernel", 0b1000));
        assert_eq!((name(&names, 0x10), names.word()), (None, 3));
        assert_eq!(names.unread_word(KEY, 0x10), Some((DRIVER, 3)));
        let info = HandleInfo::Candidate { text: "the_name", word: 3, outer: 0 };
        names.learn(KEY, Some(DRIVER), 0x10, info);
        assert_eq!((name(&names, 0x10), names.unread_word(KEY, 0x10)), (Some("the_name"), None));
    }

    #[test]
    fn several_mangled_names_prove_the_word() {
        let mut names = KernelNames::default();
        for (handle, text) in ["_Z1av", "_Z1bv", "plain", "_Z1av", "_Z1cv"].into_iter().enumerate() {
            names.learn(KEY, Some(DRIVER), handle as u64, candidate(text, 0));
        }
        assert_eq!(name(&names, 0), None, "three different names are not enough");
        names.learn(KEY, Some(DRIVER), 9, candidate("_Z1dv", 0));
        assert_eq!((name(&names, 0), name(&names, 2)), (Some("a()"), Some("plain")));
        names.learn(KEY, Some(DRIVER), 10, named("elsewhere", 0));
        assert_eq!(name(&names, 0), None, "a known name takes precedence");
    }

    #[test]
    fn the_outer_call_of_a_launch_has_the_same_kernel() {
        let mut names = KernelNames::default();
        names.trust(DRIVER, 1);
        names.learn(KEY, Some(DRIVER), 0x10, candidate("_Z1kv", 0x7000));
        assert_eq!((name(&names, 0x10), name(&names, 0x7000)), (Some("k()"), Some("k()")));
    }

    #[test]
    fn a_process_seen_only_in_its_runtime_has_the_only_driver() {
        let mut names = KernelNames::default();
        names.trust(DRIVER, 1);
        names.learn(KEY, None, 0x10, candidate("_Z1kv", 0));
        assert_eq!(name(&names, 0x10), None);
        names.set_drivers(&[DRIVER]);
        assert_eq!(name(&names, 0x10), Some("k()"));
        names.set_drivers(&[DRIVER, DRIVER + 1]);
        assert_eq!(name(&names, 0x10), None, "it may be either");
    }

    #[test]
    fn a_symbol_of_the_program_proves_the_word() {
        let mut names = KernelNames::default();
        names.learn(KEY, Some(DRIVER), 0x10, candidate("_Z1kv", 0x7000));
        names.learn(KEY, Some(DRIVER), 0x20, candidate("_Z1lv", 0));
        assert_eq!(name(&names, 0x20), None);
        names.found(KEY, 0x7000, "k()");
        assert_eq!((name(&names, 0x7000), name(&names, 0x20)), (Some("k()"), Some("l()")));
        names.found(KEY, 0x8000, "__device_stub___Z1mv");
        assert_eq!(name(&names, 0x8000), Some("m()"));
    }

    #[test]
    fn the_registered_name_of_the_outer_call_proves_or_refutes_the_word() {
        let mut names = KernelNames::default();
        names.learn(KEY, None, 0x7000, named("_Z1kv", 0));
        names.learn(KEY, Some(DRIVER), 0x20, candidate("_Z1lv", 0));
        names.learn(KEY, Some(DRIVER), 0x10, candidate("_Z1kv", 0x7000));
        assert_eq!((name(&names, 0x10), name(&names, 0x20)), (Some("k()"), Some("l()")));
        names.learn(KEY, None, 0x8000, named("_Z1mv", 0));
        names.learn(KEY, Some(DRIVER), 0x30, candidate("_Z1nv", 0x8000));
        assert_eq!((name(&names, 0x30), name(&names, 0x8000)), (None, Some("m()")));
    }

    #[test]
    fn a_name_in_the_files_of_a_process_proves_the_word_in_this_process() {
        let mut names = KernelNames::default();
        names.learn(KEY, Some(DRIVER), 0x10, candidate("_Z1kv", 0));
        names.learn(KEY, Some(DRIVER), 0x20, candidate("plain", 0));
        assert_eq!(names.unproven(KEY, 0x20).as_deref(), Some("plain"));
        names.searched(KEY, 0x20, false);
        assert_eq!((names.unproven(KEY, 0x20), name(&names, 0x20)), (None, None), "it is not searched again");
        names.searched(KEY, 0x10, true);
        assert_eq!((name(&names, 0x10), name(&names, 0x20)), (Some("k()"), Some("plain")));
        assert_eq!(names.unproven(KEY, 0x10), None);
        let other = ProcessKey { tgid: Tgid(2), instance: 1 };
        names.learn(other, Some(DRIVER), 0x10, candidate("_Z1kv", 0));
        assert_eq!(names.name(other, 0x10), None, "a process proves nothing for others");
        names.learn(KEY, Some(DRIVER), 0x30, named("elsewhere", 0));
        assert_eq!(name(&names, 0x10), None, "a known name takes precedence");
        assert_eq!(names.unproven(other, 0x10), None, "the word is wrong");
    }

    #[test]
    fn few_texts_of_a_process_are_searched_for_and_none_if_the_word_is_known() {
        let mut names = KernelNames::default();
        for handle in 0..10 {
            names.learn(KEY, Some(DRIVER), handle, candidate(&format!("kernel_{handle}"), 0));
        }
        let searches = (0..10).filter(|handle| {
            let is_open = names.unproven(KEY, *handle).is_some();
            names.searched(KEY, *handle, false);
            is_open
        });
        assert_eq!(searches.count(), MAX_SEARCHES);
        let other = ProcessKey { tgid: Tgid(2), instance: 1 };
        names.trust(DRIVER, 1);
        names.learn(other, Some(DRIVER), 0x10, candidate("_Z1kv", 0));
        assert_eq!((names.unproven(other, 0x10), names.unproven(other, 0x99)), (None, None));
    }

    #[test]
    fn texts_that_cannot_be_names_are_ignored() {
        let mut names = KernelNames::default();
        names.trust(DRIVER, 1);
        for (handle, text) in ["", "a b", "\x1b[2J", "7up", "a/b"].iter().enumerate() {
            names.learn(KEY, Some(DRIVER), handle as u64, candidate(text, 0));
            assert_eq!(name(&names, handle as u64), None, "{text:?}");
        }
    }
}
