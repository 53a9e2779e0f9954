//! Joins the native frames and the Python frames of one thread into one stack.
//!
//! A call of the interpreter's evaluation function is one native frame. It evaluates a run of Python frames, of which
//! the outermost is marked as its entry. So the n-th evaluation frame stands for the n-th run, both counted from the
//! innermost, and is replaced by it. The two stacks are read separately and either may be cut off, so the numbers may
//! differ; [`Alignment`] says what is known then.

use super::frame_walk::PythonFrame;

/// The function that evaluates Python code.
const EVALUATION: &str = "_PyEval_EvalFrameDefault";
/// The beginning of the names of its parts, where the compiler made a function of each instruction (since 3.14).
const EVALUATION_PART: &str = "_TAIL_CALL_";

/// A frame of a merged stack, by its index in one of the two stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedFrame {
    Native(usize),
    Python(usize),
}

/// How certain the order of native and Python frames is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Every evaluation frame has its run of Python frames.
    Exact,
    /// One of the stacks is known to be cut off at its outer end. The order is right up to there; beyond it there are
    /// only the frames of the other stack.
    CutOff,
    /// The numbers differ and no cut explains it. The native frames that are called by the innermost Python frame are
    /// followed by all Python frames. The native frames further out are not in the stack, as their place among the
    /// Python frames is not known. If no evaluation frame is known, all native frames come first.
    Unknown { omitted_native: usize },
}

/// A stack of native and Python frames, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedStack {
    pub frames: Vec<MergedFrame>,
    pub alignment: Alignment,
}

/// One of the stacks to be merged, the innermost frame first.
#[derive(Clone, Copy, Debug)]
pub struct StackToMerge<'s, F> {
    pub frames: &'s [F],
    /// Whether the outermost frame was reached.
    pub is_complete: bool,
}

/// Whether a native function evaluates Python code, by its name. Compilers append to the names of copies and parts of
/// a function.
pub fn is_evaluation(function: &str) -> bool {
    function.strip_prefix(EVALUATION).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '@']))
}

/// Merges two stacks of a thread. A native frame is given by its function, if that is known.
pub fn merge(native: StackToMerge<'_, Option<&str>>, python: StackToMerge<'_, PythonFrame>) -> MergedStack {
    let is_replaced = |function: &Option<&str>| function.is_some_and(is_evaluation);
    let frames = native.frames.iter().enumerate().filter(|(_, function)| is_replaced(function));
    let evaluations: Vec<usize> = frames.map(|(index, _)| index).collect();
    let (runs, has_open_run) = runs(python.frames);
    // the stack with fewer must be the one that is cut off
    let is_explained = (evaluations.len() >= runs.len() || !native.is_complete)
        && (evaluations.len() <= runs.len() || !python.is_complete)
        && (!has_open_run || !python.is_complete);
    if !is_explained {
        return unaligned(native.frames, evaluations.first().copied(), python.frames.len());
    }
    let is_exact = evaluations.len() == runs.len() && !has_open_run;
    let alignment = if is_exact { Alignment::Exact } else { Alignment::CutOff };
    MergedStack { frames: aligned(native.frames, &evaluations, &runs), alignment }
}

/// The ranges of Python frames up to each entry, and whether the last one has no entry.
fn runs(frames: &[PythonFrame]) -> (Vec<std::ops::Range<usize>>, bool) {
    let (mut runs, mut begin) = (Vec::new(), 0);
    for (index, frame) in frames.iter().enumerate() {
        if frame.is_entry {
            runs.push(begin..index + 1);
            begin = index + 1;
        }
    }
    let has_open_run = begin < frames.len();
    if has_open_run {
        runs.push(begin..frames.len());
    }
    (runs, has_open_run)
}

fn aligned(
    native: &[Option<&str>],
    evaluations: &[usize],
    runs: &[std::ops::Range<usize>],
) -> Vec<MergedFrame> {
    let (mut merged, mut begin) = (Vec::new(), 0);
    for (evaluation, run) in evaluations.iter().zip(runs) {
        merged.extend(native_frames(native, begin, *evaluation));
        merged.extend(run.clone().map(MergedFrame::Python));
        begin = evaluation + 1;
    }
    merged.extend((begin..native.len()).map(MergedFrame::Native));
    merged.extend(runs.iter().skip(evaluations.len()).flat_map(Clone::clone).map(MergedFrame::Python));
    merged
}

fn unaligned(native: &[Option<&str>], first: Option<usize>, python: usize) -> MergedStack {
    let end = first.unwrap_or(native.len());
    let mut frames: Vec<_> = native_frames(native, 0, end).collect();
    frames.extend((0..python).map(MergedFrame::Python));
    MergedStack { frames, alignment: Alignment::Unknown { omitted_native: native.len() - end } }
}

/// The native frames from `begin` up to an evaluation frame, without the parts of the evaluation itself.
fn native_frames(
    native: &[Option<&str>],
    begin: usize,
    evaluation: usize,
) -> impl Iterator<Item = MergedFrame> {
    let frames = native.get(begin..evaluation).unwrap_or_default();
    let is_part = |function: &&Option<&str>| function.is_some_and(|name| name.starts_with(EVALUATION_PART));
    let is_followed = evaluation < native.len();
    let parts = if is_followed { frames.iter().rev().take_while(is_part).count() } else { 0 };
    (begin..evaluation - parts).map(MergedFrame::Native)
}

#[cfg(test)]
mod tests {
    use super::MergedFrame::{Native, Python};
    use super::*;

    const EVAL: Option<&str> = Some(EVALUATION);

    fn python(entries: &[bool]) -> Vec<PythonFrame> {
        entries
            .iter()
            .map(|is_entry| PythonFrame { code: 1, instruction_offset: 0, is_entry: *is_entry })
            .collect()
    }

    fn merged(native: (&[Option<&str>], bool), entries: (&[bool], bool)) -> MergedStack {
        let frames = python(entries.0);
        merge(
            StackToMerge { frames: native.0, is_complete: native.1 },
            StackToMerge { frames: &frames, is_complete: entries.1 },
        )
    }

    #[test]
    fn each_evaluation_frame_is_replaced_by_its_run() {
        let native = [Some("cudaMalloc"), EVAL, Some("list_sort"), EVAL, None, Some("main")];
        let stack = merged((&native, true), (&[false, true, true], true));
        assert_eq!(stack.alignment, Alignment::Exact);
        assert_eq!(
            stack.frames,
            [Native(0), Python(0), Python(1), Native(2), Python(2), Native(4), Native(5)]
        );
        let none = merged((&[Some("main")], true), (&[], true));
        assert_eq!((none.frames, none.alignment), (vec![Native(0)], Alignment::Exact));
    }

    #[test]
    fn copies_and_parts_of_the_evaluation_are_known() {
        for name in ["", ".cold", ".llvm.1234", ".constprop.0", ".lto_priv.0.cold"] {
            assert!(is_evaluation(&format!("{EVALUATION}{name}")), "{name}");
        }
        for name in ["_PyEval_EvalFrameDefault2", "_PyEval_EvalFrame", "my_PyEval_EvalFrameDefault", ""] {
            assert!(!is_evaluation(name), "{name}");
        }
        let native = [Some("f"), Some("_TAIL_CALL_CALL"), EVAL, Some("_TAIL_CALL_other"), Some("main")];
        let stack = merged((&native, true), (&[true], true));
        assert_eq!(stack.frames, [Native(0), Python(0), Native(3), Native(4)]);
    }

    #[test]
    fn a_native_stack_that_is_cut_off_is_continued_by_python_frames() {
        let native = [Some("f"), EVAL, Some("g")];
        let stack = merged((&native, false), (&[true, false, true], true));
        assert_eq!(stack.alignment, Alignment::CutOff);
        assert_eq!(stack.frames, [Native(0), Python(0), Native(2), Python(1), Python(2)]);
        let stack = merged((&[Some("f")], false), (&[true], true));
        assert_eq!((stack.frames, stack.alignment), (vec![Native(0), Python(0)], Alignment::CutOff));
    }

    #[test]
    fn a_python_stack_that_is_cut_off_is_continued_by_native_frames() {
        let native = [EVAL, Some("f"), EVAL, Some("g"), EVAL, Some("main")];
        let stack = merged((&native, true), (&[true, false], false));
        assert_eq!(stack.alignment, Alignment::CutOff);
        assert_eq!(stack.frames, [Python(0), Native(1), Python(1), Native(3), Native(4), Native(5)]);
        let both = merged((&native[..5], false), (&[true, false], false));
        assert_eq!(both.alignment, Alignment::CutOff);
        assert_eq!(both.frames, stack.frames[..5]);
    }

    #[test]
    fn a_difference_without_a_cause_is_not_guessed_away() {
        let native = [Some("f"), EVAL, Some("g"), EVAL, Some("main")];
        for (native_complete, python_complete) in [(true, true), (true, false)] {
            let stack = merged((&native, native_complete), (&[true, true, true], python_complete));
            assert_eq!(stack.alignment, Alignment::Unknown { omitted_native: 4 });
            assert_eq!(stack.frames, [Native(0), Python(0), Python(1), Python(2)]);
        }
        let fewer = merged((&native, false), (&[true], true));
        assert_eq!(fewer.alignment, Alignment::Unknown { omitted_native: 4 }, "the other stack is cut off");
        let open = merged((&native, true), (&[true, false], true));
        assert_eq!(open.alignment, Alignment::Unknown { omitted_native: 4 }, "the last run has no entry");
        let stripped = merged((&[None, None], true), (&[true], true));
        assert_eq!(stripped.alignment, Alignment::Unknown { omitted_native: 0 });
        assert_eq!(stripped.frames, [Native(0), Native(1), Python(0)]);
    }

    #[test]
    fn no_frame_of_python_is_lost_and_none_is_doubled() {
        let mut random = crate::testing::Xorshift(9);
        for _ in 0..5000 {
            let names = [EVAL, Some("f"), None, Some("_TAIL_CALL_X")];
            let native: Vec<_> = (0..random.next() % 8).map(|_| names[random.next() as usize % 4]).collect();
            let entries: Vec<_> = (0..random.next() % 8).map(|_| random.next().is_multiple_of(2)).collect();
            let complete = (random.next().is_multiple_of(2), random.next().is_multiple_of(2));
            let stack = merged((&native, complete.0), (&entries, complete.1));
            let of_python: Vec<_> = stack
                .frames
                .iter()
                .filter_map(|f| if let Python(at) = f { Some(*at) } else { None })
                .collect();
            assert_eq!(of_python, (0..entries.len()).collect::<Vec<_>>());
            let of_native: Vec<_> = stack
                .frames
                .iter()
                .filter_map(|f| if let Native(at) = f { Some(*at) } else { None })
                .collect();
            assert!(of_native.is_sorted_by(|a, b| a < b) && of_native.iter().all(|at| *at < native.len()));
        }
    }
}
