//! Reads ELF files and the dynamic loader's cache, and demangles symbol names.

mod demangle;
mod elf_file;
mod loader_cache;

pub use demangle::demangled;
pub(crate) use elf_file::{Elf, ElfSymbol, Machine, Table};
pub(crate) use loader_cache::parse as parse_loader_cache;
#[cfg(test)]
pub(crate) use loader_cache::tests::cache as test_cache;
