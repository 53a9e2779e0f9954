//! The members of the wire's enums, as constants.

use std::fmt::Write;

use libbpf_rs::btf::types::{Enum, EnumMember};
use libbpf_rs::btf::{Btf, HasSize};

/// An enum as the object's type information has it.
struct Numbers {
    name: String,
    bytes: usize,
    members: Vec<(String, i64)>,
}

impl Numbers {
    fn read(found: &Enum<'_>) -> Option<Self> {
        let name = found.name()?.to_str()?;
        let member = |m: EnumMember<'_>| Some((m.name?.to_str()?.to_owned(), m.value));
        let members = found.iter().filter_map(member).collect();
        name.starts_with("gp_").then(|| Self { name: name.to_owned(), bytes: found.size(), members })
    }

    /// Whether these are lengths of arrays.
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

    /// What the numbers are about: the first word of the enum's name.
    fn subject(&self) -> String {
        self.name.split('_').nth(1).unwrap_or_default().to_ascii_uppercase()
    }

    /// `GP_ALLOC` of `enum gp_action` is `ACTION_ALLOC`; where the name has the subject already, or is a length, it stays.
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

    /// Whether it says how many members there are, as `GP_SPACES` does of `enum gp_space`.
    fn is_counter(&self, name: &str) -> bool {
        name.strip_suffix('S').is_some_and(|one| one == self.subject())
    }
}

/// A module with a constant for each member of each `enum gp_*`, and for tests the members by enum.
pub(crate) fn constants(types: &Btf<'_>) -> String {
    let enums: Vec<_> = types.type_by_kind().filter_map(|found: Enum<'_>| Numbers::read(&found)).collect();
    let mut out = String::from("pub(crate) mod number {\n");
    for numbers in &enums {
        let rust_type = numbers.rust_type();
        writeln!(out, "    // enum {}", numbers.name).expect(IN_MEMORY);
        for (name, value) in &numbers.members {
            let constant = numbers.constant(name);
            writeln!(out, "    pub(crate) const {constant}: {rust_type} = {value};").expect(IN_MEMORY);
        }
    }
    out.push_str("}\n\n/// The members of each enum, under their names in the headers.\n#[cfg(test)]\n");
    out.push_str("pub(crate) static ENUMS: &[(&str, &[(&str, u64)])] = &[\n");
    for numbers in &enums {
        writeln!(out, "    ({:?}, &{:?}),", numbers.name, numbers.members).expect(IN_MEMORY);
    }
    out.push_str("];\n");
    out
}

const IN_MEMORY: &str = "a string can always be written to";
