//! Probes on single functions of the NVIDIA kernel module that gpuprobe itself knows. Each has two programs, for
//! fentry and for a kprobe, which are loaded in a second object on the same maps.

use std::io;
use std::path::Path;

use gpuprobe_discover::{LinuxFunction, linux_functions, nvidia_kmods};
use libbpf_rs::Object;

use crate::attach::bpf_link::BpfLink;
use crate::attach::linux::linux_functions::LinuxTier;
use crate::attach::linux::linux_link::{LinuxProbeKind, make_linux_link, with_program};
use crate::host::linux_support::LinuxSupport;
use crate::host::linux_types::results;
use crate::host::open_files::raise_limit;
use crate::host::support::Tier;
use crate::load::libbpf_log::without_log;
use crate::load::second_object::open_again;
use crate::wire::ProgramName;
use crate::wire::object_handles::open_programs;

/// A function, and the programs for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltinKprobe {
    pub(crate) function: &'static str,
    pub(crate) fentry: ProgramName,
    pub(crate) kprobe: ProgramName,
}

impl BuiltinKprobe {
    /// Attaches in the first of the two ways that works, or returns why none does; `None` if there is no such
    /// function. If the user has chosen a tier, only the kprobe is tried.
    pub(crate) fn attach(
        self,
        main: &Object,
        forced: Option<Tier>,
    ) -> Option<io::Result<(BpfLink, LinuxTier)>> {
        let function = nvidia_function(self.function)?;
        // every map has a descriptor in every object
        raise_limit();
        let by_fentry = || {
            let link = self.load(main, self.fentry, LinuxProbeKind::Entry, 0)?;
            Ok((link, LinuxTier::Fentry))
        };
        let by_kprobe = || {
            // several functions of the same name cannot be distinguished
            let &[address] = function.addresses.as_slice() else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let link = self.load(main, self.kprobe, LinuxProbeKind::Perf, address)?;
            Ok((link, LinuxTier::Kprobes(Tier::Perf)))
        };
        Some(match forced {
            Some(_) => by_kprobe(),
            None => by_fentry().or_else(|_: io::Error| by_kprobe()),
        })
    }

    /// Loads one of the programs, and attaches it to the entry of the function.
    fn load(
        self,
        main: &Object,
        wanted: ProgramName,
        kind: LinuxProbeKind,
        address: u64,
    ) -> io::Result<BpfLink> {
        let loaded = || {
            let mut object = open_again(main)?;
            for (name, mut program) in open_programs(&mut object) {
                let is_it = name == wanted;
                program.set_autoload(is_it);
                if is_it && kind == LinuxProbeKind::Entry {
                    program.set_attach_target(0, Some(self.function.to_owned()))?;
                }
            }
            object.load()
        };
        let object = without_log(loaded).map_err(io::Error::other)?;
        with_program(&object, wanted, |program| make_linux_link(program, kind, &[(address, 0)]))
    }

    /// How it would be attached, as far as this is known without doing it.
    pub(crate) fn tier(self, support: &LinuxSupport) -> Option<LinuxTier> {
        let function = nvidia_function(self.function)?;
        let is_typed = results(std::slice::from_ref(&function)).iter().any(Option::is_some);
        if is_typed && support.has_fentry() {
            return Some(LinuxTier::Fentry);
        }
        support.has_kprobes(Tier::Perf).then_some(LinuxTier::Kprobes(Tier::Perf))
    }
}

/// A function of one of the NVIDIA kernel modules.
pub(crate) fn nvidia_function(wanted: &str) -> Option<LinuxFunction> {
    let proc_root = Path::new("/proc");
    // reading all symbols of the Linux kernel takes a while
    if nvidia_kmods(proc_root, Path::new("/sys")).is_empty() {
        return None;
    }
    let is_it =
        |name: &str, module: Option<&str>| name == wanted && module.is_some_and(|m| m.starts_with("nvidia"));
    linux_functions(proc_root, is_it).ok()?.pop()
}
