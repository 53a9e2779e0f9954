//! Generated sources: one assembler file per library, version scripts, and error names.

use std::fmt::Write;

use gpuprobe_event::catalogue::{EnumTable, catalogue};

use crate::exports::{ExportList, Library};
use crate::inner::{cuda_function, without_thread_suffix};

/// The assembler file of a library: one macro of `stubs.h` per export.
pub(crate) fn stubs(exports: &ExportList) -> String {
    let mut text = String::from("#include \"stubs.h\"\n");
    for name in &exports.names {
        match Stub::of(exports, name) {
            Stub::Own => text.extend(["GENERIC ", name, "\nSTUB ", name, ", impl_", name, "\n"]),
            Stub::SharedWith(other) => text.extend(["STUB ", name, ", impl_", other, "\n"]),
            Stub::JumpTo(other) => text.extend(["TAIL ", name, ", ", other, "\n"]),
            Stub::AliasOf(other) => text.extend(["ALIAS ", name, ", ", other, "\n"]),
        }
    }
    text
}

/// How an export is implemented.
enum Stub<'a> {
    /// Its own implementation, in C or the generic one.
    Own,
    /// The implementation of another export.
    SharedWith(&'a str),
    /// A jump to another export, as in the real library.
    JumpTo(&'a str),
    /// A second name for the same address.
    AliasOf(&'a str),
}

impl<'a> Stub<'a> {
    fn of(exports: &ExportList, name: &'a str) -> Self {
        if let Some(target) = name.strip_prefix("__").filter(|t| t.starts_with("cudaLaunchKernel")) {
            return Self::JumpTo(target);
        }
        if exports.library == Library::Nccl {
            return match name.strip_prefix('p') {
                Some(target) => Self::AliasOf(target),
                None => Self::Own,
            };
        }
        let base = without_thread_suffix(name);
        let shared = if base != name && exports.contains(base) { Some(base) } else { None };
        match cuda_function(shared.unwrap_or(name)).or(shared) {
            Some(other) => Self::SharedWith(other),
            None => Self::Own,
        }
    }
}

/// A version script with exactly these exports, under the library's version if it has one.
pub(crate) fn version_script(exports: &ExportList) -> String {
    let tag = if exports.library.versioned() { exports.library.soname() } else { "" };
    let mut text = format!("{tag} {{\nglobal:\n");
    for name in &exports.names {
        text.extend(["\t", name, ";\n"]);
    }
    text.push_str("local:\n\t*;\n};\n");
    text
}

/// `ERROR_NAME(value, name)` lines for an enum of the catalogue.
pub(crate) fn error_names(c_type: &str) -> String {
    let mut text = String::new();
    for (value, name) in catalogue().enum_table(c_type).into_iter().flat_map(EnumTable::values) {
        writeln!(text, "ERROR_NAME({value}, {name})").expect("writing to a string cannot fail");
    }
    text
}
