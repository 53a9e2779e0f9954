use std::path::Path;

use super::*;
use crate::library::{Library, inspect};
use crate::probe_point::plan;
use crate::skipped::Skipped;
use crate::testing::{CODE_OFFSET, ElfBuilder, Xorshift};

const NAMES: [&str; 9] = [
    "cudaMalloc",
    "cudaFree",
    "cudaMallocHost",
    "cudaFreeHost",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cudaMemset",
    "cudaMemsetAsync",
    "cudaMallocManaged",
];

/// Sizes and offsets of what a runtime is made of: helpers, and then an inner function and an export for each name.
const HELPERS: [u8; 64] = [0xc3; 64];
const FETCH: usize = 0;
const STORE: usize = 16;
const TRANSLATE: usize = 32;
const WORK: usize = 48;
const INNER: usize = 128;
const EXPORT: usize = 16;

fn inner_of(index: usize) -> usize {
    HELPERS.len() + index * (INNER + EXPORT)
}

/// Machine code at a known place.
struct Code {
    at: usize,
    bytes: Vec<u8>,
}

impl Code {
    fn new(at: usize) -> Self {
        Self { at, bytes: Vec::new() }
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn call(self, target: usize) -> Self {
        let next = self.at + self.bytes.len() + 5;
        let distance = (target as i32).wrapping_sub(next as i32);
        self.put(&[0xe8]).put(&distance.to_le_bytes())
    }

    /// A short jump to a place in this code.
    fn jump(self, opcode: u8, target: usize) -> Self {
        let distance = target as i32 - (self.bytes.len() as i32 + 2);
        self.put(&[opcode, distance as i8 as u8])
    }

    fn padded(mut self, size: usize) -> Vec<u8> {
        assert!(self.bytes.len() <= size, "{}", self.bytes.len());
        self.bytes.resize(size, 0xcc);
        self.bytes
    }
}

/// What an inner function does in other ways than the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Usual,
    /// The status is 0 if the argument is null.
    NullSucceeds,
    /// The status is translated.
    Translated,
    /// It goes back to where it fetches the state.
    Repeats,
    /// It is loaded from memory when the state has been fetched.
    Loaded,
    /// It has a jump through a register.
    JumpsAnywhere,
}

const JE: u8 = 0x74;
const JMP: u8 = 0xeb;
/// Where things are in an inner function.
const FAIL: usize = 32;
const END: usize = 64;
const REFUSE: usize = 80;
/// The call that fetches the state.
const POINT: usize = FAIL + 4;

fn inner(at: usize, variant: Variant) -> Vec<u8> {
    // push rbp; mov rbp, rsp; push rbx; test rdi, rdi
    let code = Code::new(at).put(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x85, 0xff]).jump(JE, REFUSE);
    // test eax, eax; mov ebx, eax
    let code = code.call(WORK).put(&[0x85, 0xc0, 0x89, 0xc3]).jump(JE, END);
    let mut code = match variant {
        // mov edi, eax; call; mov ebx, eax
        Variant::Translated => code.put(&[0x89, 0xc7]).call(TRANSLATE).put(&[0x89, 0xc3]),
        Variant::JumpsAnywhere => code.put(&[0xff, 0xe0]),
        _ => code,
    };
    while code.bytes.len() < FAIL {
        code = code.put(&[0x90]);
    }
    // lea rdi, [rbp-0x18]; call; mov rdi, [rbp-0x18]
    let code = code.put(&[0x48, 0x8d, 0x7d, 0xe8]).call(FETCH).put(&[0x48, 0x8b, 0x7d, 0xe8]);
    // mov ebx, [rbp-0x20]
    let code = if variant == Variant::Loaded { code.put(&[0x8b, 0x5d, 0xe0]) } else { code };
    // test rdi, rdi; je; mov esi, ebx
    let code = code.put(&[0x48, 0x85, 0xff]).jump(JE, END).put(&[0x89, 0xde]).call(STORE);
    let mut code = if variant == Variant::Repeats { code.jump(JMP, FAIL) } else { code };
    while code.bytes.len() < END {
        code = code.put(&[0x90]);
    }
    // mov eax, ebx; pop rbx; pop rbp; ret
    let mut code = code.put(&[0x89, 0xd8, 0x5b, 0x5d, 0xc3]);
    while code.bytes.len() < REFUSE {
        code = code.put(&[0x90]);
    }
    let status: &[u8] = match variant {
        Variant::NullSucceeds => &[0x31, 0xdb],
        _ => &[0xbb, 1, 0, 0, 0],
    };
    code.put(status).jump(JMP, FAIL).padded(INNER)
}

/// A runtime with these functions. `callee` is the index of the inner function that an export calls.
fn runtime(variants: &[Variant], callee: impl Fn(usize) -> usize) -> ElfBuilder {
    let mut builder = ElfBuilder::new().soname("libcudart.so.12").local("helpers", &HELPERS);
    for (index, variant) in variants.iter().enumerate() {
        let at = inner_of(index);
        builder = builder.local("inner", &inner(at, *variant));
        let export = Code::new(at + INNER).put(&[0x55]).call(inner_of(callee(index))).put(&[0x5d, 0xc3]);
        builder = builder.export(NAMES[index], &export.padded(EXPORT));
    }
    builder
}

fn planned(builder: &ElfBuilder) -> (Vec<FailurePoint>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libcudart.so.12");
    builder.write(&path);
    let (mut plan, skipped) = plan(&inspect(&path, &path).unwrap(), &|_, _| None, &every);
    let reasons = skipped.into_iter().map(|skipped: Skipped| skipped.reason).collect();
    (plan.targets.pop().map_or(Vec::new(), |target| target.failure_points), reasons)
}

fn every(_: &Library, name: &str) -> Option<FunctionId> {
    NAMES.iter().position(|known| *known == name).map(|index| FunctionId(index as u32))
}

/// What is said about the first function if it differs from the others.
fn reason(variant: Variant) -> String {
    let mut variants = [Variant::Usual; NAMES.len()];
    variants[0] = variant;
    let (points, reasons) = planned(&runtime(&variants, |index| index));
    assert_eq!(points.len(), NAMES.len() - 1, "{variant:?}");
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    let reason = reasons[0].strip_prefix("failures in the runtime itself are not counted for cudaMalloc: ");
    reason.unwrap_or_else(|| panic!("{reasons:?}")).to_owned()
}

#[test]
fn each_function_has_a_point_where_it_fetches_the_state() {
    for variant in [Variant::Usual, Variant::Translated] {
        let (points, reasons) = planned(&runtime(&[variant; NAMES.len()], |index| index));
        assert_eq!(reasons, Vec::<String>::new());
        let expected = NAMES.iter().enumerate().map(|(index, name)| FailurePoint {
            function: FunctionId(index as u32),
            name: (*name).to_owned(),
            offset: CODE_OFFSET + (inner_of(index) + POINT) as u64,
            register: 0,
        });
        assert_eq!(points, expected.collect::<Vec<_>>(), "{variant:?}");
    }
}

#[test]
fn a_function_whose_point_is_not_certain_has_none() {
    let may_run = "a successful call may run the instruction that records its failure";
    assert_eq!(reason(Variant::NullSucceeds), may_run);
    assert_eq!(reason(Variant::Translated), may_run, "nothing shows that this function translates");
    assert_eq!(reason(Variant::Repeats), "it may record several failures in one call");
    assert_eq!(reason(Variant::Loaded), "its status is in different places");
    assert_eq!(reason(Variant::JumpsAnywhere), "it has a jump through a table or a pointer");
}

#[test]
fn a_point_of_several_functions_is_not_used() {
    let shares = |index| if index == 1 { 0 } else { index };
    let (points, reasons) = planned(&runtime(&[Variant::Usual; NAMES.len()], shares));
    assert_eq!(points.len(), NAMES.len() - 2);
    assert_eq!(
        reasons,
        [format!("failures in the runtime itself are not counted for cudaMalloc, cudaFree: {SHARED}")]
    );
}

#[test]
fn a_library_of_another_kind_has_no_points() {
    let few = [Variant::Usual; FEWEST_SITES - 1];
    let (points, reasons) = planned(&runtime(&few, |index| index));
    assert_eq!(points, []);
    let expected = "failures in the runtime itself are not counted for cudaMalloc, cudaFree, cudaMallocHost, \
                    cudaFreeHost and 3 more functions: how the library records failures is not recognised";
    assert_eq!(reasons, [expected]);
    let (points, reasons) =
        planned(&ElfBuilder::new().aarch64().export("cudaMalloc", &[0xc0, 3, 0x5f, 0xd6]));
    assert_eq!(points, []);
    assert!(
        reasons[0].contains("x86-64 code only") && reasons[0].contains("--runtime-failures"),
        "{reasons:?}"
    );
}

#[test]
fn damaged_code_never_panics_or_takes_long() {
    let good = runtime(&[Variant::Translated; NAMES.len()], |index| index).build();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libcudart.so.12");
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let mut fewer = 0;
    for _ in 0..2000 {
        let mut bytes = good.clone();
        random.damage(&mut bytes);
        fewer += usize::from(points_of(&path, &bytes) < NAMES.len());
    }
    assert!(fewer > 200, "{fewer}");
}

fn points_of(path: &Path, bytes: &[u8]) -> usize {
    std::fs::write(path, bytes).unwrap();
    let Ok(found) = inspect(path, path) else { return 0 };
    let (plan, _) = plan(&found, &|_, _| None, &every);
    let points = plan.targets.iter().flat_map(|target| &target.failure_points);
    points.inspect(|point| assert!(point.offset < bytes.len() as u64, "{point:?}")).count()
}
