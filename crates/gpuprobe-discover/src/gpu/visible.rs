//! Which of the host's GPUs a process sees, and under which numbers. What is not certain is not said: then the number
//! stays the process's own.
//!
//! What the driver told the process of a GPU is certain: the runtime asks it for the UUID of every one when it begins.
//! Else the environment tells, where the program still has the one that it began with, and whatever else is known
//! agrees with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gpuprobe_event::{GpuNumbers, HostGpu, Identity, Uuid};

use crate::access;
use crate::process::current_environment;

/// The device files of GPUs.
const NVIDIA_MAJOR: u64 = 195;
/// The most of an environment that is read: more than the kernel allows by default.
const ENVIRONMENT_LIMIT: u64 = 16 << 20;
/// A folder with more files is not read to its end, and tells nothing.
const FILES_LIMIT: usize = 1 << 16;

/// Answers kept of one GPU. There are three ways to ask; a process that gives false ones may give any number of them.
const MOST_ANSWERS: usize = 8;

/// What the environment of a program says of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Environment {
    visible: Option<String>,
    by_place: bool,
}

/// What is known of the GPUs that one process sees.
#[derive(Clone, Debug, Default)]
pub struct View {
    environment: Option<Environment>,
    /// Device files that it can reach, by their numbers; in a container those that were given to it.
    reachable: BTreeSet<u32>,
    /// The GPUs it uses, as it counts them, and the device files that were open when that was first seen.
    used: BTreeMap<u8, Option<BTreeSet<u32>>>,
    told: BTreeMap<u8, Vec<Identity>>,
}

impl View {
    /// Reads what a process began with. Better early: it may end soon.
    pub fn of(proc_root: &Path, pid: u32) -> Self {
        let folder = proc_root.join(pid.to_string());
        Self {
            environment: Environment::of(&folder, pid),
            reachable: device_numbers(&folder.join("root/dev"), NVIDIA_MAJOR).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Whether it is known that the process uses a GPU of its counting.
    pub fn is_used(&self, number: u8) -> bool {
        self.used.contains_key(&number)
    }

    /// Notes that the process uses a GPU of its counting. What it has open is looked at now, when that is one of them.
    pub fn uses(&mut self, proc_root: &Path, pid: u32, number: u8) {
        let files = proc_root.join(pid.to_string()).join("fd");
        self.used.entry(number).or_insert_with(|| device_numbers(&files, NVIDIA_MAJOR));
    }

    /// Notes what the driver told the process of a GPU. Returns whether that is news.
    pub fn told(&mut self, number: u8, identity: Identity) -> bool {
        let known = self.told.entry(number).or_default();
        let is_new = !known.contains(&identity) && known.len() < MOST_ANSWERS;
        if is_new {
            known.push(identity);
        }
        is_new
    }

    /// Which of the host's GPUs the process's are.
    pub fn numbers(&self, host: &[HostGpu]) -> GpuNumbers {
        if let [only] = host {
            return GpuNumbers::only(only.index);
        }
        let told = self.told_indexes(host);
        let listed = self.listed(host);
        let mut numbers = GpuNumbers::default();
        if self.agrees(&listed, &told, host) {
            (0..).zip(&listed).for_each(|(number, gpu)| numbers.set(number, gpu.index));
        }
        for (number, open) in &self.used {
            // memory on a GPU takes its device file
            if let Some([only]) = open.as_ref().map(|open| of_files(open, host)).as_deref() {
                numbers.set(*number, only.index);
            }
        }
        told.into_iter().for_each(|(number, index)| numbers.set(number, index));
        numbers
    }

    /// What the driver told, where all that it told of a number is of one GPU. Of a part of a GPU it tells a UUID that
    /// the host does not list.
    fn told_indexes(&self, host: &[HostGpu]) -> BTreeMap<u8, u8> {
        let one = |identities: &[Identity]| {
            let mut indexes = identities.iter().filter_map(|i| i.among(host)).map(|gpu| gpu.index);
            let first = indexes.next()?;
            indexes.all(|index| index == first).then_some(first)
        };
        self.told.iter().filter_map(|(number, identities)| Some((*number, one(identities)?))).collect()
    }

    /// Whether a list may be the process's: nothing that it used or was told is another GPU, or beyond the list's end.
    fn agrees(&self, listed: &[&HostGpu], told: &BTreeMap<u8, u8>, host: &[HostGpu]) -> bool {
        let at = |number: &u8| listed.get(usize::from(*number));
        let is_told = told.iter().all(|(number, index)| at(number).is_some_and(|gpu| gpu.index == *index));
        let is_open = |gpu: &HostGpu, open: &BTreeSet<u32>| {
            // a process that has none of them open has the driver by another way
            of_files(open, host).is_empty() || gpu.minor.is_some_and(|minor| open.contains(&minor))
        };
        let is_used = self.used.iter().all(|(number, open)| {
            at(number).is_some_and(|gpu| open.as_ref().is_none_or(|open| is_open(gpu, open)))
        });
        is_told && is_used
    }

    /// The GPUs by the environment, in the order of the process's numbers, as far as that is certain.
    fn listed<'h>(&self, host: &'h [HostGpu]) -> Vec<&'h HostGpu> {
        let Some(environment) = &self.environment else { return Vec::new() };
        let given = of_files(&self.reachable, host);
        let reachable = if given.is_empty() { host.iter().collect() } else { given };
        // the fastest is the first by default, and which that is the driver decides; parts are counted by other rules
        let is_ordered = environment.by_place || reachable.len() == 1;
        let by_number = is_ordered && !reachable.iter().any(|gpu| gpu.is_parted);
        match &environment.visible {
            None if by_number => reachable,
            None => Vec::new(),
            Some(list) => chosen(list, &reachable, by_number),
        }
    }
}

/// The GPUs that a list chooses, up to the first entry that is none or is not certain. All entries are numbers, or all
/// are UUIDs or beginnings of them: the driver ends the list at one of the other kind.
fn chosen<'h>(list: &str, reachable: &[&'h HostGpu], by_number: bool) -> Vec<&'h HostGpu> {
    let mut chosen: Vec<&HostGpu> = Vec::new();
    let is_numbers = list.trim_start().starts_with(|c: char| c.is_ascii_digit());
    for entry in list.split(',') {
        let found = match (is_numbers, entry.strip_prefix("MIG-")) {
            (true, _) if by_number => numbered(entry, reachable),
            (true, _) => None,
            // a part is never one of several: whatever follows is not seen
            (false, Some(part)) => {
                let whole = part.split('/').next().and_then(|gpu| named(gpu, reachable));
                return if chosen.is_empty() { whole.into_iter().collect() } else { chosen };
            }
            (false, None) => named(entry, reachable),
        };
        let Some(gpu) = found else { break };
        if chosen.iter().any(|other| other.index == gpu.index) {
            // the driver does not start with the same one twice
            return Vec::new();
        }
        chosen.push(gpu);
    }
    chosen
}

/// By number. What has more than digits in it the driver reads to some extent; that is not relied on.
fn numbered<'h>(entry: &str, reachable: &[&'h HostGpu]) -> Option<&'h HostGpu> {
    let digits = entry.trim();
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    let number: usize = digits.parse().ok().filter(|_| is_plain)?;
    reachable.get(number).copied()
}

/// By UUID, or by a beginning of it that no other one has.
fn named<'h>(entry: &str, reachable: &[&'h HostGpu]) -> Option<&'h HostGpu> {
    let prefix = entry.trim_end();
    if prefix.len() <= "GPU-".len() {
        return None;
    }
    let begins = |uuid: &Uuid| {
        let name = uuid.to_string();
        let begin = name.get(..prefix.len())?;
        (prefix.starts_with("GPU-") && begin.eq_ignore_ascii_case(prefix))
            .then_some(begin.len() == name.len())
    };
    let mut found = reachable.iter().filter_map(|gpu| Some((*gpu, begins(gpu.uuid.as_ref()?)?)));
    let (gpu, is_whole) = found.next()?;
    // one whose name is not known may begin in the same way
    let is_only = is_whole || (found.next().is_none() && reachable.iter().all(|gpu| gpu.uuid.is_some()));
    is_only.then_some(gpu)
}

/// The GPUs of these device files, in the order of the host.
fn of_files<'h>(files: &BTreeSet<u32>, host: &'h [HostGpu]) -> Vec<&'h HostGpu> {
    host.iter().filter(|gpu| gpu.minor.is_some_and(|minor| files.contains(&minor))).collect()
}

/// What decides, in the order of [`Environment::new`].
const VARIABLES: [&[u8]; 2] = [b"CUDA_VISIBLE_DEVICES=", b"CUDA_DEVICE_ORDER="];

impl Environment {
    fn new([visible, order]: [Option<Vec<u8>>; 2]) -> Self {
        let visible = visible.map(|list| String::from_utf8_lossy(&list).into_owned());
        Self { visible, by_place: order.as_deref() == Some(b"PCI_BUS_ID") }
    }

    /// The environment that a program began with and still has. The driver has read it in between, so that one which
    /// the program has changed does not tell what the driver saw.
    fn of(folder: &Path, pid: u32) -> Option<Self> {
        let first = at_start(&folder.join("environ"))?;
        current_environment(folder, pid, VARIABLES).filter(|now| *now == first).map(Self::new)
    }
}

/// The values of [`VARIABLES`] at the start of a program; `None` where they cannot be read, or not all.
fn at_start(path: &Path) -> Option<[Option<Vec<u8>>; 2]> {
    let text = access::contents(path, ENVIRONMENT_LIMIT).ok()?;
    // one that has ended has none
    if text.is_empty() || text.len() as u64 == ENVIRONMENT_LIMIT {
        return None;
    }
    // of two with one name, a program sees the first
    let value = |name: &[u8]| text.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(name));
    Some(VARIABLES.map(|name| value(name).map(<[u8]>::to_vec)))
}

/// The minor numbers of a folder's device files that have this major one. Their names are those of another mount
/// namespace, so only what they are is looked at.
fn device_numbers(folder: &Path, wanted: u64) -> Option<BTreeSet<u32>> {
    Some(access::device_numbers(folder, wanted, FILES_LIMIT).ok()??.into_iter().collect())
}

#[cfg(test)]
mod tests;
