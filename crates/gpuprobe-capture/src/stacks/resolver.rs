//! Addresses of a process to names, for what the kernel side cannot tell.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use gpuprobe_discover::{Registers, Stack, StackEnd, Symbolizer, Unwinder, memory};
use gpuprobe_event::{Frame, Tgid};

use crate::stacks::raw_stack::RawStack;

const PROC: &str = "/proc";
const LONGEST_TEXT: usize = 4096;

/// Gives names to addresses of processes that run.
pub(crate) trait Resolve: Debug {
    /// A process makes its first call. It may end soon.
    fn observe(&mut self, tgid: Tgid);
    /// The name of the function at an address.
    fn symbol(&mut self, tgid: Tgid, address: u64) -> Option<String>;
    /// The return addresses of a stack, innermost first.
    fn unwind(&mut self, tgid: Tgid, stack: &RawStack) -> Stack;
    /// What return addresses are.
    fn frames(&mut self, tgid: Tgid, addresses: &[u64]) -> Vec<Frame>;
    /// A word of its memory.
    fn word(&mut self, tgid: Tgid, address: u64) -> Option<u64>;
    /// A text in its memory.
    fn text(&mut self, tgid: Tgid, address: u64) -> Option<String>;
    /// A process has ended.
    fn forget(&mut self, tgid: Tgid);
}

/// By the files that a process has mapped.
#[derive(Debug)]
pub(crate) struct FileResolver {
    symbols: Symbolizer,
    unwinder: Unwinder,
    /// Whether anything will be asked at all.
    is_asked: bool,
}

impl FileResolver {
    pub(crate) fn new(is_asked: bool) -> Self {
        Self { symbols: Symbolizer::new(), unwinder: Unwinder::new(), is_asked }
    }
}

impl Resolve for FileResolver {
    fn observe(&mut self, tgid: Tgid) {
        if self.is_asked {
            self.unwinder.observe(Path::new(PROC), tgid.0);
        }
    }

    fn symbol(&mut self, tgid: Tgid, address: u64) -> Option<String> {
        // as if a call had returned behind its first byte: what is mapped is then known though the process has ended
        let behind = address.wrapping_add(1);
        let frame = self.unwinder.frames(&mut self.symbols, Path::new(PROC), tgid.0, &[behind]).pop()?;
        // the middle of something is not what was meant
        frame.function.filter(|_| frame.offset == 1)
    }

    fn unwind(&mut self, tgid: Tgid, stack: &RawStack) -> Stack {
        let registers = Registers { ip: stack.ip, sp: stack.sp, fp: stack.fp, lr: stack.lr };
        self.unwinder.unwind(Path::new(PROC), tgid.0, registers, &stack.bytes)
    }

    fn frames(&mut self, tgid: Tgid, addresses: &[u64]) -> Vec<Frame> {
        self.unwinder.frames(&mut self.symbols, Path::new(PROC), tgid.0, addresses)
    }

    fn word(&mut self, tgid: Tgid, address: u64) -> Option<u64> {
        let word = memory(&memory_of(tgid), address, 8).ok()?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }

    fn text(&mut self, tgid: Tgid, address: u64) -> Option<String> {
        // it may end where what is mapped ends
        let bytes = memory(&memory_of(tgid), address, LONGEST_TEXT).ok()?;
        let end = bytes.iter().position(|b| *b == 0);
        // one that goes on is cut where the kernel side cuts; one that runs into nothing is none
        let end = end.or((bytes.len() == LONGEST_TEXT).then_some(LONGEST_TEXT - 1))?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn forget(&mut self, tgid: Tgid) {
        self.unwinder.forget(tgid.0);
    }
}

/// The memory of a process, whose pages come when they are read: the kernel side has only those that are there.
fn memory_of(tgid: Tgid) -> PathBuf {
    Path::new(PROC).join(tgid.to_string()).join("mem")
}

/// Nothing has a name, and nobody's memory is read.
#[derive(Debug)]
pub(crate) struct NoResolver;

impl Resolve for NoResolver {
    fn observe(&mut self, _tgid: Tgid) {}

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

    fn forget(&mut self, _tgid: Tgid) {}
}
