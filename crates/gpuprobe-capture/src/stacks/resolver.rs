//! Resolves addresses of processes to names and stacks.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use gpuprobe_discover::{
    KernelNameSearch, ProcessMaps, Registers, Stack, StackEnd, Symbolizer, Unwinder, memory,
};
use gpuprobe_event::{Frame, Tgid};
use libbpf_rs::MapHandle;

use crate::stacks::python_reader::PythonReader;
use crate::stacks::python_stacks::{PythonChanges, PythonStack};
use crate::stacks::raw_stack::RawStack;

const PROC: &str = "/proc";
const LONGEST_TEXT: usize = 4096;

/// Whether a process may run another program than when it was last observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Same,
    MaybeNew,
}

/// Resolves addresses of running processes.
pub(crate) trait Resolve: Debug {
    /// Reads the mappings of a process. It may exit soon.
    fn observe(&mut self, tgid: Tgid, program: Program);
    /// Uses mappings of a process that were read already. It runs the same program as before.
    fn observe_maps(&mut self, tgid: Tgid, maps: &ProcessMaps);
    /// The name of the function at an address.
    fn symbol(&mut self, tgid: Tgid, address: u64) -> Option<String>;
    /// The return addresses of a stack, innermost first.
    fn unwind(&mut self, tgid: Tgid, stack: &RawStack) -> Stack;
    /// The frames of return addresses.
    fn frames(&mut self, tgid: Tgid, addresses: &[u64]) -> Vec<Frame>;
    /// A word of its memory.
    fn word(&mut self, tgid: Tgid, address: u64) -> Option<u64>;
    /// A text in its memory.
    fn text(&mut self, tgid: Tgid, address: u64) -> Option<String>;
    /// Whether its files contain the name of a CUDA kernel; `None` if that cannot be said now.
    fn has_kernel_name(&mut self, tgid: Tgid, name: &str) -> Option<bool>;
    /// The Python frames that were sent with a stack.
    fn take_python(&mut self, stack_kind: u16, id: u64) -> Option<PythonStack>;
    /// Which interpreters were found since the last call, and which cannot be used.
    fn take_python_changes(&mut self) -> PythonChanges;
    /// Python frames whose names could not be read.
    fn unread_python(&self) -> u64;
    /// Forgets the interpreter of a process that executed another program, which may have one of its own.
    fn forget_python(&mut self, tgid: Tgid);
    /// Forgets an exited process.
    fn forget(&mut self, tgid: Tgid);
}

/// Resolves by the files that a process has mapped.
#[derive(Debug)]
pub(crate) struct FileResolver {
    symbols: Symbolizer,
    unwinder: Unwinder,
    kernel_names: KernelNameSearch,
    pythons: PythonReader,
    /// Whether names or stacks will be resolved.
    names: bool,
    stacks: bool,
}

impl FileResolver {
    pub(crate) fn new(names: bool, stacks: bool, python_ring: Option<MapHandle>) -> Self {
        Self {
            symbols: Symbolizer::new(),
            unwinder: Unwinder::new(),
            kernel_names: KernelNameSearch::default(),
            pythons: PythonReader::new(python_ring),
            names,
            stacks,
        }
    }
}

impl Resolve for FileResolver {
    fn observe(&mut self, tgid: Tgid, program: Program) {
        if self.names || self.stacks {
            self.unwinder.observe(Path::new(PROC), tgid.0);
        }
        if self.stacks {
            self.pythons.observe(tgid, program);
        }
    }

    fn observe_maps(&mut self, tgid: Tgid, maps: &ProcessMaps) {
        if self.names || self.stacks {
            self.unwinder.observe_maps(maps);
        }
        if self.stacks {
            self.pythons.observe(tgid, Program::Same);
        }
    }

    fn symbol(&mut self, tgid: Tgid, address: u64) -> Option<String> {
        // as a return address behind the first byte: these are resolved with the recorded mappings, also after the
        // process has exited
        let behind = address.wrapping_add(1);
        let frame = self.unwinder.frames(&mut self.symbols, Path::new(PROC), tgid.0, &[behind]).pop()?;
        // an address inside a function is not its handle
        frame.function.filter(|_| frame.offset == 1)
    }

    fn unwind(&mut self, tgid: Tgid, stack: &RawStack) -> Stack {
        let registers = Registers { ip: stack.ip, sp: stack.sp, fp: stack.fp, lr: stack.lr };
        self.unwinder.unwind_probed(Path::new(PROC), tgid.0, registers, &stack.bytes, &stack.replaced)
    }

    fn frames(&mut self, tgid: Tgid, addresses: &[u64]) -> Vec<Frame> {
        self.unwinder.frames(&mut self.symbols, Path::new(PROC), tgid.0, addresses)
    }

    fn word(&mut self, tgid: Tgid, address: u64) -> Option<u64> {
        let word = memory(&memory_of(tgid), address, 8).ok()?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }

    fn text(&mut self, tgid: Tgid, address: u64) -> Option<String> {
        // the read may end where the mapping ends
        let bytes = memory(&memory_of(tgid), address, LONGEST_TEXT).ok()?;
        let end = bytes.iter().position(|b| *b == 0);
        // a longer text is cut where the BPF programs cut; one without an end is invalid
        let end = end.or((bytes.len() == LONGEST_TEXT).then_some(LONGEST_TEXT - 1))?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn has_kernel_name(&mut self, tgid: Tgid, name: &str) -> Option<bool> {
        self.kernel_names.find(Path::new(PROC), tgid.0, name)
    }

    fn take_python(&mut self, stack_kind: u16, id: u64) -> Option<PythonStack> {
        self.pythons.take(stack_kind, id)
    }

    fn take_python_changes(&mut self) -> PythonChanges {
        self.pythons.take_changes()
    }

    fn unread_python(&self) -> u64 {
        self.pythons.unread()
    }

    fn forget_python(&mut self, tgid: Tgid) {
        self.pythons.forget(tgid);
    }

    fn forget(&mut self, tgid: Tgid) {
        self.unwinder.forget(tgid.0);
        self.pythons.forget(tgid);
    }
}

/// The memory of a process. Reading it also loads pages that are not present; BPF programs can read only present
/// ones.
fn memory_of(tgid: Tgid) -> PathBuf {
    Path::new(PROC).join(tgid.to_string()).join("mem")
}

/// Resolves nothing and reads no memory.
#[derive(Debug)]
pub(crate) struct NoResolver;

impl Resolve for NoResolver {
    fn observe(&mut self, _tgid: Tgid, _program: Program) {}

    fn observe_maps(&mut self, _tgid: Tgid, _maps: &ProcessMaps) {}

    fn symbol(&mut self, _tgid: Tgid, _address: u64) -> Option<String> {
        None
    }

    fn unwind(&mut self, _tgid: Tgid, stack: &RawStack) -> Stack {
        Stack { addresses: vec![stack.ip], slots: vec![None], end: StackEnd::Complete }
    }

    fn frames(&mut self, _tgid: Tgid, addresses: &[u64]) -> Vec<Frame> {
        addresses.iter().map(|address| Frame { address: *address, ..Frame::default() }).collect()
    }

    fn word(&mut self, _tgid: Tgid, _address: u64) -> Option<u64> {
        None
    }

    fn text(&mut self, _tgid: Tgid, address: u64) -> Option<String> {
        Some(format!("text_at_{address:x}"))
    }

    fn has_kernel_name(&mut self, _tgid: Tgid, _name: &str) -> Option<bool> {
        None
    }

    fn take_python(&mut self, _stack_kind: u16, _id: u64) -> Option<PythonStack> {
        None
    }

    fn take_python_changes(&mut self) -> PythonChanges {
        PythonChanges::default()
    }

    fn unread_python(&self) -> u64 {
        0
    }

    fn forget_python(&mut self, _tgid: Tgid) {}

    fn forget(&mut self, _tgid: Tgid) {}
}
