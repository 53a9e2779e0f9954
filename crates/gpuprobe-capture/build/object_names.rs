//! Enums of the object's maps and programs, in the order in which libbpf has them.

use std::collections::BTreeMap;
use std::fmt::Write;

use libbpf_rs::OpenObject;

const IN_MEMORY: &str = "a string can always be written to";

pub(crate) fn maps(object: &OpenObject) -> String {
    let names: Vec<_> = object.maps().map(|map| map.name().to_string_lossy().into_owned()).collect();
    name_enum("MapName", "A map of the object.", &names, "")
}

pub(crate) fn programs(object: &OpenObject) -> String {
    let names: Vec<_> = object.progs().map(|program| program.name().to_string_lossy().into_owned()).collect();
    name_enum("ProgramName", "A program of the object.", &names, &program_groups(&names))
}

/// A constant for each group of programs whose names differ only in a number at the end, in the order of that number.
fn program_groups(names: &[String]) -> String {
    let mut groups: BTreeMap<&str, BTreeMap<usize, &String>> = BTreeMap::new();
    for name in names {
        if let Some((group, number)) = name.rsplit_once('_')
            && let Ok(number) = number.parse()
        {
            groups.entry(group).or_default().insert(number, name);
        }
    }
    let mut out = String::new();
    for (group, members) in groups {
        let variants: Vec<_> = members.values().map(|name| format!("Self::{}", variant(name))).collect();
        let (constant, count, variants) = (group.to_ascii_uppercase(), variants.len(), variants.join(", "));
        writeln!(out, "\n    pub(crate) const {constant}: [Self; {count}] = [{variants}];").expect(IN_MEMORY);
    }
    out
}

fn name_enum(name: &str, what: &str, members: &[String], more: &str) -> String {
    let variants: Vec<_> = members.iter().map(|member| variant(member)).collect();
    let mut out =
        format!("/// {what}\n#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub(crate) enum {name} {{\n");
    variants.iter().for_each(|variant| writeln!(out, "    {variant},").expect(IN_MEMORY));
    let count = members.len();
    write!(out, "}}\n\nimpl {name} {{\n    /// In the order in which libbpf has them.\n").expect(IN_MEMORY);
    writeln!(out, "    pub(crate) const ALL: [Self; {count}] = [").expect(IN_MEMORY);
    variants.iter().for_each(|variant| writeln!(out, "        Self::{variant},").expect(IN_MEMORY));
    writeln!(out, "    ];\n\n    const NAMES: [&'static str; {count}] = [").expect(IN_MEMORY);
    members.iter().for_each(|member| writeln!(out, "        {member:?},").expect(IN_MEMORY));
    writeln!(out, "    ];\n{more}").expect(IN_MEMORY);
    out.push_str("    pub(crate) const fn as_str(self) -> &'static str {\n        Self::NAMES[self as usize]\n    }\n}\n");
    out
}

/// `call_session` becomes `CallSession`, and `.rodata.config` `RodataConfig`. Sections of global variables are prefixed with
/// the name of the object, which is dropped.
fn variant(name: &str) -> String {
    let name = name.strip_prefix("gpuprobe.").unwrap_or(name);
    let words = name.split(['_', '.']).filter(|word| !word.is_empty());
    words.map(|word| format!("{}{}", word[..1].to_ascii_uppercase(), &word[1..])).collect()
}
