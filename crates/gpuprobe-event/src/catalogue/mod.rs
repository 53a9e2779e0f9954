//! The catalogue: one row per function signature of libcuda, libcudart, NVML and NCCL.
//!
//! The tables under `catalogue/` are compiled in as text and parsed once. Prototypes, types, enums and struct
//! layouts are generated from the public headers; `roles.tbl` is kept by hand. Where an argument lies at entry
//! follows from its type by the calling convention ([`abi`]), so no table repeats it.

pub mod abi;
mod meanings;
mod parse_tables;
mod roles;
mod types;

use std::collections::HashMap;
use std::fmt;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};

use serde::{Deserialize, Serialize};

pub use abi::Place;
pub use meanings::meaning;
pub use roles::{Class, Direction, Roles, Space};
pub use types::{ArgKind, EnumTable, Field, StructLayout};
pub(crate) use types::{COPY_KIND, DIM3};

use crate::ids::FunctionId;

/// The library families whose functions are known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// libcuda.so.1
    Driver,
    /// libcudart, shared or static
    Runtime,
    /// libnvidia-ml.so.1
    Nvml,
    /// libnccl.so.2
    Nccl,
    /// The kernel: what processes ask of the driver's devices, and the driver's own functions.
    Kernel,
    /// Any library: functions that the user has named.
    Hook,
}

impl Api {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 6] =
        [Self::Driver, Self::Runtime, Self::Nvml, Self::Nccl, Self::Kernel, Self::Hook];

    /// The word used in traces and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Runtime => "runtime",
            Self::Nvml => "nvml",
            Self::Nccl => "nccl",
            Self::Kernel => "kernel",
            Self::Hook => "hook",
        }
    }

    /// The inverse of [`Api::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.as_str() == name)
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResultKind {
    /// A status whose names are in this table; 0 is success.
    Status(&'static EnumTable),
    /// A pointer.
    Pointer,
    /// A plain integer.
    Int,
    /// A plain integer without a sign, as wide as the register.
    Uint,
    /// A number that is negative when it is an error's.
    Errno,
    /// Nothing that is readable in the result register (void, or a struct by hidden pointer).
    Void,
    /// Nothing ever: it happens, and is over at once.
    Moment,
    /// No public prototype.
    Unknown,
}

/// One argument of a function.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Its name in the header.
    pub name: &'static str,
    /// Its C type as written in the table.
    pub ty: &'static str,
    /// How to read and show it.
    pub kind: ArgKind,
    /// What the call leaves where it points, where that is read and shown in its place.
    pub out: Option<ArgKind>,
    /// Where it lies at entry on x86-64.
    pub x86_64: Place,
    /// Where it lies at entry on aarch64.
    pub aarch64: Place,
}

impl Arg {
    /// Where it lies on the architecture this program was built for.
    pub fn place(&self) -> Place {
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
}

/// One signature of one exported function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its row.
    pub id: FunctionId,
    /// The library family that exports it.
    pub api: Api,
    /// The exported name.
    pub name: &'static str,
    /// The name without `_v2`, `_ptsz` and `_ptds`: variants are the same call.
    pub base: &'static str,
    /// The versions that export this signature, as the table writes them (`11.8-13.4`).
    pub versions: &'static str,
    /// What it returns.
    pub result: ResultKind,
    /// The type returned, as written in the table.
    pub result_type: &'static str,
    /// Its arguments; `None` where no public prototype exists.
    pub args: Option<Vec<Arg>>,
    /// What it is for.
    pub class: Class,
    /// Which argument plays which part.
    pub roles: Roles,
    /// The argument whose pointee is copied at entry.
    pub pointee: Option<(u8, Pointee)>,
    /// Called so often, and saying so little, that it is hooked only when asked for.
    pub hot: bool,
}

impl Function {
    /// The argument of a role.
    pub fn arg(&self, index: Option<u8>) -> Option<&Arg> {
        self.args.as_ref()?.get(usize::from(index?))
    }

    /// Whether a library of this CUDA version (`12.9`) exports this signature.
    pub fn in_version(&self, version: &str) -> bool {
        parse_tables::version_in(self.versions, version)
    }

    /// Whether some release of this major version has this signature; driver rows hold for every driver.
    fn in_major(&self, major: u32) -> bool {
        parse_tables::VERSIONS
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

/// The whole catalogue.
#[derive(Debug)]
pub struct Catalogue {
    functions: Vec<Function>,
    by_name: HashMap<(Api, &'static str), Vec<FunctionId>>,
    types: types::Types,
    /// Rows behind all others, of functions whose names were only found in a library.
    late: RwLock<Vec<&'static Function>>,
}

/// The most rows that there can be: as many as the kernel's table has.
pub const MOST_FUNCTIONS: usize = 8192;

static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();

/// The catalogue, parsed at the first use.
pub fn catalogue() -> &'static Catalogue {
    CATALOGUE.get_or_init(parse_tables::load)
}

/// Adds functions that no table has: those that the user has named, and the kernel's own. They get the rows from the
/// given number on. To be called once, before anybody uses the catalogue; false where that has happened already.
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

    /// Adds a row for a function that a library turned out to have; nothing where there is no room for more.
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

    /// Every row that was there from the beginning.
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

    /// The signature of a name in one library. Runtime names change meaning between majors, so the major decides
    /// there; where it is not known, or newer than any header known here, the newest signature is taken.
    pub fn lookup(&self, api: Api, cuda_major: Option<u32>, name: &str) -> Option<&Function> {
        let Some(rows) = self.by_name.get(&(api, name)) else {
            return self.late().iter().find(|f| (f.api, f.name) == (api, name)).copied();
        };
        let of_major = cuda_major.and_then(|major| {
            rows.iter().rev().map(|id| &self.functions[id.0 as usize]).find(|f| f.in_major(major))
        });
        of_major.or_else(|| rows.last().map(|id| &self.functions[id.0 as usize]))
    }

    /// The names a family's libraries are made of, for one CUDA version.
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
