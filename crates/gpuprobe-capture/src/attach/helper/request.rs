//! Requests to the attach helper: lines of text, each answered by one line.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use gpuprobe_discover::{OpenedFile, RequestPoint};
use gpuprobe_event::Tgid;

use crate::load::probe_programs::UprobeKind;

/// A file to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbedFile {
    /// The path by which it can be opened now.
    pub(crate) path: PathBuf,
    /// Its identity: another file may have replaced it since its code was read.
    pub(crate) expected: Option<OpenedFile>,
}

/// Probes to attach by one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probes {
    /// Index of the program among those that were handed over.
    pub(crate) program: usize,
    pub(crate) kind: UprobeKind,
    pub(crate) file: ProbedFile,
    /// Offset in the file and cookie of each probe.
    pub(crate) points: Vec<(u64, u64)>,
}

/// A probe on a function that is never called. The Linux kernel adds one to a counter in the memory of the process while
/// the probe is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Semaphore {
    pub(crate) file: ProbedFile,
    pub(crate) tgid: Tgid,
    pub(crate) point: RequestPoint,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Answered by the number of the new link.
    Attach(Probes),
    /// Answered by the number of the new link.
    Raise(Semaphore),
    /// Answered when the links are detached.
    Detach(Vec<u64>),
    /// Answered at once.
    DetachLater(Vec<u64>),
    /// The client is done, and no process is paused. Not answered.
    Done,
}

impl Request {
    /// The request as one line, with the line end.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Attach(Probes { program, kind, file: ProbedFile { path, expected }, points }) => {
                let word =
                    UprobeKind::ALL.iter().find(|(known, _)| known == kind).map_or("", |(_, word)| word);
                let path = hex(path);
                let points: String =
                    points.iter().map(|(offset, cookie)| format!(" {offset}:{cookie}")).collect();
                let expected = expected_word(*expected);
                format!("attach {program} {word} {path} {expected}{points}\n")
            }
            Self::Raise(Semaphore { file, tgid, point }) => {
                let (path, expected) = (hex(&file.path), expected_word(file.expected));
                format!("raise {path} {expected} {tgid} {} {}\n", point.function, point.semaphore)
            }
            Self::Detach(links) => format!("detach{}\n", numbers(links)),
            Self::DetachLater(links) => format!("detach-later{}\n", numbers(links)),
            Self::Done => "done\n".to_owned(),
        }
    }

    /// The inverse of [`Request::line`].
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        match words.next()? {
            "attach" => {
                let program = words.next()?.parse().ok()?;
                let word = words.next()?;
                let kind = UprobeKind::ALL.iter().find(|(_, known)| *known == word)?.0;
                let file = file(&mut words)?;
                let points = words.map(point).collect::<Option<_>>()?;
                Some(Self::Attach(Probes { program, kind, file, points }))
            }
            "raise" => {
                let (file, tgid) = (file(&mut words)?, Tgid(words.next()?.parse().ok()?));
                let (function, semaphore) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Some(Self::Raise(Semaphore { file, tgid, point: RequestPoint { function, semaphore } }))
            }
            "detach" => words.map(|w| w.parse().ok()).collect::<Option<_>>().map(Self::Detach),
            "detach-later" => words.map(|w| w.parse().ok()).collect::<Option<_>>().map(Self::DetachLater),
            "done" => Some(Self::Done),
            _ => None,
        }
    }
}

fn numbers(links: &[u64]) -> String {
    links.iter().map(|link| format!(" {link}")).collect()
}

/// In hex, because a path may contain any byte, also line ends.
fn hex(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().map(|b| format!("{b:02x}")).collect()
}

/// The inverse of [`hex`] and [`expected_word`].
fn file<'w>(words: &mut impl Iterator<Item = &'w str>) -> Option<ProbedFile> {
    let path = PathBuf::from(OsString::from_vec(unhex(words.next()?)?));
    let expected = match words.next()? {
        "any" => None,
        word => Some(parse_expected(word)?),
    };
    Some(ProbedFile { path, expected })
}

fn expected_word(expected: Option<OpenedFile>) -> String {
    match expected {
        None => "any".to_owned(),
        Some(OpenedFile { dev, inode, size, owner }) => format!("{dev}:{inode}:{size}:{owner}"),
    }
}

fn parse_expected(word: &str) -> Option<OpenedFile> {
    let mut numbers = word.split(':').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (dev, inode, size, owner) = (next()?, next()?, next()?, next()?);
    Some(OpenedFile { dev, inode, size, owner: u32::try_from(owner).ok()? })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn point(word: &str) -> Option<(u64, u64)> {
    let (offset, cookie) = word.split_once(':')?;
    Some((offset.parse().ok()?, cookie.parse().ok()?))
}

/// The answer to a request: a number, or an errno.
pub(crate) fn answer_line(answer: &io::Result<u64>) -> String {
    match answer {
        Ok(number) => format!("ok {number}\n"),
        Err(error) => format!("error {}\n", error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// The inverse of [`answer_line`]. Anything else is the error `UnexpectedEof`.
pub(crate) fn parse_answer(line: &str) -> io::Result<u64> {
    let (word, number) = line.trim_end().split_once(' ').unwrap_or_default();
    match (word, number.parse::<u64>()) {
        ("ok", Ok(number)) => Ok(number),
        ("error", Ok(number)) => {
            Err(io::Error::from_raw_os_error(i32::try_from(number).unwrap_or(libc::EIO)))
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_can_be_parsed_again_whatever_bytes_are_in_a_path() {
        let path = PathBuf::from(OsString::from_vec(b"/a b\n/\xff\0lib".to_vec()));
        let mut all: Vec<_> = UprobeKind::ALL
            .iter()
            .map(|(kind, _)| {
                let points = vec![(0, 0), (u64::MAX, 7)];
                let expected =
                    Some(OpenedFile { dev: 1, inode: 2, size: 3, owner: 4 }).filter(|_| kind.is_perf());
                let file = ProbedFile { path: path.clone(), expected };
                Request::Attach(Probes { program: 3, kind: *kind, file, points })
            })
            .collect();
        let file = ProbedFile { path, expected: None };
        let raise =
            Semaphore { file, tgid: Tgid(7), point: RequestPoint { function: 1, semaphore: u64::MAX } };
        all.extend([
            Request::Raise(raise),
            Request::Detach(vec![]),
            Request::Detach(vec![1, 22]),
            Request::DetachLater(vec![3]),
            Request::Done,
        ]);
        for request in all {
            let line = request.line();
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert_eq!(Request::parse(&line), Some(request));
        }
    }

    #[test]
    fn invalid_requests_are_not_parsed() {
        for line in [
            "",
            "\n",
            "attach",
            "attach 1 multi",
            "attach 1 magic 2f",
            "attach 1 multi 2f 1",
            "attach 1 multi 2",
            "raise 2f any 1 2",
            "raise 2f any x 2 3",
            "detach x",
        ] {
            assert_eq!(Request::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn answers_can_be_parsed_again() {
        assert_eq!(parse_answer(&answer_line(&Ok(7))).unwrap(), 7);
        let refused = Err(io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(parse_answer(&answer_line(&refused)).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(parse_answer("").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
