//! The requests to a reader process and its answers as bytes: numbers of eight bytes, and byte strings with a length
//! prefix.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::meta::{Kind, Meta, TABLE_LIMIT};

/// Longer messages are invalid.
const LONGEST: u64 = TABLE_LIMIT + (1 << 20);

/// Sent by a reader before it starts on a request. Until then it has touched no file, so no file system can delay it.
pub(super) const BEGUN: u8 = b'b';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Open {
        path: &'a Path,
    },
    Read {
        number: u64,
        offset: u64,
        size: u64,
    },
    /// Has an empty answer.
    Close {
        number: u64,
    },
    Identity {
        path: &'a Path,
    },
    Contents {
        path: &'a Path,
        limit: u64,
    },
    Names {
        path: &'a Path,
        limit: u64,
    },
    Canonical {
        path: &'a Path,
    },
    Memory {
        path: &'a Path,
        address: u64,
        size: u64,
    },
    Devices {
        path: &'a Path,
        major: u64,
        limit: u64,
    },
}

const NO_PATH: &str = "";

impl<'a> Request<'a> {
    /// Every request is encoded as a number, a path and three more numbers, not all of which it uses.
    fn parts(self) -> (u64, &'a Path, [u64; 3]) {
        let none = Path::new(NO_PATH);
        match self {
            Self::Open { path } => (0, path, [0; 3]),
            Self::Read { number, offset, size } => (1, none, [number, offset, size]),
            Self::Close { number } => (2, none, [number, 0, 0]),
            Self::Identity { path } => (3, path, [0; 3]),
            Self::Contents { path, limit } => (4, path, [limit, 0, 0]),
            Self::Names { path, limit } => (5, path, [limit, 0, 0]),
            Self::Canonical { path } => (6, path, [0; 3]),
            Self::Memory { path, address, size } => (7, path, [address, size, 0]),
            Self::Devices { path, major, limit } => (8, path, [major, limit, 0]),
        }
    }

    pub(super) fn message(self) -> Vec<u8> {
        let (number, path, numbers) = self.parts();
        let mut message = Message::default();
        message.number(number);
        message.path(path);
        numbers.iter().for_each(|n| message.number(*n));
        message.finish()
    }

    /// The inverse of [`Request::message`], for what [`read_message`] returned.
    pub(super) fn parse(fields: &Fields<'a>) -> io::Result<Self> {
        let mut fields = fields.clone();
        let (kind, path) = (fields.number()?, fields.borrowed_path()?);
        let [a, b, c] = [fields.number()?, fields.number()?, fields.number()?];
        Ok(match kind {
            0 => Self::Open { path },
            1 => Self::Read { number: a, offset: b, size: c },
            2 => Self::Close { number: a },
            3 => Self::Identity { path },
            4 => Self::Contents { path, limit: a },
            5 => Self::Names { path, limit: a },
            6 => Self::Canonical { path },
            7 => Self::Memory { path, address: a, size: b },
            8 => Self::Devices { path, major: a, limit: b },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

/// Builds a message.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Default for Message {
    fn default() -> Self {
        // space for the length prefix
        Self(vec![0; 8])
    }
}

impl Message {
    pub(super) fn number(&mut self, number: u64) {
        self.0.extend(number.to_ne_bytes());
    }

    pub(super) fn path(&mut self, path: &Path) {
        let bytes = path.as_os_str().as_bytes();
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub(super) fn kind(&mut self, kind: Kind) {
        self.number(kind as u64);
    }

    pub(super) fn meta(&mut self, meta: &Meta) {
        let Meta { dev, inode, size, owner, mtime, ctime, is_overlay, is_served, may_stall } = *meta;
        let times = [mtime.0, mtime.1, ctime.0, ctime.1].map(i64::cast_unsigned);
        [dev, inode, size, u64::from(owner)].iter().chain(&times).for_each(|n| self.number(*n));
        self.number(u64::from(is_overlay));
        self.number(u64::from(is_served));
        self.number(u64::from(may_stall));
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 8) as u64;
        if let Some(prefix) = self.0.first_chunk_mut() {
            *prefix = length.to_ne_bytes();
        }
        self.0
    }
}

/// An answer: 0 and the payload, or an error number.
pub(super) fn answer_message(answer: &io::Result<Vec<u8>>) -> Vec<u8> {
    let mut message = Message::default();
    match answer {
        Ok(bytes) => {
            message.number(0);
            message.bytes(bytes);
        }
        Err(error) => message.number(match error.raw_os_error() {
            Some(number) => u64::from(number.unsigned_abs()),
            None if error.kind() == io::ErrorKind::UnexpectedEof => CUT_OFF,
            None => nix::errno::Errno::EIO as u64,
        }),
    }
    message.finish()
}

/// Means that the file has fewer bytes than were requested. No errno has this value.
const CUT_OFF: u64 = 1 << 32;

/// The inverse of [`answer_message`], without the length prefix.
pub(super) fn parse_answer(mut answer: Vec<u8>) -> io::Result<Vec<u8>> {
    match Fields::new(&answer).number()? {
        0 => Ok(answer.split_off(8)),
        CUT_OFF => Err(io::ErrorKind::UnexpectedEof.into()),
        number => Err(io::Error::from_raw_os_error(i32::try_from(number).unwrap_or(0))),
    }
}

/// The length of a message from its prefix; `None` while that is incomplete.
pub(super) fn length_of(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)) else { return Ok(None) };
    let is_valid = length <= LONGEST;
    usize::try_from(length).ok().filter(|_| is_valid).map(Some).ok_or(io::ErrorKind::InvalidData.into())
}

/// The next message; `None` at the end of the input.
pub(super) fn read_message(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut message = vec![0; length_of(&length)?.unwrap_or(0)];
    from.read_exact(&mut message)?;
    Ok(Some(message))
}

/// Reads the fields of a message.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn number(&mut self) -> io::Result<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*number))
    }

    fn borrowed_path(&mut self) -> io::Result<&'a Path> {
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let (path, rest) = self.0.split_at_checked(length).ok_or(io::ErrorKind::InvalidData)?;
        self.0 = rest;
        Ok(Path::new(std::ffi::OsStr::from_bytes(path)))
    }

    pub(super) fn path(&mut self) -> io::Result<PathBuf> {
        Ok(PathBuf::from(OsString::from_vec(self.borrowed_path()?.as_os_str().as_bytes().to_vec())))
    }

    pub(super) fn kind(&mut self) -> io::Result<Kind> {
        let all = [Kind::Regular, Kind::Folder, Kind::Pipe, Kind::Socket, Kind::Device];
        let number = self.number()?;
        all.into_iter().find(|kind| *kind as u64 == number).ok_or(io::ErrorKind::InvalidData.into())
    }

    pub(super) fn meta(&mut self) -> io::Result<Meta> {
        let (dev, inode, size) = (self.number()?, self.number()?, self.number()?);
        let owner = u32::try_from(self.number()?).map_err(io::Error::other)?;
        let mtime = (self.number()?.cast_signed(), self.number()?.cast_signed());
        let ctime = (self.number()?.cast_signed(), self.number()?.cast_signed());
        let mut flag = || self.number().map(|number| number != 0);
        let (is_overlay, is_served, may_stall) = (flag()?, flag()?, flag()?);
        Ok(Meta { dev, inode, size, owner, mtime, ctime, is_overlay, is_served, may_stall })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_with_any_bytes_in_a_path() {
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a b\n\xff\0/libcuda.so"));
        let all = [
            Request::Open { path },
            Request::Read { number: 7, offset: u64::MAX, size: 3 },
            Request::Close { number: 9 },
            Request::Identity { path },
            Request::Contents { path, limit: 5 },
            Request::Names { path, limit: 6 },
            Request::Canonical { path },
            Request::Memory { path, address: 1 << 47, size: 8 },
            Request::Devices { path, major: 195, limit: 4 },
        ];
        let bytes: Vec<u8> = all.iter().flat_map(|request| request.message()).collect();
        let mut from = bytes.as_slice();
        for request in all {
            let message = read_message(&mut from).unwrap().unwrap();
            assert_eq!(Request::parse(&Fields::new(&message)).unwrap(), request);
        }
        assert_eq!(read_message(&mut from).unwrap(), None);
    }

    #[test]
    fn answers_round_trip() {
        let round_trip = |answer: io::Result<Vec<u8>>| {
            let message = answer_message(&answer);
            assert_eq!(length_of(&message).unwrap(), Some(message.len() - 8));
            parse_answer(message[8..].to_vec())
        };
        assert_eq!(round_trip(Ok(b"bytes".to_vec())).unwrap(), b"bytes");
        assert_eq!(round_trip(Ok(Vec::new())).unwrap(), b"");
        let denied = round_trip(Err(io::Error::from_raw_os_error(13))).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        let cut = round_trip(Err(io::ErrorKind::UnexpectedEof.into())).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(round_trip(Err(io::ErrorKind::Other.into())).unwrap_err().raw_os_error(), Some(5));
    }

    #[test]
    fn an_invalid_message_is_an_error() {
        assert_eq!(length_of(&[1, 2, 3]).unwrap(), None);
        assert!(length_of(&u64::MAX.to_ne_bytes()).is_err());
        assert!(read_message(&mut [9, 0, 0, 0, 0, 0, 0, 0, 1].as_slice()).is_err());
        for bytes in [&[][..], &[0; 8], &[0xff; 48], &[0; 39]] {
            assert!(Request::parse(&Fields::new(bytes)).is_err());
        }
        assert!(Fields::new(&[9; 8]).kind().is_err());
        assert!(Fields::new(&[0; 64]).meta().is_err());
        assert!(parse_answer(Vec::new()).is_err());
    }
}
