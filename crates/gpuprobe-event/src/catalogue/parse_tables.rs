//! Parses the tables of functions. An invalid row is skipped, see [`crate::table`].

use std::collections::HashMap;
use std::sync::RwLock;

use super::roles::{Class, Roles};
use super::types::{ArgKind, Types};
use super::vendor::VENDORS;
use super::{Api, Arg, ArgLoc, Catalogue, Function, MAX_POINTEE, Pointee, ResultKind, abi};
use crate::ids::FunctionId;
use crate::table::lines;

/// Class and role words by base name.
type RoleTable = HashMap<&'static str, (Class, &'static str)>;

pub(crate) fn load() -> Catalogue {
    let types = Types::parse();
    let roles = parse_roles();
    let mut functions = Vec::new();
    for api in Api::ALL {
        for line in lines(api.row().functions) {
            let id = FunctionId(u32::try_from(functions.len()).unwrap_or(u32::MAX));
            functions.extend(parse_function(id, api, line, &types, &roles));
        }
    }
    let mut catalogue =
        Catalogue { functions: Vec::new(), by_name: HashMap::new(), types, late: RwLock::default() };
    catalogue.add(functions);
    catalogue
}

fn parse_roles() -> RoleTable {
    let mut class = Class::Other;
    let mut roles = RoleTable::new();
    for line in VENDORS.iter().flat_map(|vendor| lines(vendor.roles)) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            class = Class::from_name(name).unwrap_or(Class::Other);
        } else {
            let (name, words) = line.split_once(' ').unwrap_or((line, ""));
            roles.insert(name, (class, words));
        }
    }
    roles
}

pub(crate) fn parse_function(
    id: FunctionId,
    api: Api,
    line: &'static str,
    types: &Types,
    roles: &RoleTable,
) -> Option<Function> {
    let mut columns = line.split(" | ");
    let (name, versions) = (columns.next()?, columns.next()?);
    let (result_type, args) = (columns.next()?, columns.next()?);
    let mut args = if args == "?" { None } else { Some(parse_args(args, result_type, types)?) };
    let base = base_name(name);
    let (class, words) = roles.get(base).copied().unwrap_or((api.row().class, ""));
    let roles = Roles::resolve(words, args.as_deref().unwrap_or_default());
    let made = args.as_mut().zip(roles.made).and_then(|(args, made)| args.get_mut(usize::from(made)));
    if let Some(made) = made {
        made.out = Some(ArgKind::Handle);
    }
    Some(Function {
        id,
        api,
        name,
        base,
        versions,
        result: result_kind(result_type, types),
        result_type,
        class,
        pointee: args.as_deref().and_then(|args| pointee(&roles, args, types)),
        roles,
        hot: words.split(' ').any(|w| w == "hot"),
        args,
    })
}

/// The argument whose pointee is copied: a struct that fits, or else a text, preferably the name.
fn pointee(roles: &Roles, args: &[Arg], types: &Types) -> Option<(u8, Pointee)> {
    let arg = |position: u8| args.get(usize::from(position));
    let described = roles.config.or(roles.params).or(roles.desc).and_then(|position| {
        let ty = arg(position)?.ty.trim_start_matches("const ").trim_end_matches('*');
        let layout = types.layout(ty).filter(|layout| usize::from(layout.bytes) <= MAX_POINTEE)?;
        Some((position, Pointee::Struct(layout)))
    });
    // on x86-64 an id is on the stack, on aarch64 behind a pointer
    let id = roles.id.filter(|id| {
        arg(*id).is_some_and(|arg| arg.is_pointer() || matches!(arg.loc(), ArgLoc::Indirect { .. }))
    });
    if let Some(id) = id {
        return Some((id, Pointee::UniqueId));
    }
    if let Some(global) = roles.global {
        return Some((global, Pointee::Sizes));
    }
    let is_text = |position: &u8| arg(*position).is_some_and(|arg| arg.ty == "const char*");
    let count = u8::try_from(args.len()).ok()?;
    described.or_else(|| {
        // a host function is declared as text, but is none
        let mut others = (0..count).filter(|position| Some(*position) != roles.named);
        let text = roles.name.filter(is_text).or_else(|| others.find(is_text))?;
        Some((text, Pointee::Text))
    })
}

fn result_kind(ty: &'static str, types: &Types) -> ResultKind {
    match ty {
        "?" => ResultKind::Unknown,
        "void" => ResultKind::Void,
        "errno" => ResultKind::Errno,
        "char" | "unsigned int" | "int" => ResultKind::Int,
        ty if ty.ends_with('*') => ResultKind::Pointer,
        ty if types.is_handle(ty) => ResultKind::Pointer,
        ty => types.enum_table(ty).map_or(ResultKind::Void, ResultKind::Status),
    }
}

fn parse_args(list: &'static str, result_type: &str, types: &Types) -> Option<Vec<Arg>> {
    if list == "void" {
        return Some(Vec::new());
    }
    let mut named = Vec::new();
    for arg in list.split(", ") {
        let (ty, name) = arg.rsplit_once(' ')?;
        named.push((ty, name, types.kind(ty, name)?));
    }
    let kinds: Vec<_> = named.iter().map(|n| n.2).collect();
    let x86_64 = abi::locations_x86_64(&kinds, result_type == "cudaChannelFormatDesc");
    let aarch64 = abi::locations_aarch64(&kinds);
    let locations = x86_64.into_iter().zip(aarch64);
    Some(
        named
            .into_iter()
            .zip(locations)
            .map(|((ty, name, kind), (x86_64, aarch64))| Arg { name, ty, kind, out: None, x86_64, aarch64 })
            .collect(),
    )
}

/// Suffixes of variants: per-thread default streams in CUDA and HIP, and structs of other releases in HIP.
const SUFFIXES: [&str; 5] = ["_ptsz", "_ptds", "_spt", "R0600", "R0000"];

/// The name without the suffixes of its variants.
pub(crate) fn base_name(name: &str) -> &str {
    let name = c_plus_plus_name(name).unwrap_or(name);
    let name = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    match name.rfind("_v") {
        Some(at) if name.len() > at + 2 && name[at + 2..].bytes().all(|b| b.is_ascii_digit()) => &name[..at],
        _ => name,
    }
}

/// The name in a mangled name of a C++ function outside of namespaces, such as `_Z24hipExtModuleLaunchKernelP...`.
fn c_plus_plus_name(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("_Z")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = rest[..digits].parse().ok()?;
    rest.get(digits..digits + length)
}
