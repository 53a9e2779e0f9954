//! The catalogue: one row per function signature of the libraries in the table of APIs ([`Api::row`]), and of the
//! functions by which frameworks report tensors.
//!
//! The tables in `catalogue/` are compiled in as text and parsed once. Prototypes, types, enums and struct layouts
//! are generated from the public headers; the tables of roles, meanings and frameworks are maintained by hand. The location of an argument at entry
//! follows from its type by the calling convention ([`abi`]), so no table repeats it.

pub mod abi;
mod api;
mod meanings;
mod parse_tables;
mod roles;
mod types;
mod vendor;

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};

pub use abi::ArgLoc;
pub use api::{Api, ApiRow, KernelHandles, Position};
pub use meanings::meaning;
pub use roles::{Class, Direction, Roles, Space};
pub use types::{ArgKind, EnumTable, Field, StructLayout};
pub(crate) use types::{COPY_KIND, DIM3};
pub use vendor::Vendor;

use crate::ids::FunctionId;

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResultKind {
    /// A status whose names are in this table; 0 is success.
    Status(&'static EnumTable),
    Pointer,
    /// A plain integer.
    Int,
    /// A plain integer without a sign, as wide as the register.
    Uint,
    /// An integer that is a negative errno if the call failed.
    Errno,
    /// Nothing readable in the result register (void, or a struct by hidden pointer).
    Void,
    /// Nothing: it has no duration (a tracepoint).
    Moment,
    /// No public prototype.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Arg {
    /// Its name in the header.
    pub name: &'static str,
    /// Its C type as written in the table.
    pub ty: &'static str,
    /// How to read and show it.
    pub kind: ArgKind,
    /// What the call writes through this pointer, if that is read and shown instead of the pointer.
    pub out: Option<ArgKind>,
    /// Its location at entry on x86-64.
    pub x86_64: ArgLoc,
    /// Its location at entry on aarch64.
    pub aarch64: ArgLoc,
}

impl Arg {
    /// Its location on the architecture that this program was built for.
    pub fn loc(&self) -> ArgLoc {
        if cfg!(target_arch = "aarch64") { self.aarch64 } else { self.x86_64 }
    }

    /// Whether it points to something, so that a value can be read through it.
    pub fn is_pointer(&self) -> bool {
        self.ty.ends_with('*')
    }
}

/// How many bytes of a struct a probe reads through a pointer.
pub const MAX_POINTEE: usize = 160;

/// What is copied through a pointer argument when a function is entered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pointee {
    /// A struct: the configuration of a launch, the description of a copy.
    Struct(&'static StructLayout),
    /// Text.
    Text,
    /// The unique id of a communicator.
    UniqueId,
    /// The sizes of a launch: three global ones and three local ones. Those that are not given are 0.
    Sizes,
}

/// Bytes of the sizes of a launch.
pub const SIZES: usize = 48;

/// Bytes of the unique id of a communicator.
pub const UNIQUE_ID: usize = 128;

/// One signature of one exported function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its index in the catalogue.
    pub id: FunctionId,
    /// The library family that exports it.
    pub api: Api,
    /// The exported name.
    pub name: &'static str,
    /// The name without `_v2`, `_ptsz` and `_ptds`: variants are the same call.
    pub base: &'static str,
    /// The versions that export this signature, as the table writes them (`11.8-13.4`).
    pub versions: &'static str,
    pub result: ResultKind,
    /// The type returned, as written in the table.
    pub result_type: &'static str,
    /// Its arguments; `None` if there is no public prototype.
    pub args: Option<Vec<Arg>>,
    pub class: Class,
    /// The roles of its arguments.
    pub roles: Roles,
    /// The argument whose pointee is copied at entry.
    pub pointee: Option<(u8, Pointee)>,
    /// Called so often, and with so little information, that it is probed only on request.
    pub hot: bool,
}

impl Function {
    /// Whether the address that it allocates, frees or uses is the handle of an object with a count of references, and
    /// not where the memory is.
    pub fn uses_objects(&self) -> bool {
        let roles = &self.roles;
        let is_made = roles.out_is_result && self.result_type == "cl_mem";
        let names_kernels = roles.only_if.is_some()
            || roles.name_in.is_some()
            || (roles.func_is_result && self.api != Api::Hook);
        is_made
            || names_kernels
            || roles.image.is_some()
            || self.class == Class::Reference
            || (self.class == Class::Free && roles.op == Some("release"))
    }

    /// Whether its result is what it made, so that NULL means that it failed.
    pub fn returns_what_it_makes(&self) -> bool {
        let roles = &self.roles;
        let has_error = roles.error_out.is_some() && self.result == ResultKind::Pointer;
        roles.out_is_result || roles.func_is_result || (has_error && self.api != Api::Hook)
    }

    /// The argument that points to a struct with a pointer to a name, and where in the struct that is.
    pub fn name_in(&self) -> Option<(&Arg, u16)> {
        let arg = self.arg(self.roles.name_in)?;
        let layout = catalogue().layout(arg.ty.trim_start_matches("const ").trim_end_matches('*'))?;
        let field = layout.fields.iter().find(|field| field.ty == "const char*")?;
        Some((arg, field.offset))
    }

    /// The argument of a role.
    pub fn arg(&self, index: Option<u8>) -> Option<&Arg> {
        self.args.as_ref()?.get(usize::from(index?))
    }

    /// Whether a library of this CUDA version (`12.9`) exports this signature.
    pub fn in_version(&self, version: &str) -> bool {
        self.api.row().vendor.version_in(self.versions, version)
    }

    /// Whether some release of this major version has this signature. Rows of the CUDA driver apply to every version.
    fn in_major(&self, major: u32) -> bool {
        let versions = self.api.row().vendor.versions;
        versions
            .iter()
            .filter(|v| v.split('.').next().and_then(|m| m.parse().ok()) == Some(major))
            .any(|v| self.in_version(v))
    }

    /// The signature as C writes it, without the result.
    pub fn signature(&self) -> String {
        let args = match &self.args {
            None => "?".to_owned(),
            Some(args) => args.iter().map(|a| format!("{} {}", a.ty, a.name)).collect::<Vec<_>>().join(", "),
        };
        format!("{}({args})", self.name)
    }
}

#[derive(Debug)]
pub struct Catalogue {
    functions: Vec<Function>,
    by_name: HashMap<(Api, &'static str), Vec<FunctionId>>,
    types: types::Types,
    /// Rows after all others: functions that were discovered in a library later.
    late: RwLock<Vec<&'static Function>>,
}

/// The most rows: as many as the BPF table has.
pub const MOST_FUNCTIONS: usize = 8192;

static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();

/// The catalogue, parsed at the first use.
pub fn catalogue() -> &'static Catalogue {
    CATALOGUE.get_or_init(parse_tables::load)
}

/// Adds functions that are in no table: those that the user has hooked, and those of the Linux kernel. They get
/// indexes from the given one on. Must be called once, before the first use of the catalogue; returns false if that
/// is too late.
pub fn extend(functions: impl FnOnce(FunctionId) -> Vec<Function>) -> bool {
    let mut catalogue = parse_tables::load();
    let first = FunctionId(u32::try_from(catalogue.functions.len()).unwrap_or(u32::MAX));
    catalogue.add(functions(first));
    CATALOGUE.set(catalogue).is_ok()
}

impl Catalogue {
    fn add(&mut self, functions: Vec<Function>) {
        for f in functions {
            self.by_name.entry((f.api, f.name)).or_default().push(f.id);
            self.functions.push(f);
        }
    }

    /// Adds a row for a function that was found in a library; `None` if there is no room.
    pub fn add_late(&self, function: impl FnOnce(FunctionId) -> Function) -> Option<&'static Function> {
        let mut late = self.late.write().unwrap_or_else(PoisonError::into_inner);
        let row = self.functions.len() + late.len();
        let id = FunctionId(u32::try_from(row).ok().filter(|_| row < MOST_FUNCTIONS)?);
        let function: &'static Function = Box::leak(Box::new(function(id)));
        late.push(function);
        Some(function)
    }

    fn late(&self) -> RwLockReadGuard<'_, Vec<&'static Function>> {
        self.late.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every row except those added later.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// A row by its id.
    pub fn get(&self, id: FunctionId) -> Option<&Function> {
        let row = id.0 as usize;
        match row.checked_sub(self.functions.len()) {
            Some(late) => self.late().get(late).copied(),
            None => self.functions.get(row),
        }
    }

    /// The signature of a name in one library. Some runtime functions have different signatures in different major
    /// versions, so the major version selects one. If it is unknown, or newer than all known headers, the newest
    /// signature is used.
    pub fn lookup(&self, api: Api, cuda_major: Option<u32>, name: &str) -> Option<&Function> {
        let Some(rows) = self.by_name.get(&(api, name)) else {
            return self.late().iter().find(|f| (f.api, f.name) == (api, name)).copied();
        };
        let of_major = cuda_major.and_then(|major| {
            rows.iter().rev().map(|id| &self.functions[id.0 as usize]).find(|f| f.in_major(major))
        });
        of_major.or_else(|| rows.last().map(|id| &self.functions[id.0 as usize]))
    }

    /// The functions that a library family exports in one CUDA version.
    pub fn exports<'a>(&'a self, api: Api, version: &'a str) -> impl Iterator<Item = &'a Function> {
        self.functions.iter().filter(move |f| f.api == api && f.in_version(version))
    }

    /// An enum's names by its C type name.
    pub fn enum_table(&self, name: &str) -> Option<&EnumTable> {
        self.types.enum_table(name)
    }

    /// A struct's layout by its C type name.
    pub fn layout(&self, name: &str) -> Option<&StructLayout> {
        self.types.layout(name)
    }
}

#[cfg(test)]
mod tests;
