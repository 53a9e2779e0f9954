//! The records of the architectures differ only in the registers.

use std::collections::BTreeMap;

use libbpf_rs::HasSize as _;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{MemberAttr, Struct};

use crate::compile;

/// The sizes of the wire's structs, and the offsets of their members, in bytes.
type Layout = BTreeMap<String, (usize, Vec<(String, u32)>)>;

const STRUCTS: [&str; 10] = [
    "gp_call",
    "gp_config",
    "gp_count",
    "gp_count_key",
    "gp_function",
    "gp_live",
    "gp_live_key",
    "gp_memory",
    "gp_process_key",
    "gp_process_record",
];

fn layout(arch: &str) -> Layout {
    let btf = Btf::from_path(compile(arch).object).expect("the object has type information");
    STRUCTS
        .iter()
        .map(|name| {
            let found = btf.type_by_name::<Struct<'_>>(name).unwrap_or_else(|| panic!("no {name}"));
            let members = found.iter().map(|m| {
                let MemberAttr::Normal { offset } = m.attr else { panic!("{name} has a bit field") };
                (m.name.expect("members have names").to_string_lossy().into_owned(), offset / 8)
            });
            ((*name).to_owned(), (found.size(), members.collect()))
        })
        .collect()
}

#[test]
fn aarch64_differs_only_by_two_more_registers_and_by_structs_behind_pointers() {
    let mut x86 = layout("x86");
    let (size, members) = x86.get_mut("gp_call").unwrap();
    *size += 16;
    let registers = members.iter().position(|(name, _)| name == "registers").unwrap();
    for (_, offset) in &mut members[registers + 1..] {
        *offset += 16;
    }
    let (size, members) = x86.get_mut("gp_function").unwrap();
    members.push(("copied".to_owned(), u32::try_from(*size).unwrap()));
    *size += 4;
    assert_eq!(layout("arm64"), x86);
}
