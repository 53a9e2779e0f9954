//! Resolves the Python frames of a process without stopping it: finds its CPython interpreter, walks the frames of a
//! thread, reads the names and lines of their code objects, and merges them with the native frames.
//!
//! Everything is read from the memory of the process, which may contain anything and may change meanwhile: each read
//! has a limit, each list and each chain ends, and what does not fit together is reported and not guessed.

mod code_cache;
mod code_object;
mod debug_offsets;
mod fingerprint;
mod frame_walk;
#[cfg(any(test, fuzzing))]
mod image;
mod interpreter;
mod line_table;
mod merge;
mod object;
mod offsets;
mod thread_states;
mod variables;
mod version;

pub use code_cache::CodeCache;
pub use code_object::{CodeObject, UNKNOWN_INSTRUCTION};
pub use fingerprint::{FINGERPRINT_FACTOR, FINGERPRINT_FILE_WORDS, FINGERPRINT_TABLE_WORDS};
pub use frame_walk::{PYTHON_FRAME_LIMIT, PythonFrame, PythonStack, PythonStackEnd};
#[cfg(fuzzing)]
pub(crate) use image::damaged_process;
pub use interpreter::{Interpreter, InterpreterSearch, NoInterpreter};
pub use line_table::LineTableFormat;
pub use merge::{Alignment, MergedFrame, MergedStack, StackToMerge, is_evaluation, merge};
pub use object::ObjectError;
pub use offsets::{
    CodeOffsets, EntryMark, FrameOffsets, InstructionKind, PythonOffsets, RuntimeOffsets, StateInUse,
    TextOffsets, ThreadOffsets,
};
pub use thread_states::{NoPythonStack, PythonThread};
pub use variables::NumberTypes;
pub use version::PythonVersion;
