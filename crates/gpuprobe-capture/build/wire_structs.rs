//! The wire's structs and unions, and which of them may be read from any bytes.

use std::fmt::Write;

use libbpf_rs::btf::types::{Array, Composite, Int, IntEncoding, MemberAttr, Struct, Union};
use libbpf_rs::btf::{Btf, BtfType, HasSize};

/// Imports every `struct gp_*` and `union gp_*`, and calls `wire!` with those that are plain: made of integers, arrays and
/// structs of these, without gaps. For the others a comment in the output has the reason why they are not.
pub(crate) fn plain(types: &Btf<'_>) -> String {
    let structs = types.type_by_kind::<Struct<'_>>().map(|found| *found);
    let unions = types.type_by_kind::<Union<'_>>().map(|found| *found);
    let (mut names, mut plain, mut others, mut members) =
        (Vec::new(), Vec::new(), String::new(), String::new());
    for found in structs.chain(unions) {
        let Some(name) = wire_name(found) else { continue };
        names.push(name);
        match plain_size(types, found) {
            Ok(_) => {
                plain.push(name);
                members.push_str(&union_members(types, name, found));
            }
            Err(reason) => writeln!(others, "// {name} is not: {reason}").expect(IN_MEMORY),
        }
    }
    let (names, plain) = (names.join(",\n    "), plain.join(",\n    "));
    format!(
        "pub(crate) use super::generated::types::{{\n    {names},\n}};\n\nwire!(\n    {plain},\n);\n{others}\n{members}"
    )
}

const IN_MEMORY: &str = "a string can always be written to";

fn wire_name(found: BtfType<'_>) -> Option<&str> {
    found.name().and_then(|name| name.to_str()).filter(|name| name.starts_with("gp_"))
}

/// Methods that read the members of a plain union; nothing for a struct.
fn union_members(types: &Btf<'_>, name: &str, found: BtfType<'_>) -> String {
    let Ok(composite) = Composite::try_from(found) else { return String::new() };
    if composite.is_struct {
        return String::new();
    }
    let mut out = format!("impl {name} {{\n");
    for member in composite.iter() {
        let field = member.name.unwrap_or_default().to_string_lossy();
        let Some(rust_type) = types.type_by_id(member.ty).and_then(rust_type) else { continue };
        writeln!(out, "    pub(crate) fn {field}(&self) -> &{rust_type} {{").expect(IN_MEMORY);
        out.push_str("        // SAFETY: every member fills the union and has nothing but integers: any bits are a value of it.\n");
        writeln!(out, "        unsafe {{ &self.{field} }}\n    }}").expect(IN_MEMORY);
    }
    out.push_str("}\n");
    out
}

/// The name of a plain type in Rust.
fn rust_type(found: BtfType<'_>) -> Option<String> {
    let found = found.skip_mods_and_typedefs();
    if let Ok(integer) = Int::try_from(found) {
        return Some(format!("u{}", integer.bits));
    }
    if let Ok(array) = Array::try_from(found) {
        return Some(format!("[{}; {}]", rust_type(array.contained_type())?, array.capacity()));
    }
    wire_name(found).map(str::to_owned)
}

/// The size of a plain type in bytes, or the reason why it is not plain.
fn plain_size(types: &Btf<'_>, found: BtfType<'_>) -> Result<usize, String> {
    let found = found.skip_mods_and_typedefs();
    if let Ok(integer) = Int::try_from(found) {
        let is_bool = matches!(integer.encoding, IntEncoding::Bool);
        return if is_bool {
            Err("a bool does not allow every bit pattern".to_owned())
        } else {
            Ok(bytes(integer.bits))
        };
    }
    if let Ok(array) = Array::try_from(found) {
        return Ok(array.capacity() * plain_size(types, array.contained_type())?);
    }
    let Ok(composite) = Composite::try_from(found) else {
        return Err(format!("it has a {:?}, which is not an integer", found.kind()));
    };
    size_of_members(types, composite)
}

fn bytes(bits: u8) -> usize {
    usize::from(bits).div_ceil(8)
}

/// The members of a struct must be adjacent up to its end; those of a union must each fill it.
fn size_of_members(types: &Btf<'_>, composite: Composite<'_>) -> Result<usize, String> {
    let size = composite.size();
    let mut end = 0;
    for member in composite.iter() {
        let name = member.name.unwrap_or_default().display();
        let MemberAttr::Normal { offset } = member.attr else { return Err(format!("{name} is a bit field")) };
        let member_type = types.type_by_id(member.ty).ok_or("it has no type")?;
        let offset = usize::try_from(offset).map_err(|error| error.to_string())? / 8;
        if composite.is_struct && offset != end {
            return Err(format!("there is a gap before {name}"));
        }
        end = offset + plain_size(types, member_type)?;
        if !composite.is_struct && end != size {
            return Err(format!("{name} does not fill its union"));
        }
    }
    if end == size { Ok(size) } else { Err("there is a gap at its end".to_owned()) }
}
