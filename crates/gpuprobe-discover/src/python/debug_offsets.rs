//! Reads the offsets that an interpreter states about itself: since 3.13, `_PyRuntime` begins with a table of them,
//! `_Py_DebugOffsets`. Some offsets differ between builds and between patch versions, so what the table says is used;
//! `offsets.rs` has what it does not say.

use super::offsets::{FrameOffsets, PythonOffsets, RuntimeOffsets, ThreadOffsets};
use super::version::PythonVersion;

/// What `_PyRuntime` begins with.
pub(super) const COOKIE: &[u8; 8] = b"xdebugpy";
/// Bytes of the longest table.
pub(super) const TABLE_SIZE: usize = 760;
/// Larger offsets are nonsense. The largest are some kilobytes, in the state of an interpreter.
const LARGEST: u64 = 1 << 20;
/// Likewise in structures that are read at once.
const LARGEST_IN_ONE_READ: u64 = 4096;

/// What the first words of the table say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) version: PythonVersion,
    /// A release, or a candidate for one.
    pub(super) is_release: bool,
    pub(super) is_free_threaded: bool,
}

impl Stated {
    /// `None` if there is no such table.
    pub(super) fn read(table: &[u8]) -> Option<Self> {
        if !table.starts_with(COOKIE) {
            return None;
        }
        let (version, is_release) = PythonVersion::from_number(word(table, 8)?);
        Some(Self { version, is_release, is_free_threaded: word(table, 16)? != 0 })
    }
}

/// Where the groups of offsets begin in the table of a version. Those of the runtime and of the interpreter begin at
/// the same place in all of them, and the fields that are read here are the first of their group in all of them.
struct Groups {
    thread: usize,
    frame: usize,
    code: usize,
    text: usize,
}

fn groups(version: PythonVersion) -> Option<Groups> {
    match (version.major, version.minor) {
        (3, 13) => Some(Groups { thread: 152, frame: 224, code: 272, text: 536 }),
        (3, 14) => Some(Groups { thread: 176, frame: 248, code: 312, text: 616 }),
        _ => None,
    }
}

/// The offsets that the table states, and those of `known` that it does not state. `None` if an offset is nonsense.
pub(super) fn stated_offsets(
    table: &[u8],
    version: PythonVersion,
    known: &PythonOffsets,
) -> Option<PythonOffsets> {
    let groups = groups(version)?;
    let far = |at| word(table, at).filter(|offset| *offset <= LARGEST)?.try_into().ok();
    let near = |at| word(table, at).filter(|offset| *offset <= LARGEST_IN_ONE_READ)?.try_into().ok();
    let first_interpreter = far(40)?;
    let runtime = RuntimeOffsets {
        // not in the table: only what is known to be in front of it says that it has not moved
        thread_key: known.runtime.thread_key.filter(|_| first_interpreter == known.runtime.first_interpreter),
        first_interpreter,
        next_interpreter: far(64)?,
        first_thread: far(72)?,
    };
    let thread = ThreadOffsets {
        next: near(groups.thread + 16)?,
        interpreter: near(groups.thread + 24)?,
        frame: near(groups.thread + 32)?,
        pthread: near(groups.thread + 40)?,
        native: Some(near(groups.thread + 48)?),
        ..known.thread
    };
    let mut frame = FrameOffsets {
        previous: near(groups.frame + 8)?,
        code: near(groups.frame + 16)?,
        instruction: near(groups.frame + 24)?,
        locals: near(groups.frame + 32)?,
        owner: Some(near(groups.frame + 40)?),
        ..known.frame
    };
    let ends = [frame.previous + 8, frame.code + 8, frame.instruction + 8, frame.owner? + 1];
    frame.size = ends.into_iter().fold(frame.size, u32::max);
    let mut code = known.code;
    code.file = near(groups.code + 8)?;
    code.name = near(groups.code + 16)?;
    code.qualified_name = Some(near(groups.code + 24)?);
    code.line_table = near(groups.code + 32)?;
    code.first_line = near(groups.code + 40)?;
    code.argument_count = near(groups.code + 48)?;
    code.instructions = Some(near(groups.code + 72)?);
    let words = [code.file, code.name, code.qualified_name?, code.line_table];
    let ends = words.into_iter().map(|at| at + 8).chain([code.first_line + 4, code.argument_count + 4]);
    code.size = ends.fold(code.size, u32::max);
    let mut text = known.text;
    // a pointer and a size more than the header of an ASCII string
    let more = text.other_header - text.ascii_header;
    text.state = near(groups.text + 8)?;
    text.length = near(groups.text + 16)?;
    text.ascii_header = near(groups.text + 24)?;
    text.other_header = text.ascii_header + more;
    Some(PythonOffsets { runtime, thread, frame, code, text })
}

fn word(table: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(table.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The table of an interpreter with these offsets.
    pub(in crate::python) fn table(version: PythonVersion, number: u64, offsets: &PythonOffsets) -> Vec<u8> {
        let groups = groups(version).unwrap();
        let mut table = vec![0; TABLE_SIZE];
        let mut put = |at: usize, value: u64| table[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, u64::from_le_bytes(*COOKIE));
        put(8, number);
        let PythonOffsets { runtime, thread, frame, code, text } = offsets;
        let fields = [
            (40, runtime.first_interpreter),
            (64, runtime.next_interpreter),
            (72, runtime.first_thread),
            (groups.thread + 16, thread.next),
            (groups.thread + 24, thread.interpreter),
            (groups.thread + 32, thread.frame),
            (groups.thread + 40, thread.pthread),
            (groups.thread + 48, thread.native.unwrap()),
            (groups.frame + 8, frame.previous),
            (groups.frame + 16, frame.code),
            (groups.frame + 24, frame.instruction),
            (groups.frame + 32, frame.locals),
            (groups.frame + 40, frame.owner.unwrap()),
            (groups.code + 8, code.file),
            (groups.code + 16, code.name),
            (groups.code + 24, code.qualified_name.unwrap()),
            (groups.code + 32, code.line_table),
            (groups.code + 40, code.first_line),
            (groups.code + 48, code.argument_count),
            (groups.code + 72, code.instructions.unwrap()),
            (groups.text + 8, text.state),
            (groups.text + 16, text.length),
            (groups.text + 24, text.ascii_header),
        ];
        fields.into_iter().for_each(|(at, offset)| put(at, offset.into()));
        table
    }

    fn known(minor: u8) -> (PythonVersion, PythonOffsets) {
        let version = PythonVersion::new(3, minor);
        (version, PythonOffsets::of(version).unwrap())
    }

    #[test]
    fn a_table_that_agrees_changes_nothing() {
        for minor in [13, 14] {
            let (version, known) = known(minor);
            let table = table(version, 0x030d_00f0, &known);
            assert_eq!(stated_offsets(&table, version, &known), Some(known), "3.{minor}");
        }
    }

    #[test]
    fn what_the_table_states_is_used_and_a_key_that_may_have_moved_is_not() {
        let (version, known) = known(14);
        let mut other = known;
        other.runtime.first_thread = 7368;
        other.frame.owner = Some(90);
        let found = stated_offsets(&table(version, 0, &other), version, &known).unwrap();
        assert_eq!((found.runtime.first_thread, found.runtime.thread_key), (7368, Some(2340)));
        assert_eq!((found.frame.owner, found.frame.size), (Some(90), 91));
        other.runtime.first_interpreter += 8;
        let found = stated_offsets(&table(version, 0, &other), version, &known).unwrap();
        assert_eq!(found.runtime.thread_key, None);
    }

    #[test]
    fn nonsense_is_no_table() {
        let (version, known) = known(13);
        let good = table(version, 0, &known);
        assert_eq!(stated_offsets(&good[..500], version, &known), None);
        for at in [40, 72, 168, 232, 264, 304, 560] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(stated_offsets(&bad, version, &known), None, "{at}");
        }
        assert_eq!(stated_offsets(&good, PythonVersion::new(3, 12), &known), None);
        assert_eq!(Stated::read(&good[1..]), None);
        assert_eq!(Stated::read(COOKIE), None);
    }

    #[test]
    fn the_first_words_are_version_and_kind_of_build() {
        let (version, known) = known(13);
        let mut bytes = table(version, 0x030d_02b1, &known);
        let stated = Stated::read(&bytes).unwrap();
        assert_eq!(stated.version.to_string(), "3.13.2");
        assert!(!stated.is_release && !stated.is_free_threaded);
        bytes[16] = 1;
        assert!(Stated::read(&bytes).unwrap().is_free_threaded);
    }
}
