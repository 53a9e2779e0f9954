//! The C types of the catalogue: their sizes and how their values are shown.

use std::collections::HashMap;

use super::vendor::VENDORS;
use crate::table::{lines, sections};

/// How the raw words of an argument are read and shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgKind {
    /// An address of the process, or of the device when `CUdeviceptr`.
    Pointer,
    /// An opaque handle: stream, event, context, module.
    Handle,
    /// A device address passed as an integer.
    DevicePointer,
    /// A count of bytes or elements.
    Size,
    /// A signed integer of this many bytes.
    Int(u8),
    /// An unsigned integer of this many bytes.
    Uint(u8),
    /// Unsigned flags, shown in hexadecimal.
    Flags(u8),
    /// An enum with its names.
    Enum(&'static EnumTable),
    /// A struct by value, with its layout if known.
    Struct { bytes: u16, layout: Option<&'static StructLayout> },
    /// A float by value, in a vector register that probes do not see.
    Float,
}

impl ArgKind {
    /// Size in bytes as passed.
    pub fn bytes(self) -> u16 {
        match self {
            Self::Pointer | Self::Handle | Self::DevicePointer | Self::Size => 8,
            Self::Int(n) | Self::Uint(n) | Self::Flags(n) => u16::from(n),
            Self::Enum(_) | Self::Float => 4,
            Self::Struct { bytes, .. } => bytes,
        }
    }
}

/// The names of an enum's values. Some values have no name.
#[derive(Debug, PartialEq)]
pub struct EnumTable {
    pub name: &'static str,
    values: Vec<(i64, &'static str)>,
}

impl EnumTable {
    /// A type without known value names.
    pub(crate) const fn nameless(name: &'static str) -> Self {
        Self { name, values: Vec::new() }
    }

    pub fn name_of(&self, value: i64) -> Option<&'static str> {
        if ["cudaMemcpyKind", "hipMemcpyKind"].contains(&self.name) {
            // the short form is common, and the CUDA driver's function names contain it
            return usize::try_from(value).ok().and_then(|v| COPY_KINDS.get(v)).copied();
        }
        let at = self.values.binary_search_by_key(&value, |v| v.0).ok()?;
        Some(self.values[at].1)
    }

    /// The value with this name.
    pub fn number_of(&self, name: &str) -> Option<i64> {
        self.values.iter().find(|value| value.1 == name).map(|value| value.0)
    }

    /// All values, in ascending order.
    pub fn values(&self) -> &[(i64, &'static str)] {
        &self.values
    }
}

/// A `dim3` whose fields are not looked up.
pub(crate) static DIM3: StructLayout = StructLayout { name: "dim3", bytes: 12, fields: Vec::new() };

/// The directions of copies, which HIP numbers as CUDA does.
pub(crate) static COPY_KIND: EnumTable = EnumTable::nameless("cudaMemcpyKind");

/// `cudaMemcpyKind` 0 to 4.
pub(crate) const COPY_KINDS: [&str; 5] = ["H2H", "H2D", "D2H", "D2D", "Default"];

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Bytes from the start.
    pub offset: u16,
    pub bytes: u16,
    pub ty: &'static str,
    pub name: &'static str,
}

/// The layout of a struct.
#[derive(Debug, PartialEq)]
pub struct StructLayout {
    pub name: &'static str,
    pub bytes: u16,
    pub fields: Vec<Field>,
}

/// Every type that the function tables use.
#[derive(Debug)]
pub(crate) struct Types {
    scalars: HashMap<&'static str, (&'static str, u16)>,
    enums: HashMap<&'static str, &'static EnumTable>,
    layouts: HashMap<&'static str, &'static StructLayout>,
}

impl Types {
    /// Parses the tables of all vendors. The result is leaked and lives as long as the program.
    pub(crate) fn parse() -> Self {
        let scalars = VENDORS
            .iter()
            .flat_map(|vendor| lines(vendor.types))
            .filter_map(|l| {
                let mut columns = l.split(" | ");
                Some((columns.next()?, (columns.next()?, columns.next()?.parse().ok()?)))
            })
            .collect();
        let enums = VENDORS.iter().flat_map(|vendor| parse_enums(vendor.enums)).collect();
        let layouts = VENDORS.iter().flat_map(|vendor| parse_structs(vendor.structs)).collect();
        Self { scalars, enums, layouts }
    }

    pub(crate) fn enum_table(&self, name: &str) -> Option<&'static EnumTable> {
        self.enums.get(name).copied()
    }

    pub(crate) fn layout(&self, name: &str) -> Option<&'static StructLayout> {
        self.layouts.get(name).copied()
    }

    /// Whether a type is an opaque handle.
    pub(crate) fn is_handle(&self, name: &str) -> bool {
        self.scalars.get(name).is_some_and(|(kind, _)| *kind == "handle")
    }

    /// How an argument of this type and name is read; `None` for an unknown type.
    pub(crate) fn kind(&self, ty: &str, name: &str) -> Option<ArgKind> {
        if ty.ends_with('*') {
            return Some(ArgKind::Pointer);
        }
        let ty = ty.trim_start_matches("const ");
        let &(kind, bytes) = self.scalars.get(ty)?;
        let width = u8::try_from(bytes).unwrap_or(u8::MAX);
        Some(match kind {
            "size" => ArgKind::Size,
            "devptr" if bytes == 8 => ArgKind::DevicePointer,
            "devptr" => ArgKind::Flags(width),
            "handle" => ArgKind::Handle,
            "int" => ArgKind::Int(width),
            "uint" if name.to_ascii_lowercase().contains("flags") => ArgKind::Flags(width),
            "uint" => ArgKind::Uint(width),
            "enum" => self.enum_table(ty).map_or(ArgKind::Int(4), ArgKind::Enum),
            "struct" => ArgKind::Struct { bytes, layout: self.layout(ty) },
            "float" => ArgKind::Float,
            _ => return None,
        })
    }
}

fn parse_enums(table: &'static str) -> HashMap<&'static str, &'static EnumTable> {
    let parse = |(name, body): (&'static str, Vec<&'static str>)| {
        let mut values: Vec<_> = body
            .iter()
            .filter_map(|l| {
                let (value, name) = l.split_once(' ')?;
                Some((value.parse().ok()?, name))
            })
            .collect();
        values.sort_unstable();
        let table: &'static EnumTable = Box::leak(Box::new(EnumTable { name, values }));
        (name, table)
    };
    sections(table).into_iter().map(parse).collect()
}

fn parse_structs(table: &'static str) -> HashMap<&'static str, &'static StructLayout> {
    let parse = |(header, body): (&'static str, Vec<&'static str>)| {
        let (name, bytes) = header.split_once(' ')?;
        let fields = body.iter().filter_map(|l| parse_field(l)).collect();
        let layout: &'static StructLayout =
            Box::leak(Box::new(StructLayout { name, bytes: bytes.parse().ok()?, fields }));
        Some((name, layout))
    };
    sections(table).into_iter().filter_map(parse).collect()
}

/// `offset bytes type name`; the type may have spaces in it.
fn parse_field(line: &'static str) -> Option<Field> {
    let (offset, rest) = line.split_once(' ')?;
    let (bytes, rest) = rest.split_once(' ')?;
    let (ty, name) = rest.rsplit_once(' ')?;
    Some(Field { offset: offset.parse().ok()?, bytes: bytes.parse().ok()?, ty, name })
}
