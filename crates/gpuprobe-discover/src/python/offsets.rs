//! Where the fields of CPython's structures are, by version: x86-64, glibc, release builds with a GIL.
//!
//! 3.9 to 3.13 were printed by a program that was compiled with the headers of 3.9.18, 3.10.13, 3.11.7, 3.12.1 and
//! 3.13.0. `tests/python_frames.rs` uses them on every interpreter that it finds, the thread-specific key included.
//! 3.14 is from the declarations in the source of 3.14; a process states most of them itself, see `debug_offsets.rs`.

use super::line_table::LineTableFormat;
use super::version::PythonVersion;

/// The offsets of one version. A field that is not in the version is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonOffsets {
    pub runtime: RuntimeOffsets,
    pub thread: ThreadOffsets,
    pub frame: FrameOffsets,
    pub code: CodeOffsets,
    pub text: TextOffsets,
}

/// In `_PyRuntime` and `PyInterpreterState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeOffsets {
    /// The 32-bit number of the thread-specific key whose value is the thread state: also set while the thread has
    /// released the GIL. `None` if it is not known for this build.
    pub thread_key: Option<u32>,
    /// The newest interpreter. The pointer to the main one, which is the oldest, follows.
    pub first_interpreter: u32,
    pub next_interpreter: u32,
    pub first_thread: u32,
}

/// In `PyThreadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadOffsets {
    pub next: u32,
    pub interpreter: u32,
    /// The pointer to the innermost frame, or to the C frame that has it.
    pub frame: u32,
    /// Where the C frame has the innermost frame.
    pub frame_in_c_frame: Option<u32>,
    /// What pthread_self returns.
    pub pthread: u32,
    /// The number of the thread in the pid namespace of the process.
    pub native: Option<u32>,
    pub in_use: StateInUse,
}

/// What tells which state a thread uses, if the process has several interpreters. A thread may have one in each, and
/// may use one that another thread has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateInUse {
    /// The thread-specific key: it has the state that the thread used last.
    Key,
    /// The innermost C frame of the state, which the pointer at this offset in the state leads to: it is on the stack of
    /// the thread. The key has the first state that the thread made.
    CFrame(u32),
    /// Nothing. The key is right if no other interpreter runs code.
    Unknown,
}

/// In `PyFrameObject`, since 3.11 in `_PyInterpreterFrame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOffsets {
    pub previous: u32,
    /// The code object. Since 3.13 it may be another object.
    pub code: u32,
    /// Bits of the pointer to the code that are not part of the address.
    pub code_tag: u64,
    pub instruction: u32,
    pub instruction_kind: InstructionKind,
    /// The byte that says in which memory the frame is.
    pub owner: Option<u32>,
    /// The owners, as bits, of frames without Python code.
    pub shim_owners: u8,
    /// The one of them that a call of the evaluation function places below the frames that it evaluates.
    pub entry_owner: Option<u8>,
    pub entry: EntryMark,
    /// Its variables: pointers to objects, one after the other.
    pub locals: u32,
    /// Bytes of a frame that have all of the above.
    pub size: u32,
}

/// What a frame says about its current instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionKind {
    /// A 32-bit number of units of this many bytes from the beginning of the code.
    Index { unit: u8 },
    /// A pointer into the code.
    Pointer,
}

/// How to know the frame that a call of the evaluation function began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMark {
    /// Every frame has a call of its own.
    Every,
    /// A byte of the frame that is not zero.
    Flag(u32),
    /// A shim of `entry_owner` is below it.
    Shim,
}

/// In `PyCodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeOffsets {
    pub argument_count: u32,
    pub positional_only_count: u32,
    pub keyword_only_count: u32,
    pub stack_size: u32,
    pub flags: u32,
    pub first_line: u32,
    /// A number that the interpreter gives to one code object only. Since 3.12.
    pub version: Option<u32>,
    pub file: u32,
    pub name: u32,
    pub qualified_name: Option<u32>,
    pub line_table: u32,
    pub line_table_format: LineTableFormat,
    /// Where the instructions begin, if they are in the object.
    pub instructions: Option<u32>,
    /// Bytes of a code object that have all of the above but the instructions.
    pub size: u32,
}

/// In `str`: the sizes of its two kinds of header, which the characters follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOffsets {
    pub length: u32,
    pub state: u32,
    pub ascii_header: u32,
    pub other_header: u32,
}

/// In every object. The same in all versions.
pub(super) const OBJECT_TYPE: u64 = 8;
/// In types.
pub(super) const TYPE_NAME: u64 = 24;
/// In `bytes`: the size, and the header that the bytes follow.
pub(super) const BYTES_SIZE: u64 = 16;
pub(super) const BYTES_HEADER: u64 = 32;

/// Up to 3.11.
pub(super) const OLD_TEXT: TextOffsets =
    TextOffsets { length: 16, state: 32, ascii_header: 48, other_header: 72 };
const NEW_TEXT: TextOffsets = TextOffsets { length: 16, state: 32, ascii_header: 40, other_header: 56 };

const V3_9: PythonOffsets = PythonOffsets {
    runtime: RuntimeOffsets {
        thread_key: Some(588),
        first_interpreter: 32,
        next_interpreter: 0,
        first_thread: 8,
    },
    thread: ThreadOffsets {
        next: 8,
        interpreter: 16,
        frame: 24,
        frame_in_c_frame: None,
        pthread: 176,
        native: None,
        in_use: StateInUse::Unknown,
    },
    frame: FrameOffsets {
        previous: 24,
        code: 32,
        code_tag: 0,
        instruction: 104,
        instruction_kind: InstructionKind::Index { unit: 1 },
        owner: None,
        shim_owners: 0,
        entry_owner: None,
        entry: EntryMark::Every,
        locals: 360,
        size: 108,
    },
    code: CodeOffsets {
        argument_count: 16,
        positional_only_count: 20,
        keyword_only_count: 24,
        stack_size: 32,
        flags: 36,
        first_line: 40,
        version: None,
        file: 104,
        name: 112,
        qualified_name: None,
        line_table: 120,
        line_table_format: LineTableFormat::ByteDeltas,
        instructions: None,
        size: 128,
    },
    text: OLD_TEXT,
};

const V3_10: PythonOffsets = PythonOffsets {
    thread: ThreadOffsets { in_use: StateInUse::CFrame(48), ..V3_9.thread },
    frame: FrameOffsets {
        locals: 352,
        instruction: 96,
        instruction_kind: InstructionKind::Index { unit: 2 },
        size: 100,
        ..V3_9.frame
    },
    code: CodeOffsets { line_table_format: LineTableFormat::Ranges, ..V3_9.code },
    ..V3_9
};

const V3_11: PythonOffsets = PythonOffsets {
    runtime: RuntimeOffsets {
        thread_key: Some(596),
        first_interpreter: 40,
        next_interpreter: 0,
        first_thread: 16,
    },
    thread: ThreadOffsets {
        next: 8,
        interpreter: 16,
        frame: 56,
        frame_in_c_frame: Some(8),
        pthread: 152,
        native: Some(160),
        in_use: StateInUse::CFrame(56),
    },
    frame: FrameOffsets {
        previous: 48,
        code: 32,
        code_tag: 0,
        instruction: 56,
        instruction_kind: InstructionKind::Pointer,
        owner: Some(69),
        shim_owners: 0,
        entry_owner: None,
        entry: EntryMark::Flag(68),
        locals: 72,
        size: 72,
    },
    code: CodeOffsets {
        argument_count: 56,
        positional_only_count: 60,
        keyword_only_count: 64,
        stack_size: 68,
        flags: 48,
        first_line: 72,
        version: None,
        file: 112,
        name: 120,
        qualified_name: Some(128),
        line_table: 136,
        line_table_format: LineTableFormat::Locations,
        instructions: Some(184),
        size: 144,
    },
    text: OLD_TEXT,
};

const V3_12: PythonOffsets = PythonOffsets {
    runtime: RuntimeOffsets { thread_key: Some(1548), first_thread: 72, ..V3_11.runtime },
    thread: ThreadOffsets {
        frame_in_c_frame: Some(0),
        pthread: 136,
        native: Some(144),
        in_use: StateInUse::Key,
        ..V3_11.thread
    },
    frame: FrameOffsets {
        previous: 8,
        code: 0,
        owner: Some(70),
        shim_owners: 1 << 3,
        entry_owner: Some(3),
        entry: EntryMark::Shim,
        ..V3_11.frame
    },
    code: CodeOffsets {
        argument_count: 52,
        positional_only_count: 56,
        keyword_only_count: 60,
        stack_size: 64,
        first_line: 68,
        version: Some(92),
        instructions: Some(192),
        ..V3_11.code
    },
    text: NEW_TEXT,
};

const V3_13: PythonOffsets = PythonOffsets {
    runtime: RuntimeOffsets {
        thread_key: Some(2164),
        first_interpreter: 632,
        next_interpreter: 7264,
        first_thread: 7344,
    },
    thread: ThreadOffsets {
        frame: 72,
        frame_in_c_frame: None,
        pthread: 152,
        native: Some(160),
        ..V3_12.thread
    },
    code: CodeOffsets { instructions: Some(200), ..V3_12.code },
    ..V3_12
};

const V3_14: PythonOffsets = PythonOffsets {
    runtime: RuntimeOffsets {
        thread_key: Some(2340),
        first_interpreter: 808,
        next_interpreter: 7272,
        first_thread: 7344,
    },
    // 3 is the evaluation function, 4 any other C function
    frame: FrameOffsets {
        locals: 80,
        code_tag: 3,
        owner: Some(74),
        shim_owners: 1 << 3 | 1 << 4,
        size: 80,
        ..V3_13.frame
    },
    code: CodeOffsets { instructions: Some(208), ..V3_13.code },
    ..V3_13
};

impl PythonOffsets {
    /// The offsets of a version; `None` if they are not known.
    pub fn of(version: PythonVersion) -> Option<Self> {
        match (version.major, version.minor) {
            (3, 9) => Some(V3_9),
            (3, 10) => Some(V3_10),
            (3, 11) => Some(V3_11),
            (3, 12) => Some(V3_12),
            (3, 13) => Some(V3_13),
            (3, 14) => Some(V3_14),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(minor: u8) -> Option<PythonOffsets> {
        PythonOffsets::of(PythonVersion::new(3, minor))
    }

    #[test]
    fn versions_that_are_not_in_the_table_have_no_offsets() {
        assert!((9..=14).all(|minor| of(minor).is_some()));
        assert!([0, 8, 15, 27].iter().all(|minor| of(*minor).is_none()));
        assert_eq!(PythonOffsets::of(PythonVersion::new(2, 9)), None);
        assert_eq!(PythonOffsets::of(PythonVersion::new(4, 9)), None);
    }

    #[test]
    fn the_parts_that_are_read_at_once_have_all_fields() {
        for minor in 9..=14 {
            let PythonOffsets { frame, code, .. } = of(minor).unwrap();
            let instruction = match frame.instruction_kind {
                InstructionKind::Index { .. } => 4,
                InstructionKind::Pointer => 8,
            };
            assert!(frame.instruction + instruction <= frame.size, "3.{minor}");
            let flag = if let EntryMark::Flag(at) = frame.entry { at } else { 0 };
            for end in [frame.previous + 8, frame.code + 8, frame.owner.unwrap_or(0) + 1, flag + 1] {
                assert!(end <= frame.size, "3.{minor}: {end}");
            }
            let words = [code.file, code.name, code.qualified_name.unwrap_or(0), code.line_table];
            assert!(words.iter().all(|at| at + 8 <= code.size), "3.{minor}");
        }
    }
}
