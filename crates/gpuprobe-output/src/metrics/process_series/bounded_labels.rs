//! CUDA kernels and ioctl commands with series. Programs choose both, so they are bounded, also where a process executes
//! one program after the other.

use std::borrow::Cow;
use std::collections::BTreeSet;

use gpuprobe_analysis::ProcessSnapshot;
use gpuprobe_analysis::function_counts::OTHER;
use gpuprobe_analysis::launches::OTHER_KERNELS;
use gpuprobe_event::cut::cut;

use super::super::labels;

/// Longer names of CUDA kernels are cut: names made from templates are far too long for a scrape.
const MOST_NAME: usize = 200;
/// Where several processes share series, further kernels are counted under `other`.
const MOST_KERNELS: usize = 40;
/// The same for the series of one process. One program has so many only after 2^40 launches.
const MOST_KERNELS_OF_PROCESS: usize = 100;
/// Further commands are counted under `other`. One program has at most as many.
const MOST_COMMANDS: usize = 48;

/// A name, cut if it is too long.
pub(crate) fn shown(kernel: &str) -> Cow<'_, str> {
    cut(kernel, MOST_NAME)
}

fn kernel_label(kernel: &str) -> String {
    let mut label = String::new();
    labels::push(&mut label, 0, &["kernel"], &[&shown(kernel)]);
    label
}

fn command_label(device: &str, command: &str) -> String {
    let mut label = String::new();
    labels::push(&mut label, 0, &["device", "command"], &[device, command]);
    label
}

/// Kernels and commands with series, as labels. Which ones have is decided when they are seen for the first time, so that no
/// series falls.
#[derive(Clone, Debug)]
pub(crate) struct BoundedLabels {
    most_kernels: usize,
    kernels: BTreeSet<String>,
    commands: BTreeSet<String>,
}

impl Default for BoundedLabels {
    fn default() -> Self {
        Self { most_kernels: MOST_KERNELS, kernels: BTreeSet::new(), commands: BTreeSet::new() }
    }
}

impl BoundedLabels {
    /// For the series of one process.
    pub(crate) fn of_process() -> Self {
        Self { most_kernels: MOST_KERNELS_OF_PROCESS, ..Self::default() }
    }

    /// Gives series to the kernels and commands of a process that are new, while there is room.
    pub(crate) fn note(&mut self, process: &ProcessSnapshot) {
        let ops = &process.gpu_ops;
        for (kernel, _) in ops.launched.named().chain(ops.graph_kernels.named()) {
            self.note_label(&kernel_label(kernel));
        }
        for (device, command, _) in ops.requests.named() {
            self.note_label(&command_label(device.as_str(), command));
        }
    }

    /// The same for one label. Others are not bounded here.
    pub(super) fn note_label(&mut self, label: &str) {
        let Some((known, most)) = self.of(label) else { return };
        if known.len() < most && !known.contains(label) {
            known.insert(label.to_owned());
        }
    }

    fn of(&mut self, label: &str) -> Option<(&mut BTreeSet<String>, usize)> {
        match label {
            _ if label.starts_with("kernel=") => Some((&mut self.kernels, self.most_kernels)),
            _ if label.starts_with("device=") => Some((&mut self.commands, MOST_COMMANDS)),
            _ => None,
        }
    }

    /// The label under which this one is counted.
    pub(super) fn counted_as(&self, label: &str) -> String {
        match label {
            _ if label.starts_with("kernel=") && !self.kernels.contains(label) => kernel_label(OTHER_KERNELS),
            _ if label.starts_with("device=") && !self.commands.contains(label) => command_label("", OTHER),
            _ => label.to_owned(),
        }
    }

    pub(crate) fn has_kernel(&self, kernel: &str) -> bool {
        self.kernels.contains(&kernel_label(kernel))
    }

    pub(crate) fn has_command(&self, device: &str, command: &str) -> bool {
        self.commands.contains(&command_label(device, command))
    }
}
