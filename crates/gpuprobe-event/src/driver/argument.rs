//! Decodes the arguments of ioctls. They are untrusted, and any part of them may be missing.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::names::{class_names, control_names};
use super::{Command, CommandCode, DeviceKind, Version};
use crate::event::{Name, Value};
use crate::gpu::Uuid;
use crate::table::sections;

/// One ioctl on an NVIDIA device file.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    pub device: DeviceKind,
    /// The request. For a command inside `NV_ESC_IOCTL_XFER_CMD`, the request of that command.
    pub request: u32,
    /// The argument when the call returned, as far as it was read; empty if it could not be.
    pub argument: &'a [u8],
}

/// The type of a field, and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A handle, an address, flags.
    Hex,
    /// A count.
    Uint,
    /// A signed number.
    Int,
    /// A control command.
    Command,
    /// A class of objects.
    Class,
    /// The result.
    Status,
    /// A GPU or the CPU.
    Uuid,
    /// Text.
    Text,
}

/// One field of an argument.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) kind: Kind,
    pub(super) name: &'static str,
}

/// Fields by command and size, which is 0 if the request has none.
pub(super) type Layouts = HashMap<(Command, u32), Vec<Field>>;

pub(super) const TABLE: &str = include_str!("../../driver/structs.tbl");

static LAYOUTS: LazyLock<Layouts> =
    LazyLock::new(|| sections(TABLE).into_iter().filter_map(parse_layout).collect());

/// The UUID of the CPU in unified memory commands.
const CPU: [u8; 16] =
    [0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73];

impl Ioctl<'_> {
    /// The key under which it is counted.
    pub fn code(&self) -> CommandCode {
        let has_detail =
            Command::of(self.device, self.request).is_some_and(|command| command.details().is_some());
        let is_detail = |field: &&Field| matches!(field.kind, Kind::Command | Kind::Class);
        let detail =
            self.layout().iter().find(is_detail).filter(|_| has_detail).and_then(|field| self.word(field));
        CommandCode { device: self.device, request: self.request, detail: detail.map_or(0, low) }
    }

    /// The NV_STATUS of the NVIDIA kernel module, which is not the return value of the system call. `None` if its
    /// location is not known for certain, or it was not read.
    pub fn status(&self) -> Option<u32> {
        let field = self.layout().iter().find(|field| field.kind == Kind::Status)?;
        self.word(field).map(low)
    }

    /// The input and output fields other than the status: handles, sizes, addresses. Empty if the argument was not
    /// read at all; [`Value::Unread`] for fields after the part that was read.
    pub fn fields(&self, version: Version) -> Vec<(Name, Value)> {
        let shown =
            self.layout().iter().filter(|field| field.kind != Kind::Status && !self.argument.is_empty());
        shown.map(|field| (Name::Borrowed(field.name), self.value(field, version))).collect()
    }

    fn layout(&self) -> &'static [Field] {
        let Some(command) = Command::of(self.device, self.request) else { return &[] };
        let size = match command {
            Command::Escape(_) => (self.request >> 16) & 0x3fff,
            Command::Uvm(_) => 0,
        };
        LAYOUTS.get(&(command, size)).map_or(&[], Vec::as_slice)
    }

    fn value(&self, field: &Field, version: Version) -> Value {
        let named = |names: &super::Names, number| {
            names.get(number, version).map_or(Value::Hex(number.into()), |name| Value::Name(name.into()))
        };
        let value = match field.kind {
            Kind::Uuid => {
                self.bytes(field).and_then(|bytes| bytes.first_chunk()).map(|bytes| processor(*bytes))
            }
            Kind::Text => self.bytes(field).map(text),
            Kind::Hex | Kind::Status => self.word(field).map(Value::Hex),
            Kind::Uint => self.word(field).map(Value::Uint),
            Kind::Int => self.word(field).map(|word| Value::Int(low(word).cast_signed().into())),
            Kind::Command => self.word(field).map(|word| named(control_names(), low(word))),
            Kind::Class => self.word(field).map(|word| named(class_names(), low(word))),
        };
        value.unwrap_or(Value::Unread)
    }

    fn bytes(&self, field: &Field) -> Option<&[u8]> {
        self.argument.get(field.offset..field.offset + field.bytes)
    }

    fn word(&self, field: &Field) -> Option<u64> {
        let bytes = self.bytes(field).filter(|bytes| bytes.len() <= 8)?;
        Some(bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)))
    }
}

/// The low 32 bits, for fields of four bytes.
fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

fn processor(uuid: [u8; 16]) -> Value {
    if uuid == CPU { Value::Name("CPU".into()) } else { Value::Text(Uuid(uuid).to_string()) }
}

fn text(bytes: &[u8]) -> Value {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Value::Text(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// `command size`, or a command alone.
fn parse_layout((header, body): (&'static str, Vec<&'static str>)) -> Option<((Command, u32), Vec<Field>)> {
    let (name, size) = header.split_once(' ').unwrap_or((header, "0"));
    let fields = body.into_iter().filter_map(parse_field).collect();
    Some(((Command::from_name(name)?, size.parse().ok()?), fields))
}

/// `offset bytes kind name`.
fn parse_field(line: &'static str) -> Option<Field> {
    let mut words = line.split(' ');
    let (offset, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let kind = match words.next()? {
        "hex" => Kind::Hex,
        "uint" => Kind::Uint,
        "int" => Kind::Int,
        "command" => Kind::Command,
        "class" => Kind::Class,
        "status" => Kind::Status,
        "uuid" => Kind::Uuid,
        "text" => Kind::Text,
        _ => return None,
    };
    let name = words.next()?;
    words.next().is_none().then_some(Field { offset, bytes, kind, name })
}

#[cfg(test)]
pub(super) fn layouts() -> &'static Layouts {
    &LAYOUTS
}
