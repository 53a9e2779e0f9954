//! What the type information (BTF) of the Linux kernel says about its functions.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::ptr::NonNull;

use gpuprobe_discover::LinuxFunction;
use gpuprobe_event::catalogue::ResultKind;
use libbpf_rs::libbpf_sys::{self, btf};

/// What a function returns: its kind, and a similar C type.
pub type Returned = (ResultKind, &'static str);

/// The type of a result that takes the whole register.
pub(crate) const WIDE: &str = "long";

/// Types of the Linux kernel or of one of its modules.
struct Types(NonNull<btf>);

impl Drop for Types {
    fn drop(&mut self) {
        // SAFETY: made by libbpf, and freed only here.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) };
    }
}

impl Types {
    fn of_linux() -> Option<Self> {
        // SAFETY: takes nothing; the result is ours, or null.
        NonNull::new(unsafe { libbpf_sys::btf__load_vmlinux_btf() }).map(Self)
    }

    /// The numbers of its types follow those of the Linux kernel, whose types must live as long.
    fn of_module(module: &str, kernel: &Self) -> Option<Self> {
        let name = CString::new(module).ok()?;
        // SAFETY: the name is NUL-terminated; the result is ours, or null.
        NonNull::new(unsafe { libbpf_sys::btf__load_module_btf(name.as_ptr(), kernel.0.as_ptr()) }).map(Self)
    }

    fn count(&self) -> u32 {
        // SAFETY: valid as long as self.
        unsafe { libbpf_sys::btf__type_cnt(self.0.as_ptr()) }
    }

    /// The kind of a type, its name, and the type that it refers to or its size.
    fn get(&self, id: u32) -> Option<(u32, &CStr, u32)> {
        // SAFETY: null, or valid as long as self.
        let found = unsafe { libbpf_sys::btf__type_by_id(self.0.as_ptr(), id).as_ref() }?;
        // SAFETY: null, or text that lives as long as self.
        let name = unsafe {
            let name = libbpf_sys::btf__name_by_offset(self.0.as_ptr(), found.name_off);
            (!name.is_null()).then(|| CStr::from_ptr(name))?
        };
        // SAFETY: both members of the union are numbers of 32 bits.
        let rest = unsafe { found.__bindgen_anon_1.type_ };
        Some((found.info >> 24 & 0x1f, name, rest))
    }

    /// What a function of this type returns.
    fn result(&self, prototype: u32) -> Option<Returned> {
        const DEEPEST: usize = 32;
        let (_, _, mut returned) = self.get(prototype)?;
        for _ in 0..DEEPEST {
            if returned == 0 {
                return Some((ResultKind::Void, "void"));
            }
            let (kind, name, rest) = self.get(returned)?;
            return Some(match kind {
                libbpf_sys::BTF_KIND_TYPEDEF | libbpf_sys::BTF_KIND_CONST | libbpf_sys::BTF_KIND_VOLATILE => {
                    returned = rest;
                    continue;
                }
                libbpf_sys::BTF_KIND_PTR => (ResultKind::Pointer, "void*"),
                // the types in which the Linux kernel returns errors
                libbpf_sys::BTF_KIND_INT if name.to_bytes() == b"int" => (ResultKind::Errno, "int"),
                libbpf_sys::BTF_KIND_INT if name.to_bytes() == b"long int" => (ResultKind::Errno, WIDE),
                libbpf_sys::BTF_KIND_INT | libbpf_sys::BTF_KIND_ENUM => (ResultKind::Int, "unsigned int"),
                _ => (ResultKind::Unknown, "?"),
            });
        }
        None
    }

    /// The number of arguments of a tracepoint whose type has at least the number `from`. The type is a pointer to a
    /// function with one more argument, a pointer of the kernel's own, before them.
    fn tracepoint(&self, from: u32, name: &str) -> Option<usize> {
        let wanted = format!("btf_trace_{name}");
        let is_it = |id: &u32| {
            self.get(*id).is_some_and(|(kind, name, _)| {
                kind == libbpf_sys::BTF_KIND_TYPEDEF && name.to_bytes() == wanted.as_bytes()
            })
        };
        let (_, _, pointer) = self.get((from..self.count()).find(is_it)?)?;
        let (_, _, function) = self.get(pointer)?;
        // SAFETY: null, or valid as long as self.
        let function = unsafe { libbpf_sys::btf__type_by_id(self.0.as_ptr(), function).as_ref() }?;
        (function.info as usize & 0xffff).checked_sub(1)
    }

    /// Adds the functions with these names whose types have at least the number `from`.
    fn add_functions<'n>(&self, from: u32, names: &HashSet<&'n str>, to: &mut HashMap<&'n str, Returned>) {
        for id in from..self.count() {
            let Some((libbpf_sys::BTF_KIND_FUNC, name, prototype)) = self.get(id) else { continue };
            if let Some(name) = name.to_str().ok().and_then(|name| names.get(name))
                && let Some(result) = self.result(prototype)
            {
                to.insert(name, result);
            }
        }
    }
}

/// What each of these functions returns, if the Linux kernel has its type.
pub fn results(functions: &[LinuxFunction]) -> Vec<Option<Returned>> {
    let mut found: HashMap<Option<&str>, HashMap<&str, Returned>> = HashMap::new();
    if let Some(kernel) = Types::of_linux() {
        let mut wanted: HashMap<Option<&str>, HashSet<&str>> = HashMap::new();
        for function in functions {
            wanted.entry(function.module.as_deref()).or_default().insert(&function.name);
        }
        for (module, names) in wanted {
            let kinds = found.entry(module).or_default();
            match module {
                None => kernel.add_functions(1, &names, kinds),
                Some(module) => {
                    if let Some(types) = Types::of_module(module, &kernel) {
                        types.add_functions(kernel.count(), &names, kinds);
                    }
                }
            }
        }
    }
    let kind_of = |f: &LinuxFunction| found.get(&f.module.as_deref())?.get(f.name.as_str()).copied();
    functions.iter().map(kind_of).collect()
}

/// How many arguments a tracepoint has, given its name without the group; `None` if neither the Linux kernel nor a
/// module has its type.
pub fn tracepoint_arguments(name: &str) -> Option<usize> {
    let kernel = Types::of_linux()?;
    kernel.tracepoint(1, name).or_else(|| {
        let modules = std::fs::read_dir("/sys/kernel/btf").ok()?.flatten();
        let mut modules = modules.filter_map(|module| module.file_name().into_string().ok());
        modules.find_map(|module| {
            Types::of_module(&module, &kernel).and_then(|types| types.tracepoint(kernel.count(), name))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_arguments_of_a_tracepoint_is_known() {
        if std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            assert_eq!(tracepoint_arguments("sched_process_fork"), Some(2));
        }
        assert_eq!(tracepoint_arguments("no_such_tracepoint"), None);
    }

    #[test]
    fn return_types_of_linux_functions_are_known() {
        let of = |name: &str, module: Option<&str>| LinuxFunction {
            name: name.to_owned(),
            module: module.map(str::to_owned),
            addresses: Vec::new(),
        };
        let wanted = [
            of("vfs_fsync", None),
            of("fput", None),
            of("fget", None),
            of("no_such_function", None),
            of("fput", Some("no_such_module")),
        ];
        let kinds = results(&wanted);
        assert_eq!(kinds[3..], [None, None]);
        // a machine without the type information knows none
        if std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            assert_eq!(
                kinds[..3].iter().map(|kind| kind.map(|(kind, _)| kind)).collect::<Vec<_>>(),
                [Some(ResultKind::Errno), Some(ResultKind::Void), Some(ResultKind::Pointer)]
            );
        }
    }
}
