//! Maps the GPU numbers of a process to the GPUs of the host. If the mapping is not certain, the process's own number
//! is kept.
//!
//! What the CUDA driver returned to the process about a GPU is certain: the runtime queries the UUID of every GPU
//! when it starts. Otherwise the environment is used, if the program still has the one that it started with and
//! nothing contradicts it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gpuprobe_event::{GpuNumbers, HostGpu, Identity, Uuid};

use super::gpu_processes::NVIDIA_MAJOR;
use crate::access;
use crate::process::{current_environment, environment_at_start};

/// A directory with more files is ignored.
const FILES_LIMIT: usize = 1 << 16;

/// Identities kept for one GPU. There are three functions that return one; a process can forge any number.
const IDENTITY_LIMIT: usize = 8;

/// The environment variables that choose GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Environment {
    visible: Option<String>,
    by_pci_order: bool,
}

/// What is known about the GPUs that one process sees.
#[derive(Clone, Debug, Default)]
pub struct View {
    environment: Option<Environment>,
    /// Minor numbers of the device files that it can reach; in a container those that were passed into it.
    reachable: BTreeSet<u32>,
    /// The GPUs that it uses, by its own numbers, with the device files that were open when the use was first seen.
    used: BTreeMap<u8, Option<BTreeSet<u32>>>,
    /// What the CUDA driver returned about each GPU, by the process's numbers.
    identities: BTreeMap<u8, Vec<Identity>>,
}

impl View {
    /// Reads the environment and devices of a process. To be called early, because the process may exit soon.
    pub fn of(proc_root: &Path, pid: u32) -> Self {
        let folder = proc_root.join(pid.to_string());
        Self {
            environment: Environment::of(&folder, pid),
            reachable: device_numbers(&folder.join("root/dev"), NVIDIA_MAJOR).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Whether the process is known to use the GPU with this number.
    pub fn is_used(&self, number: u8) -> bool {
        self.used.contains_key(&number)
    }

    /// Records that the process uses the GPU with this number. Its open device files are read now, because one of
    /// them must belong to that GPU.
    pub fn uses(&mut self, proc_root: &Path, pid: u32, number: u8) {
        let files = proc_root.join(pid.to_string()).join("fd");
        self.used.entry(number).or_insert_with(|| device_numbers(&files, NVIDIA_MAJOR));
    }

    /// Records an identity that the CUDA driver returned to the process. Returns whether it is new.
    pub fn add_identity(&mut self, number: u8, identity: Identity) -> bool {
        let known = self.identities.entry(number).or_default();
        let is_new = !known.contains(&identity) && known.len() < IDENTITY_LIMIT;
        if is_new {
            known.push(identity);
        }
        is_new
    }

    /// The host's GPUs by the process's numbers.
    pub fn numbers(&self, host: &[HostGpu]) -> GpuNumbers {
        if let [only] = host {
            return GpuNumbers::only(only.index);
        }
        let reported = self.reported_indexes(host);
        let listed = self.listed(host);
        let mut numbers = GpuNumbers::default();
        if self.agrees(&listed, &reported, host) {
            (0..).zip(&listed).for_each(|(number, gpu)| numbers.set(number, gpu.index));
        }
        for (number, open) in &self.used {
            // memory on a GPU needs its device file to be open
            if let Some([only]) = open.as_ref().map(|open| of_files(open, host)).as_deref() {
                numbers.set(*number, only.index);
            }
        }
        reported.into_iter().for_each(|(number, index)| numbers.set(number, index));
        numbers
    }

    /// The reported identities as indexes of the host's GPUs, if all identities of a number agree. For a MIG instance
    /// the CUDA driver returns a UUID that the host does not list.
    fn reported_indexes(&self, host: &[HostGpu]) -> BTreeMap<u8, u8> {
        let one = |identities: &[Identity]| {
            let mut indexes = identities.iter().filter_map(|i| i.among(host)).map(|gpu| gpu.index);
            let first = indexes.next()?;
            indexes.all(|index| index == first).then_some(first)
        };
        self.identities.iter().filter_map(|(number, identities)| Some((*number, one(identities)?))).collect()
    }

    /// Whether a list is consistent: every GPU that the process used, or that was reported to it, is the listed one.
    fn agrees(&self, listed: &[&HostGpu], reported: &BTreeMap<u8, u8>, host: &[HostGpu]) -> bool {
        let at = |number: &u8| listed.get(usize::from(*number));
        let matches_reported =
            reported.iter().all(|(number, index)| at(number).is_some_and(|gpu| gpu.index == *index));
        let is_open = |gpu: &HostGpu, open: &BTreeSet<u32>| {
            // a process without open device files reaches the GPU by other means
            of_files(open, host).is_empty() || gpu.minor.is_some_and(|minor| open.contains(&minor))
        };
        let is_used = self.used.iter().all(|(number, open)| {
            at(number).is_some_and(|gpu| open.as_ref().is_none_or(|open| is_open(gpu, open)))
        });
        matches_reported && is_used
    }

    /// The GPUs according to the environment, in the order of the process's numbers, as far as that is certain.
    fn listed<'h>(&self, host: &'h [HostGpu]) -> Vec<&'h HostGpu> {
        let Some(environment) = &self.environment else { return Vec::new() };
        let given = of_files(&self.reachable, host);
        let reachable = if given.is_empty() { host.iter().collect() } else { given };
        // by default the CUDA driver puts the fastest GPU first, and MIG instances are gpu_by_number by other rules
        let is_ordered = environment.by_pci_order || reachable.len() == 1;
        let by_number = is_ordered && !reachable.iter().any(|gpu| gpu.is_parted);
        match &environment.visible {
            None if by_number => reachable,
            None => Vec::new(),
            Some(list) => chosen(list, &reachable, by_number),
        }
    }
}

/// The GPUs that CUDA_VISIBLE_DEVICES selects, up to the first entry that is invalid or not certain. Either all
/// entries are numbers, or all are UUIDs or prefixes of them: the CUDA driver ends the list at an entry of the other
/// kind.
fn chosen<'h>(list: &str, reachable: &[&'h HostGpu], by_number: bool) -> Vec<&'h HostGpu> {
    let mut chosen: Vec<&HostGpu> = Vec::new();
    let is_numbers = list.trim_start().starts_with(|c: char| c.is_ascii_digit());
    for entry in list.split(',') {
        let found = match (is_numbers, entry.strip_prefix("MIG-")) {
            (true, _) if by_number => gpu_by_number(entry, reachable),
            (true, _) => None,
            // a process can use only one MIG instance, so later entries are ignored
            (false, Some(part)) => {
                let whole = part.split('/').next().and_then(|gpu| gpu_by_uuid(gpu, reachable));
                return if chosen.is_empty() { whole.into_iter().collect() } else { chosen };
            }
            (false, None) => gpu_by_uuid(entry, reachable),
        };
        let Some(gpu) = found else { break };
        if chosen.iter().any(|other| other.index == gpu.index) {
            // the CUDA driver fails if a GPU is listed twice
            return Vec::new();
        }
        chosen.push(gpu);
    }
    chosen
}

/// A GPU by number. Entries with other characters than digits are partly understood by the CUDA driver; that is not
/// relied on.
fn gpu_by_number<'h>(entry: &str, reachable: &[&'h HostGpu]) -> Option<&'h HostGpu> {
    let digits = entry.trim();
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    let number: usize = digits.parse().ok().filter(|_| is_plain)?;
    reachable.get(number).copied()
}

/// A GPU by UUID, or by a unique prefix of it.
fn gpu_by_uuid<'h>(entry: &str, reachable: &[&'h HostGpu]) -> Option<&'h HostGpu> {
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
    // a GPU whose UUID is unknown may have the same prefix
    let is_only = is_whole || (found.next().is_none() && reachable.iter().all(|gpu| gpu.uuid.is_some()));
    is_only.then_some(gpu)
}

/// The GPUs of these device files, in the host's order.
fn of_files<'h>(files: &BTreeSet<u32>, host: &'h [HostGpu]) -> Vec<&'h HostGpu> {
    host.iter().filter(|gpu| gpu.minor.is_some_and(|minor| files.contains(&minor))).collect()
}

/// The variables, in the order of [`Environment::new`].
const VARIABLES: [&[u8]; 2] = [b"CUDA_VISIBLE_DEVICES=", b"CUDA_DEVICE_ORDER="];

impl Environment {
    fn new([visible, order]: [Option<Vec<u8>>; 2]) -> Self {
        let visible = visible.map(|list| String::from_utf8_lossy(&list).into_owned());
        Self { visible, by_pci_order: order.as_deref() == Some(b"PCI_BUS_ID") }
    }

    /// The environment that a program started with and still has. The CUDA driver has read it at some time in
    /// between, so one that the program has changed does not show what the CUDA driver read.
    fn of(folder: &Path, pid: u32) -> Option<Self> {
        let first = environment_at_start(&folder.join("environ"), VARIABLES)?;
        current_environment(folder, pid, VARIABLES).filter(|now| *now == first).map(Self::new)
    }
}

/// The minor numbers of a directory's device files with this major number. Their names belong to another mount
/// namespace, so only the device numbers count.
fn device_numbers(folder: &Path, wanted: u64) -> Option<BTreeSet<u32>> {
    Some(access::device_numbers(folder, wanted, FILES_LIMIT).ok()??.into_iter().collect())
}

#[cfg(test)]
mod tests;
