//! The wire's structs, and which of them may be made of any bytes.

use std::fmt::Write;

use libbpf_rs::btf::types::{Array, Composite, Int, IntEncoding, MemberAttr, Struct};
use libbpf_rs::btf::{Btf, BtfType, HasSize};

/// Imports every `struct gp_*`, and calls `wire!` with those that are plain: made of integers, arrays and structs of these,
/// without gaps. Of the others it says what keeps them from it.
pub(crate) fn plain(types: &Btf<'_>) -> String {
    let mut names = Vec::new();
    let (mut plain, mut others) = (Vec::new(), String::new());
    for found in types.type_by_kind::<Struct<'_>>() {
        let Some(name) = found.name().and_then(|name| name.to_str()).filter(|name| name.starts_with("gp_"))
        else {
            continue;
        };
        names.push(name);
        match plain_size(types, *found) {
            Ok(_) => plain.push(name),
            Err(reason) => writeln!(others, "// {name} is not: {reason}").expect("into memory"),
        }
    }
    let (names, plain) = (names.join(",\n    "), plain.join(",\n    "));
    format!(
        "pub(crate) use super::generated::types::{{\n    {names},\n}};\n\nwire!(\n    {plain},\n);\n{others}"
    )
}

/// How many bytes a type takes, all of which belong to integers; why they do not.
fn plain_size(types: &Btf<'_>, found: BtfType<'_>) -> Result<usize, String> {
    let found = found.skip_mods_and_typedefs();
    if let Ok(integer) = Int::try_from(found) {
        let is_bool = matches!(integer.encoding, IntEncoding::Bool);
        return if is_bool {
            Err("a bool has bits that mean nothing".to_owned())
        } else {
            Ok(bytes(integer.bits))
        };
    }
    if let Ok(array) = Array::try_from(found) {
        return Ok(array.capacity() * plain_size(types, array.contained_type())?);
    }
    let Ok(composite) = Composite::try_from(found) else {
        return Err(format!("it has a {:?}, which is no integer", found.kind()));
    };
    size_of_members(types, composite)
}

fn bytes(bits: u8) -> usize {
    usize::from(bits).div_ceil(8)
}

/// The members of a struct must follow each other up to its end, those of a union must each fill it.
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
