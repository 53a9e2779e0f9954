//! One collective, as its arguments describe it.

use gpuprobe_event::{Api, Call, Class, Value, catalogue};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The enum of an argument, by its type in the header.
const DATATYPE: &str = "ncclDataType_t";
const REDUCTION: &str = "ncclRedOp_t";

/// One collective. What could not be read, or is no argument of the function, is `None`. All ranks of a communicator
/// must make equal collectives in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    pub function: &'static str,
    /// The number of elements.
    pub count: Option<u64>,
    datatype: Option<i32>,
    reduction: Option<i32>,
    pub root: Option<i32>,
}

impl Collective {
    /// The collective that a call makes; `None` if it makes none.
    pub(super) fn of(call: &Call) -> Option<Self> {
        if call.class != Class::Collective {
            return None;
        }
        Some(Self {
            function: function(call)?,
            count: ["count", "sendcount", "recvcount"].iter().find_map(|name| unsigned(call, name)),
            datatype: enum_number(call, "datatype", DATATYPE),
            reduction: enum_number(call, "op", REDUCTION),
            root: number(call, "root"),
        })
    }

    /// The name of the type of the elements, such as `float32`.
    pub fn datatype(&self) -> Option<String> {
        self.datatype.map(|number| word(DATATYPE, number))
    }

    /// The name of the reduction, such as `sum`.
    pub fn reduction(&self) -> Option<String> {
        self.reduction.map(|number| word(REDUCTION, number))
    }

    /// Adds it to the hash of a sequence, which is the same on every host.
    pub(super) fn add_to(&self, hash: u64) -> u64 {
        const PRIME: u64 = 0x0100_0000_01b3;
        let numbers = [self.datatype, self.reduction, self.root].map(|n| n.map_or(i64::MIN, i64::from));
        let numbers = numbers.into_iter().flat_map(i64::to_le_bytes);
        let count = self.count.unwrap_or(u64::MAX).to_le_bytes();
        let bytes = self.function.bytes().chain(count).chain(numbers);
        bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
    }
}

impl Serialize for Collective {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("function", self.function)?;
        if let Some(count) = self.count {
            map.serialize_entry("count", &count)?;
        }
        for (name, value) in [("datatype", self.datatype()), ("reduction", self.reduction())] {
            if let Some(value) = value {
                map.serialize_entry(name, &value)?;
            }
        }
        if let Some(root) = self.root {
            map.serialize_entry("root", &root)?;
        }
        map.end()
    }
}

/// The function of a call of NCCL. The profiling names (`pncclAllReduce`) and the variants with a configuration do the
/// same as the plain function.
pub(crate) fn function(call: &Call) -> Option<&'static str> {
    if call.api != Api::Nccl {
        return None;
    }
    let name = catalogue().lookup(Api::Nccl, None, &call.name)?.name;
    let name = name.strip_prefix('p').unwrap_or(name);
    Some(name.strip_suffix("Config").unwrap_or(name))
}

pub(crate) fn value<'a>(call: &'a Call, name: &str) -> Option<&'a Value> {
    call.args.iter().flatten().find(|(argument, _)| argument == name).map(|(_, value)| value)
}

/// An argument that is a handle, or the hash of a unique id.
pub(crate) fn handle(call: &Call, name: &str) -> Option<u64> {
    match value(call, name)? {
        Value::Hex(handle) => Some(*handle),
        _ => None,
    }
}

pub(super) fn number(call: &Call, name: &str) -> Option<i32> {
    match value(call, name)? {
        Value::Int(number) => i32::try_from(*number).ok(),
        Value::Uint(number) => i32::try_from(*number).ok(),
        _ => None,
    }
}

fn unsigned(call: &Call, name: &str) -> Option<u64> {
    match value(call, name)? {
        Value::Uint(number) => Some(*number),
        _ => None,
    }
}

fn enum_number(call: &Call, name: &str, table: &str) -> Option<i32> {
    let Value::Name(word) = value(call, name)? else { return number(call, name) };
    let values = catalogue().enum_table(table)?.values();
    values.iter().find(|(_, name)| name == word).and_then(|(number, _)| i32::try_from(*number).ok())
}

/// The word for a number of an enum: `float32` for `ncclFloat32`.
fn word(table: &str, number: i32) -> String {
    let name = catalogue().enum_table(table).and_then(|table| table.name_of(i64::from(number)));
    match name {
        Some(name) => name.trim_start_matches("nccl").to_ascii_lowercase(),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_of_the_catalogue_has_the_arguments_that_are_read() {
        let collectives = |class| catalogue().functions().iter().filter(move |f| f.class == class);
        assert!(collectives(Class::Collective).count() > 10);
        for f in collectives(Class::Collective).chain(collectives(Class::P2p)) {
            let has = |name: &str| f.args.iter().flatten().any(|arg| arg.name == name);
            assert!(has("comm"), "{}", f.name);
            let has_count = ["count", "sendcount", "recvcount"].into_iter().filter(|name| has(name)).count();
            assert!(f.class == Class::P2p || (has_count == 1 && has("datatype")), "{}", f.name);
            let typed =
                |name: &str, ty: &str| f.args.iter().flatten().all(|arg| arg.name != name || arg.ty == ty);
            assert!(typed("op", REDUCTION) && typed("datatype", DATATYPE) && typed("root", "int"));
        }
    }
}
