//! The signature of a hooked function, and the roles of its arguments.

use crate::catalogue::{
    Arg, ArgKind, COPY_KIND, Class, DIM3, Direction, EnumTable, Pointee, ResultKind, Roles, Space, abi,
};
use crate::copy_kind::CopyDirection;
use crate::decode::MAX_OUTS;

use super::HookError;
use super::parse_file::Row;

/// The class, arguments and result of a function.
#[derive(Clone, Debug)]
pub struct Signature {
    pub class: Class,
    /// Its arguments; `None` if the hook names none.
    pub args: Option<Vec<Arg>>,
    pub result: ResultKind,
    pub(crate) result_type: &'static str,
    /// The roles of its arguments.
    pub roles: Roles,
    pub(crate) pointee: Option<(u8, Pointee)>,
}

/// A status without known names; 0 is success.
static STATUS: EnumTable = EnumTable::nameless("status");

const RESULTS: [(&str, &str, ResultKind); 5] = [
    ("status", "status", ResultKind::Status(&STATUS)),
    ("ptr", "void*", ResultKind::Pointer),
    ("i32", "int", ResultKind::Int),
    ("u64", "unsigned long", ResultKind::Uint),
    ("void", "void", ResultKind::Void),
];

/// The kinds of arguments: the word in a hook file, the C type, how it is passed, and what is read through it.
const KINDS: [(&str, &str, ArgKind, Option<ArgKind>); 17] = [
    ("ptr", "void*", ArgKind::Pointer, None),
    ("hex", "unsigned long", ArgKind::Flags(8), None),
    ("hex32", "unsigned int", ArgKind::Flags(4), None),
    ("handle", "handle", ArgKind::Handle, None),
    ("size", "size_t", ArgKind::Size, None),
    ("i32", "int", ArgKind::Int(4), None),
    ("u32", "unsigned int", ArgKind::Uint(4), None),
    ("i64", "long", ArgKind::Int(8), None),
    ("u64", "unsigned long", ArgKind::Uint(8), None),
    ("str", TEXT, ArgKind::Pointer, None),
    ("dim3", "dim3", ArgKind::Struct { bytes: 12, layout: Some(&DIM3) }, None),
    ("float", "float", ArgKind::Float, None),
    ("out_i32", "int*", ArgKind::Pointer, Some(ArgKind::Int(4))),
    ("out_u32", "unsigned int*", ArgKind::Pointer, Some(ArgKind::Uint(4))),
    ("out_u64", "unsigned long*", ArgKind::Pointer, Some(ArgKind::Uint(8))),
    ("out_ptr", "void**", ArgKind::Pointer, Some(ArgKind::Pointer)),
    ("out_size", "size_t*", ArgKind::Pointer, Some(ArgKind::Size)),
];

const TEXT: &str = "const char*";
/// The word for the return value.
const RETURN: &str = "return";

/// The keys of a hook in the Linux kernel.
pub(super) const KERNEL_KEYS: [&str; 6] = ["kernel", "tracepoint", "function", "class", "args", "returns"];
/// The classes of Linux kernel functions: effects on GPUs are recorded at the library calls.
const KERNEL_CLASSES: [Class; 3] = [Class::Driver, Class::Scheduler, Class::Other];
/// The number of arguments in registers.
const IN_REGISTERS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 6 };
/// The most arguments of a tracepoint.
const OF_TRACEPOINT: usize = 12;

/// The signature of a hook on a function of the Linux kernel, or on a tracepoint.
pub(super) fn in_kernel(row: &Row<'_>, is_tracepoint: bool) -> Result<Signature, HookError> {
    let class = class(row)?;
    if !KERNEL_CLASSES.contains(&class) {
        let known = KERNEL_CLASSES.map(Class::as_str).join(", ");
        return Err(
            row.wrong("class", format!("class {class} is only for library functions: one of {known}"))
        );
    }
    if is_tracepoint && row.text("returns")?.is_some() {
        return Err(row.wrong("returns", "a tracepoint returns nothing"));
    }
    let (most, all) = if is_tracepoint {
        (OF_TRACEPOINT, format!("a tracepoint has at most {OF_TRACEPOINT} arguments"))
    } else {
        (
            IN_REGISTERS,
            format!("only the first {IN_REGISTERS} arguments of a Linux kernel function can be read"),
        )
    };
    for (at, (text, span)) in row.texts("args")?.unwrap_or_default().into_iter().enumerate() {
        let kind = text.split_once(':').map_or("", |(_, kind)| kind);
        if at >= most {
            return Err(row.wrong_at(&span, all));
        }
        if kind.starts_with("out_") || ["dim3", "float"].contains(&kind) {
            return Err(row.wrong_at(&span, format!("`{kind}` is only for library functions")));
        }
    }
    let signature = of(row)?;
    // a status in the Linux kernel is an error if it is negative
    Ok(match signature.result {
        ResultKind::Status(_) => Signature { result: ResultKind::Errno, result_type: "int", ..signature },
        _ => signature,
    })
}

/// The signature of a hook on a library function.
pub(super) fn of(row: &Row<'_>) -> Result<Signature, HookError> {
    let class = class(row)?;
    let (result_type, result) = result(row)?;
    let mut args = arguments(row)?;
    let roles = RoleResolver { row, class, result, args: args.as_deref().unwrap_or_default() }.roles()?;
    if let Some(kind) = args.as_mut().zip(roles.kind).and_then(|(args, at)| args.get_mut(usize::from(at))) {
        kind.kind = ArgKind::Enum(&COPY_KIND);
    }
    let is_text = |arg: &Arg| arg.ty == TEXT;
    let first_text = args.iter().flatten().position(is_text).and_then(|at| u8::try_from(at).ok());
    let pointee = roles.name.or(first_text).map(|position| (position, Pointee::Text));
    Ok(Signature { class, args, result, result_type, roles, pointee })
}

fn class(row: &Row<'_>) -> Result<Class, HookError> {
    let Some(word) = row.text("class")? else { return Ok(Class::Other) };
    Class::from_name(word).ok_or_else(|| {
        let all: Vec<_> = Class::ALL.iter().map(|class| class.as_str()).collect();
        row.wrong("class", format!("unknown class `{word}`: one of {}", all.join(", ")))
    })
}

fn result(row: &Row<'_>) -> Result<(&'static str, ResultKind), HookError> {
    let Some(word) = row.text("returns")? else { return Ok(("?", ResultKind::Unknown)) };
    let known = RESULTS.iter().find(|(known, ..)| *known == word);
    known.map(|(_, ty, kind)| (*ty, *kind)).ok_or_else(|| {
        let all: Vec<_> = RESULTS.iter().map(|(known, ..)| *known).collect();
        row.wrong("returns", format!("unknown result `{word}`: one of {}", all.join(", ")))
    })
}

fn arguments(row: &Row<'_>) -> Result<Option<Vec<Arg>>, HookError> {
    let Some(texts) = row.texts("args")? else { return Ok(None) };
    let mut args: Vec<Arg> = Vec::new();
    for (text, span) in texts {
        let wrong = |message: String| row.wrong_at(&span, message);
        let Some((name, kind)) = text.split_once(':').filter(|(name, _)| !name.is_empty()) else {
            return Err(wrong(format!(
                "`{text}` is not an argument: write `name:kind`, such as `bytes:size`"
            )));
        };
        let Some((_, ty, kind, out)) = KINDS.iter().find(|(known, ..)| *known == kind).copied() else {
            let all: Vec<_> = KINDS.iter().map(|(known, ..)| *known).collect();
            return Err(wrong(format!("unknown kind `{kind}` of `{name}`: one of {}", all.join(", "))));
        };
        if name == RETURN || args.iter().any(|arg| arg.name == name) {
            return Err(wrong(format!("duplicate argument `{name}`: give each argument a unique name")));
        }
        // argument names are leaked and live as long as the program
        let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
        args.push(Arg { name, ty, kind, out, x86_64: abi::ArgLoc::Vector, aarch64: abi::ArgLoc::Vector });
    }
    if args.len() > usize::from(u8::MAX) {
        return Err(row.wrong("args", "too many arguments"));
    }
    if args.iter().filter(|arg| arg.out.is_some()).count() > MAX_OUTS {
        return Err(row.wrong("args", format!("at most {MAX_OUTS} arguments are read when a call returns")));
    }
    let kinds: Vec<_> = args.iter().map(|arg| arg.kind).collect();
    let locations = abi::locations_x86_64(&kinds, false).into_iter().zip(abi::locations_aarch64(&kinds));
    for (arg, (x86_64, aarch64)) in args.iter_mut().zip(locations) {
        (arg.x86_64, arg.aarch64) = (x86_64, aarch64);
    }
    Ok(Some(args))
}

/// What has a role: the return value, or an argument.
enum RoleHolder {
    Result,
    Argument(u8),
}

/// Determines the roles of the arguments.
struct RoleResolver<'a> {
    row: &'a Row<'a>,
    class: Class,
    result: ResultKind,
    args: &'a [Arg],
}

impl RoleResolver<'_> {
    fn roles(&self) -> Result<Roles, HookError> {
        let mut roles = Roles { elem: 1, asynchronous: self.row.flag("async")?, ..Roles::default() };
        roles.nothrow = self.row.flag("nothrow")?;
        roles.stream = self.argument("stream")?;
        roles.waits = self.of_class("waits", &[Class::Memcpy, Class::Memset])?;
        roles.asynchronous |= roles.waits.is_some();
        roles.shared = self.argument("shared")?;
        roles.func = self.of_class("launches", &[Class::Launch])?;
        roles.grid = self.dimensions("grid")?;
        roles.block = self.dimensions("block")?;
        roles.dst = self.of_class("dst", &[Class::Memcpy, Class::Memset])?;
        roles.src = self.of_class("src", &[Class::Memcpy])?;
        self.size(&mut roles)?;
        self.memory(&mut roles)?;
        self.direction(&mut roles)?;
        self.names(&mut roles)?;
        roles.error_out = self.argument("error")?;
        if let Some(arg) =
            self.arg(roles.error_out).filter(|arg| !["int*", "unsigned int*"].contains(&arg.ty))
        {
            let message = format!("`{}` is not a status: make it an out_i32", arg.name);
            return Err(self.row.wrong("error", message));
        }
        Ok(roles)
    }

    fn arg(&self, position: Option<u8>) -> Option<&Arg> {
        self.args.get(usize::from(position?))
    }

    fn first(&self, fits: impl Fn(&Arg) -> bool) -> Option<u8> {
        self.args.iter().position(fits).and_then(|at| u8::try_from(at).ok())
    }

    fn part(&self, key: &str) -> Result<Option<RoleHolder>, HookError> {
        let Some(word) = self.row.text(key)? else { return Ok(None) };
        if word == RETURN {
            return match self.result {
                ResultKind::Pointer | ResultKind::Uint => Ok(Some(RoleHolder::Result)),
                _ => Err(self.row.wrong(key, "the return value is not an address: use returns = \"ptr\"")),
            };
        }
        let position = self.first(|arg| arg.name == word);
        position.map(|at| Some(RoleHolder::Argument(at))).ok_or_else(|| {
            let all: Vec<_> = self.args.iter().map(|arg| arg.name).collect();
            self.row
                .wrong(key, format!("`{word}` is not an argument of this hook: it has {}", all.join(", ")))
        })
    }

    fn argument(&self, key: &str) -> Result<Option<u8>, HookError> {
        match self.part(key)? {
            Some(RoleHolder::Result) => Err(self.row.wrong(key, format!("`{key}` must be an argument"))),
            Some(RoleHolder::Argument(at)) => Ok(Some(at)),
            None => Ok(None),
        }
    }

    fn of_class(&self, key: &str, classes: &[Class]) -> Result<Option<u8>, HookError> {
        let argument = self.argument(key)?;
        if argument.is_some() && !classes.contains(&self.class) {
            let classes: Vec<_> = classes.iter().map(|class| class.as_str()).collect();
            return Err(self.row.wrong(key, format!("`{key}` is only for class {}", classes.join(" and "))));
        }
        Ok(argument)
    }

    /// One dim3, or three numbers.
    fn dimensions(&self, key: &str) -> Result<Option<u8>, HookError> {
        let Some(first) = self.of_class(key, &[Class::Launch])? else { return Ok(None) };
        let is_struct = |arg: &Arg| matches!(arg.kind, ArgKind::Struct { .. });
        let all = self.args.iter().skip(usize::from(first)).take(3);
        if self.arg(Some(first)).is_some_and(is_struct) || all.filter(|arg| !is_struct(arg)).count() == 3 {
            return Ok(Some(first));
        }
        Err(self.row.wrong(key, format!("`{key}` must be a dim3, or the first of three numbers")))
    }

    fn size(&self, roles: &mut Roles) -> Result<(), HookError> {
        let classes = [Class::Alloc, Class::HostRegister, Class::Memcpy, Class::Memset];
        let takes = classes.contains(&self.class);
        let explicit = self.of_class("size", &classes)?;
        let size = explicit.or_else(|| self.first(|arg| arg.kind == ArgKind::Size).filter(|_| takes));
        match self.of_class("count", &classes)? {
            Some(count) => (roles.width, roles.height) = (size, Some(count)),
            None => roles.size = size,
        }
        if takes && size.is_none() {
            let message =
                format!("class {} needs a size: an argument of kind size, or the key `size`", self.class);
            return Err(self.row.wrong("class", message));
        }
        Ok(())
    }

    /// The memory that is allocated or freed.
    fn memory(&self, roles: &mut Roles) -> Result<(), HookError> {
        if let Some(word) = self.row.text("memory")? {
            let space = Space::ALL.into_iter().find(|space| space.as_str() == word);
            roles.space = Some(space.ok_or_else(|| {
                let all: Vec<_> = Space::ALL.iter().map(|space| space.as_str()).collect();
                self.row.wrong("memory", format!("unknown memory `{word}`: one of {}", all.join(", ")))
            })?);
        } else if self.class == Class::Alloc {
            roles.space = Some(Space::Device);
        }
        let part = self.part("ptr")?;
        match (self.class, part) {
            (Class::Alloc, None) if self.result == ResultKind::Pointer => roles.out_is_result = true,
            (Class::Alloc, None) => roles.out = self.first(|arg| arg.out == Some(ArgKind::Pointer)),
            (Class::Alloc, Some(RoleHolder::Result)) => roles.out_is_result = true,
            (Class::Alloc, Some(RoleHolder::Argument(at))) => {
                roles.out = Some(at).filter(|at| self.arg(Some(*at)).is_some_and(|arg| arg.out.is_some()));
            }
            (Class::Free | Class::HostRegister | Class::HostUnregister, None) => {
                let is_address =
                    |arg: &Arg| arg.out.is_none() && matches!(arg.kind, ArgKind::Pointer | ArgKind::Handle);
                roles.ptr = self.first(is_address);
            }
            (Class::Free | Class::HostRegister | Class::HostUnregister, Some(RoleHolder::Argument(at))) => {
                roles.ptr = Some(at);
            }
            (_, None) => {}
            (_, Some(_)) => return Err(self.row.wrong("ptr", "`ptr` is only for class alloc and free")),
        }
        let needs = match self.class {
            Class::Alloc => roles.out.is_none() && !roles.out_is_result,
            Class::Free | Class::HostRegister | Class::HostUnregister => roles.ptr.is_none(),
            _ => false,
        };
        match (needs, self.class) {
            (false, _) => Ok(()),
            (true, Class::Alloc) => {
                let message =
                    "class alloc needs the allocated address: returns = \"ptr\", or an out_ptr argument";
                Err(self.row.wrong("class", message))
            }
            (true, class) => {
                Err(self.row.wrong("class", format!("class {class} needs an argument of kind ptr or handle")))
            }
        }
    }

    /// The direction of a copy: fixed, or given by an argument.
    fn direction(&self, roles: &mut Roles) -> Result<(), HookError> {
        let Some(word) = self.row.text("kind")? else { return Ok(()) };
        if self.class != Class::Memcpy {
            return Err(self.row.wrong("kind", "`kind` is only for class memcpy"));
        }
        let fixed =
            CopyDirection::ALL.iter().map(|direction| direction.as_str()).find(|known| *known == word);
        match fixed {
            Some(direction) => roles.direction = Some(Direction::Fixed(direction)),
            None => {
                roles.kind = self.argument("kind")?;
                roles.direction = Some(Direction::FromKind);
            }
        }
        Ok(())
    }

    /// The handle that a call names, and the argument with the name.
    fn names(&self, roles: &mut Roles) -> Result<(), HookError> {
        let (names, name) = (self.part("names")?, self.argument("name")?);
        let Some(names) = names else {
            return match name {
                Some(_) => Err(self
                    .row
                    .wrong("name", "`name` needs the key `names`, the handle that gets this name")),
                None => Ok(()),
            };
        };
        roles.name = name.or_else(|| self.first(|arg| arg.ty == TEXT));
        if self.arg(roles.name).is_none_or(|arg| arg.ty != TEXT) {
            return Err(self.row.wrong("names", "a CUDA kernel is named by an argument of kind str"));
        }
        match names {
            RoleHolder::Result => roles.func_is_result = true,
            RoleHolder::Argument(at) if self.arg(Some(at)).is_some_and(|arg| arg.out.is_some()) => {
                roles.func_out = Some(at);
            }
            RoleHolder::Argument(at) => roles.named = Some(at),
        }
        Ok(())
    }
}
