//! Constants for the members of the wire's enums.

use std::fmt::Write;

use libbpf_rs::btf::types::{Enum, EnumMember};
use libbpf_rs::btf::{Btf, HasSize};

/// An enum of the object's type information.
struct WireEnum {
    name: String,
    bytes: usize,
    members: Vec<(String, i64)>,
}

impl WireEnum {
    fn read(found: &Enum<'_>) -> Option<Self> {
        let name = found.name()?.to_str()?;
        let member = |m: EnumMember<'_>| Some((m.name?.to_str()?.to_owned(), m.value));
        let members = found.iter().filter_map(member).collect();
        name.starts_with("gp_").then(|| Self { name: name.to_owned(), bytes: found.size(), members })
    }

    /// Whether the members are lengths of arrays.
    fn are_lengths(&self) -> bool {
        self.name.ends_with("_length")
    }

    fn rust_type(&self) -> &'static str {
        match self.bytes {
            _ if self.are_lengths() => "usize",
            1 => "u8",
            2 => "u16",
            _ => "u32",
        }
    }

    /// The first word of the enum's name: `ACTION` for `gp_action`.
    fn subject(&self) -> String {
        self.name.split('_').nth(1).unwrap_or_default().to_ascii_uppercase()
    }

    /// `GP_ALLOC` of `enum gp_action` becomes `ACTION_ALLOC`. A name that contains the subject already, or that is a length,
    /// only loses its prefix.
    fn constant(&self, member: &str) -> String {
        let name = member.trim_start_matches("GP_");
        let subject = self.subject();
        let has_subject = name.split('_').any(|word| word == subject);
        if has_subject || self.are_lengths() || self.is_counter(name) {
            name.to_owned()
        } else {
            format!("{subject}_{name}")
        }
    }

    /// Whether the member is the number of members, like `GP_SPACES` of `enum gp_space`.
    fn is_counter(&self, name: &str) -> bool {
        name.strip_suffix('S').is_some_and(|one| one == self.subject())
    }
}

/// A module with a constant for each member of each `enum gp_*`, and for tests a list of the members by enum.
pub(crate) fn constants(types: &Btf<'_>) -> String {
    let enums: Vec<_> = types.type_by_kind().filter_map(|found: Enum<'_>| WireEnum::read(&found)).collect();
    let mut out = String::from("pub(crate) mod number {\n");
    for wire_enum in &enums {
        let rust_type = wire_enum.rust_type();
        writeln!(out, "    // enum {}", wire_enum.name).expect(IN_MEMORY);
        for (name, value) in &wire_enum.members {
            let constant = wire_enum.constant(name);
            writeln!(out, "    pub(crate) const {constant}: {rust_type} = {value};").expect(IN_MEMORY);
        }
    }
    out.push_str("}\n\n/// The members of each enum, under their names in the headers.\n#[cfg(test)]\n");
    out.push_str("pub(crate) static ENUMS: &[(&str, &[(&str, u64)])] = &[\n");
    for wire_enum in &enums {
        writeln!(out, "    ({:?}, &{:?}),", wire_enum.name, wire_enum.members).expect(IN_MEMORY);
    }
    out.push_str("];\n");
    out
}

const IN_MEMORY: &str = "a string can always be written to";
