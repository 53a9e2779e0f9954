//! The locations of arguments by the calling conventions: System V on x86-64, AAPCS64 on aarch64.
//!
//! Only the argument classes of CUDA's prototypes are supported: integers and pointers, structs of integers by value,
//! and floats (which are skipped, because a probe does not see vector registers).

use super::types::ArgKind;

/// Integer argument registers on x86-64: rdi, rsi, rdx, rcx, r8, r9.
pub const X86_64_REGISTERS: u8 = 6;
/// Integer argument registers on aarch64: x0 to x7.
pub const AARCH64_REGISTERS: u8 = 8;

/// The location of an argument when its function is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgLoc {
    /// In `count` integer registers, from `first` on.
    Register { first: u8, count: u8 },
    /// On the stack: byte offset from the first stack argument (past the return address on x86-64).
    Stack { offset: u16, bytes: u16 },
    /// A struct in memory that this integer register points to. A probe copies it behind the words of the stack arguments:
    /// `word` is where it begins there.
    Indirect { register: u8, word: u8, bytes: u16 },
    /// In a vector register, which a probe does not see.
    Vector,
}

impl ArgLoc {
    /// In assembly notation: `rdi`, `[rsp+8]`, `x0`.
    pub fn describe(self, aarch64: bool) -> String {
        const NAMES: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];
        let register = |i: u8| {
            if aarch64 { format!("x{i}") } else { (*NAMES.get(usize::from(i)).unwrap_or(&"?")).to_owned() }
        };
        match self {
            Self::Register { first, count } => {
                (first..first + count).map(register).collect::<Vec<_>>().join("+")
            }
            Self::Stack { offset, .. } if aarch64 => format!("[sp+{offset}]"),
            Self::Stack { offset, .. } => format!("[rsp+{}]", offset + 8),
            Self::Indirect { register: r, .. } => format!("*{}", register(r)),
            Self::Vector => "vector".to_owned(),
        }
    }
}

/// The locations of a function's arguments on x86-64. A result struct in memory takes the first register.
pub(crate) fn locations_x86_64(kinds: &[ArgKind], hidden_result: bool) -> Vec<ArgLoc> {
    let mut registers = Registers { next: u8::from(hidden_result), limit: X86_64_REGISTERS, stack: 0 };
    kinds
        .iter()
        .map(|kind| match kind {
            ArgKind::Float => ArgLoc::Vector,
            // more than two eightbytes is class MEMORY: always on the stack
            ArgKind::Struct { bytes, .. } if *bytes > 16 => registers.push_stack(*bytes),
            kind => registers.take(kind.bytes(), false),
        })
        .collect()
}

/// The locations of a function's arguments on aarch64. The hidden result pointer is in x8, which is not an argument
/// register.
pub(crate) fn locations_aarch64(kinds: &[ArgKind]) -> Vec<ArgLoc> {
    let mut registers = Registers { next: 0, limit: AARCH64_REGISTERS, stack: 0 };
    let mut locations: Vec<_> = kinds
        .iter()
        .map(|kind| match kind {
            ArgKind::Float => ArgLoc::Vector,
            // larger structs are copied by the caller, which passes a pointer to the copy
            ArgKind::Struct { bytes, .. } if *bytes > 16 => match registers.take(8, true) {
                ArgLoc::Register { first, .. } => {
                    ArgLoc::Indirect { register: first, word: 0, bytes: *bytes }
                }
                on_stack => on_stack,
            },
            kind => registers.take(kind.bytes(), true),
        })
        .collect();
    let mut next = registers.stack / 8;
    for location in &mut locations {
        if let ArgLoc::Indirect { word, bytes, .. } = location {
            *word = u8::try_from(next).unwrap_or(u8::MAX);
            next += bytes.div_ceil(8);
        }
    }
    locations
}

struct Registers {
    next: u8,
    limit: u8,
    stack: u16,
}

impl Registers {
    fn take(&mut self, bytes: u16, exhaust: bool) -> ArgLoc {
        let count = u8::try_from(bytes.div_ceil(8)).unwrap_or(u8::MAX);
        if self.next + count <= self.limit {
            let first = self.next;
            self.next += count;
            return ArgLoc::Register { first, count };
        }
        if exhaust {
            // AAPCS64 C.13: once an argument is on the stack, no later one uses a register
            self.next = self.limit;
        }
        self.push_stack(bytes)
    }

    fn push_stack(&mut self, bytes: u16) -> ArgLoc {
        let offset = self.stack;
        self.stack += bytes.div_ceil(8) * 8;
        ArgLoc::Stack { offset, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Api, Arg, Function, catalogue};

    const WORD: ArgKind = ArgKind::Size;
    const INT: ArgKind = ArgKind::Int(4);
    const DIM3: ArgKind = ArgKind::Struct { bytes: 12, layout: None };
    const EXTENT: ArgKind = ArgKind::Struct { bytes: 24, layout: None };

    fn described(locations: &[ArgLoc], aarch64: bool) -> Vec<String> {
        locations.iter().map(|location| location.describe(aarch64)).collect()
    }

    fn row(api: Api, major: u32, name: &str) -> &'static [Arg] {
        let function = catalogue().lookup(api, Some(major), name).unwrap_or_else(|| panic!("{name}"));
        function.args.as_deref().unwrap_or_else(|| panic!("{name} has no prototype"))
    }

    /// The locations that clang uses for the same prototypes on aarch64.
    #[test]
    fn aarch64_locations_are_those_of_the_compiler() {
        let rows: [(Api, u32, &str, &str); 12] = [
            (Api::Driver, 12, "cuLaunchKernel", "x0 x1 x2 x3 x4 x5 x6 x7 [sp+0] [sp+8] [sp+16]"),
            (Api::Runtime, 12, "cudaLaunchKernel", "x0 x1+x2 x3+x4 x5 x6 x7"),
            (Api::Runtime, 12, "cudaLaunchKernelExC", "x0 x1 x2"),
            (Api::Runtime, 12, "cudaMalloc", "x0 x1"),
            (Api::Runtime, 12, "cudaMalloc3D", "x0 *x1"),
            (Api::Runtime, 12, "cudaMemcpy3DAsync", "x0 x1"),
            (Api::Runtime, 12, "cudaMemcpy2DToArrayAsync", "x0 x1 x2 x3 x4 x5 x6 x7 [sp+0]"),
            (Api::Runtime, 12, "cudaMemset3DAsync", "*x0 x1 *x2 x3"),
            (Api::Runtime, 13, "cudaMemPrefetchAsync", "x0 x1 x2 x3 x4"),
            (Api::Runtime, 12, "cudaIpcOpenMemHandle", "x0 *x1 x2"),
            (Api::Driver, 12, "cuTexRefSetMipmapLevelBias", "x0 vector"),
            (Api::Nccl, 12, "ncclCommInitRank", "x0 x1 *x2 x3"),
        ];
        for (api, major, name, expected) in rows {
            let locations: Vec<_> = row(api, major, name).iter().map(|arg| arg.aarch64).collect();
            assert_eq!(described(&locations, true).join(" "), expected, "{name}");
        }
    }

    #[test]
    fn a_struct_of_twelve_bytes_takes_two_registers() {
        let registers = |first| ArgLoc::Register { first, count: 2 };
        assert_eq!(locations_aarch64(&[DIM3, DIM3]), [registers(0), registers(2)]);
        // only types aligned to 16 bytes must begin in an even register, and CUDA has none
        assert_eq!(locations_aarch64(&[INT, DIM3])[1], registers(1));
    }

    #[test]
    fn arguments_that_do_not_fit_are_on_the_stack_and_on_aarch64_all_later_ones() {
        let kinds = [WORD, WORD, WORD, WORD, WORD, WORD, WORD, DIM3, INT, INT];
        let expected = ["x6", "[sp+0]", "[sp+16]", "[sp+24]"];
        assert_eq!(described(&locations_aarch64(&kinds), true)[6..], expected, "x7 stays free");
        let kinds = [WORD, WORD, WORD, WORD, WORD, DIM3, INT, INT];
        let expected = ["r8", "[rsp+8]", "r9", "[rsp+24]"];
        assert_eq!(described(&locations_x86_64(&kinds, false), false)[4..], expected, "r9 is used");
    }

    #[test]
    fn a_large_struct_is_behind_a_pointer_on_aarch64_and_on_the_stack_on_x86_64() {
        let kinds = [WORD, EXTENT, WORD];
        assert_eq!(described(&locations_aarch64(&kinds), true), ["x0", "*x1", "x2"]);
        assert_eq!(locations_aarch64(&kinds)[1], ArgLoc::Indirect { register: 1, word: 0, bytes: 24 });
        let on_stack = ArgLoc::Stack { offset: 0, bytes: 24 };
        assert_eq!(locations_x86_64(&kinds, false)[1], on_stack);
        assert_eq!(described(&locations_x86_64(&kinds, false), false), ["rdi", "[rsp+8]", "rsi"]);
    }

    #[test]
    fn copies_of_large_structs_follow_each_other_behind_the_stack_arguments() {
        let kinds = [EXTENT, WORD, WORD, WORD, WORD, WORD, WORD, EXTENT, WORD, INT];
        let locations = locations_aarch64(&kinds);
        let expected = ["*x0", "x1", "x2", "x3", "x4", "x5", "x6", "*x7", "[sp+0]", "[sp+8]"];
        assert_eq!(described(&locations, true), expected);
        let copy = |register, word| ArgLoc::Indirect { register, word, bytes: 24 };
        assert_eq!([locations[0], locations[7]], [copy(0, 2), copy(7, 5)]);
    }

    #[test]
    fn floats_take_no_integer_register() {
        let kinds = [ArgKind::Float, INT, ArgKind::Float, WORD];
        assert_eq!(described(&locations_aarch64(&kinds), true), ["vector", "x0", "vector", "x1"]);
        assert_eq!(described(&locations_x86_64(&kinds, false), false), ["vector", "rdi", "vector", "rsi"]);
    }

    #[test]
    fn a_result_in_memory_takes_an_argument_register_only_on_x86_64() {
        assert_eq!(described(&locations_x86_64(&[INT, INT], true), false), ["rsi", "rdx"]);
        assert_eq!(described(&locations_aarch64(&[INT, INT]), true), ["x0", "x1"], "x8 points to it");
    }

    /// Argument types that would need rules which are not implemented.
    #[test]
    fn no_function_has_an_argument_of_an_unsupported_type() {
        let args = |f: &'static Function| f.args.iter().flatten().map(move |arg| (f, arg));
        for (f, arg) in catalogue().functions().iter().flat_map(args) {
            let large = matches!(arg.kind, ArgKind::Struct { bytes, .. } if bytes > 16);
            let behind_pointer = matches!(arg.aarch64, ArgLoc::Indirect { .. });
            assert_eq!(large, behind_pointer, "a pointer to a struct on the stack: {}", f.name);
            if let ArgKind::Struct { layout: Some(layout), .. } = arg.kind {
                let vector = layout.fields.iter().all(|field| ["float", "double"].contains(&field.ty));
                assert!(!vector, "a struct in vector registers: {} {}", f.name, arg.name);
            }
        }
        for f in catalogue().functions() {
            let floats = f.args.iter().flatten().filter(|arg| arg.kind == ArgKind::Float).count();
            assert!(floats <= 8, "more floats than vector registers: {}", f.name);
        }
    }
}
