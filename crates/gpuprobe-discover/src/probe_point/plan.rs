//! Plans the probes: the probe point of each selected function of each library.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use gpuprobe_event::FunctionId;

use super::branches::{OUTSIDE_BYTES, may_return_to};
use super::candidate::{PROLOGUE_BYTES, at_entry, candidate};
use super::failure::{self, FailurePoint};
use super::point::ProbePoint;
use crate::access::{self, RegularFile, TABLE_LIMIT, is_of_user};
use crate::elf::{Elf, Machine};
use crate::error::DiscoverError;
use crate::library::{Library, Symbol};
use crate::skipped::{SkipCause, Skipped, why};

/// A longer function is probed at its entry and not searched for loops.
const FUNCTION_BYTES: u64 = 64 << 10;
/// The most code that is decoded for one library; libcuda's exports have about 1 MiB. The functions after that are
/// probed at the entry.
const LIBRARY_BYTES: u64 = 8 << 20;

#[derive(Clone, Debug)]
pub struct PlannedFunction {
    pub function: FunctionId,
    pub name: String,
    pub point: ProbePoint,
}

#[derive(Clone, Debug)]
pub struct Target {
    pub library: Library,
    /// Sorted by probe point, each point once.
    pub functions: Vec<PlannedFunction>,
    /// Where functions of the CUDA runtime record that they fail.
    pub failure_points: Vec<FailurePoint>,
}

impl Target {
    /// Nothing of a library.
    fn none(library: &Library) -> Self {
        Self { library: library.clone(), functions: Vec::new(), failure_points: Vec::new() }
    }
}

#[derive(Clone, Debug, Default)]
pub struct AttachPlan {
    pub targets: Vec<Target>,
}

/// Plans probes for the functions that `select` accepts. Several names of one address become one probe, under the
/// plainest of the accepted names. A library without accepted functions is no target.
pub fn plan(
    libraries: &[Library],
    select: &dyn Fn(&Library, &str) -> Option<FunctionId>,
    select_failures: &dyn Fn(&Library, &str) -> Option<FunctionId>,
) -> (AttachPlan, Vec<Skipped>) {
    let mut plan = AttachPlan::default();
    let mut skipped = Vec::new();
    for library in libraries {
        let wanted =
            Wanted { calls: selected(library, select), failures: selected(library, select_failures) };
        if wanted.calls.is_empty() && wanted.failures.is_empty() {
            continue;
        }
        match target(library, &wanted, &mut skipped) {
            Ok(target) if target.functions.is_empty() && target.failure_points.is_empty() => {}
            Ok(target) => plan.targets.push(target),
            Err(error) => {
                let (cause, reason) = why(&error);
                skipped.push(Skipped::file(&library.path, Some(library.id), cause, reason));
            }
        }
    }
    (plan, skipped)
}

/// The functions of a library whose calls are probed, and those of which only failures are.
struct Wanted<'l> {
    calls: Vec<(&'l Symbol, FunctionId)>,
    failures: Vec<(&'l Symbol, FunctionId)>,
}

/// The accepted functions, each address once.
fn selected<'l>(
    library: &'l Library,
    select: &dyn Fn(&Library, &str) -> Option<FunctionId>,
) -> Vec<(&'l Symbol, FunctionId)> {
    let symbols = library.functions.iter();
    let mut wanted: Vec<_> =
        symbols.filter_map(|symbol| Some((symbol, select(library, &symbol.name)?))).collect();
    wanted.sort_by_key(|(symbol, _)| (symbol.offset, is_profiling_name(&symbol.name), symbol.name.len()));
    wanted.dedup_by_key(|(symbol, _)| symbol.offset);
    wanted
}

/// NCCL exports each function twice, the second time as `pncclX` for tools that replace the first.
fn is_profiling_name(name: &str) -> bool {
    name.starts_with("pnccl")
}

fn target(
    library: &Library,
    wanted: &Wanted<'_>,
    skipped: &mut Vec<Skipped>,
) -> Result<Target, DiscoverError> {
    let file = RegularFile::open(&library.open_path)?;
    // The device number may differ: see Inspector::real_id.
    if file.id.inode != library.id.inode {
        let reason = "replaced by another file since it was found";
        skipped.push(Skipped::file(&library.path, Some(library.id), SkipCause::Replaced, reason));
        return Ok(Target::none(library));
    }
    if file.is_served && is_of_user(&mounts_of(&library.open_path), file.id.device()) {
        let reason = "on a FUSE file system of an ordinary user: attaching probes would have to wait for it";
        skipped.push(Skipped::file(&library.path, Some(library.id), SkipCause::UserFileSystem, reason));
        return Ok(Target::none(library));
    }
    let elf = Elf::parse(&file).map_err(|defect| defect.of(&library.path))?;
    let mut code =
        Code { file: &file, machine: elf.machine, functions: &library.functions, budget: LIBRARY_BYTES };
    let mut functions = Vec::with_capacity(wanted.calls.len());
    for &(symbol, function) in &wanted.calls {
        match code.point(symbol) {
            Ok(point) => functions.push(PlannedFunction { function, name: symbol.name.clone(), point }),
            Err(reason) => {
                let reason = format!("{} cannot be probed: {reason}", symbol.name);
                skipped.push(Skipped::function(&library.path, reason));
            }
        }
    }
    let failure_points = failure_points(library, &elf, &file, &wanted.failures, skipped);
    // the code of this file was read
    let library = Library { opened: Some(file.opened()), ..library.clone() };
    Ok(Target { library, functions, failure_points })
}

/// The failure points of these functions. Those that have none are reported together, by reason.
fn failure_points(
    library: &Library,
    elf: &Elf<'_>,
    file: &RegularFile,
    wanted: &[(&Symbol, FunctionId)],
    skipped: &mut Vec<Skipped>,
) -> Vec<FailurePoint> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let found = match elf.machine {
        Machine::X86_64 => failure::find(file, &library.functions, wanted),
        Machine::Aarch64 => failure::Found::without(ONLY_X86_64, wanted),
    };
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in &found.unclear {
        by_reason.entry(reason).or_default().push(name);
    }
    for (reason, names) in by_reason {
        let reason =
            format!("failures in the runtime itself are not counted for {}: {reason}", some_of(&names));
        skipped.push(Skipped::function(&library.path, reason));
    }
    // the Linux kernel refuses probes elsewhere
    let is_code = |point: &FailurePoint| elf.code_address(point.offset).is_some();
    found.points.into_iter().filter(is_code).collect()
}

const ONLY_X86_64: &str =
    "where they fail is found in x86-64 code only (`--runtime-failures` probes the calls of some of them)";

/// The first few names, and how many there are.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more functions"),
    }
}

/// The mountinfo of the mount namespace in which a path was opened.
fn mounts_of(open_path: &Path) -> Vec<u8> {
    let process = open_path.strip_prefix("/proc").ok().and_then(|below| below.components().next());
    let folder = Path::new("/proc").join(process.map_or("self".as_ref(), |pid| pid.as_os_str()));
    access::contents(&folder.join("mountinfo"), TABLE_LIMIT).unwrap_or_default()
}

struct Code<'a> {
    file: &'a RegularFile,
    machine: Machine,
    /// Sorted by offset.
    functions: &'a [Symbol],
    budget: u64,
}

impl Code<'_> {
    fn point(&mut self, symbol: &Symbol) -> Result<ProbePoint, String> {
        let length = self.length(symbol);
        let size = length.unwrap_or(PROLOGUE_BYTES).min(PROLOGUE_BYTES);
        let code = self.file.read_some(symbol.offset, size, "code").map_err(|defect| defect.to_string())?;
        let point = candidate(self.machine, &code, symbol.offset)?;
        if point.offset == symbol.offset || self.only_from_entry(symbol, point, length) {
            return Ok(point);
        }
        Ok(at_entry(self.machine, &code, symbol.offset)?)
    }

    /// The length of a function: its size, or the distance to the next function.
    fn length(&self, symbol: &Symbol) -> Option<u64> {
        if symbol.size != 0 {
            return Some(symbol.size);
        }
        let after = self.functions.partition_point(|other| other.offset <= symbol.offset);
        let end = self.functions.get(after).map_or(self.file.stamp.size, |next| next.offset);
        end.checked_sub(symbol.offset).filter(|&length| length != 0)
    }

    fn only_from_entry(&mut self, symbol: &Symbol, point: ProbePoint, length: Option<u64>) -> bool {
        let next = self.functions.partition_point(|other| other.offset <= symbol.offset);
        if self.functions.get(next).is_some_and(|other| other.offset <= point.offset) {
            // Callers of another function that begins here reach this code too.
            return false;
        }
        let Some(length) = length.filter(|&length| length <= FUNCTION_BYTES.min(self.budget)) else {
            return false;
        };
        self.budget -= length;
        let Ok(code) = self.file.read_some(symbol.offset, length, "code") else { return false };
        let followed = Cell::new(0);
        let outside = |at| {
            followed.set(followed.get() + OUTSIDE_BYTES);
            self.file.read_some(at, OUTSIDE_BYTES, "code").unwrap_or_default()
        };
        let only_from_entry = !may_return_to(self.machine, &code, symbol.offset, point.offset, &outside);
        self.budget = self.budget.saturating_sub(followed.get());
        only_from_entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::inspect;
    use crate::probe_point::ProbeCost;
    use crate::testing::{ElfBuilder, Xorshift};

    const PUSH: [u8; 2] = [0x55, 0xc3];
    /// test rdi, rdi; je +0; ret
    const BRANCH: [u8; 6] = [0x48, 0x85, 0xff, 0x74, 0, 0xc3];

    fn every(_: &Library, name: &str) -> Option<FunctionId> {
        Some(FunctionId(name.len() as u32))
    }

    fn nothing(_: &Library, _: &str) -> Option<FunctionId> {
        None
    }

    fn planned(path: &Path, builder: &ElfBuilder) -> (Vec<PlannedFunction>, Vec<Skipped>) {
        builder.write(path);
        let (mut plan, skipped) = plan(&inspect(path, path).unwrap(), &every, &nothing);
        (plan.targets.pop().map_or(Vec::new(), |target| target.functions), skipped)
    }

    fn planned_driver(builder: &ElfBuilder) -> (Vec<PlannedFunction>, Vec<Skipped>) {
        let dir = tempfile::tempdir().unwrap();
        planned(&dir.path().join("libcuda.so.1"), builder)
    }

    #[test]
    fn each_function_gets_its_point() {
        // test rdi, rdi; je; jmp back to the je
        let looped = [0x48, 0x85, 0xff, 0x74, 0, 0xeb, 0xfc];
        let builder = ElfBuilder::new()
            .export("cuInit", &PUSH)
            .export("cuBranch", &BRANCH)
            .export("cuLoop", &looped)
            .export("cuTrap", &[0xcc]);
        let (functions, skipped) = planned_driver(&builder);
        let points: Vec<_> = functions
            .iter()
            .map(|f| (f.name.as_str(), f.point.offset - f.point.entry, f.point.cost))
            .collect();
        assert_eq!(
            points,
            [
                ("cuInit", 0, ProbeCost::Emulated),
                ("cuBranch", 3, ProbeCost::Emulated),
                ("cuLoop", 0, ProbeCost::SingleStepped)
            ]
        );
        assert_eq!(skipped.len(), 1);
        assert_eq!(skipped[0].reason, "cuTrap cannot be probed: it begins with an instruction that traps");
    }

    #[test]
    fn names_of_one_address_become_one_probe() {
        let dir = tempfile::tempdir().unwrap();
        let builder = ElfBuilder::new()
            .export("pncclAllReduce", &PUSH)
            .alias("ncclAllReduce")
            .export("ncclGetVersion", &PUSH);
        let (functions, _) = planned(&dir.path().join("libnccl.so.2"), &builder);
        let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["ncclAllReduce", "ncclGetVersion"]);
        assert_eq!(functions[0].function, FunctionId(13));
    }

    #[test]
    fn a_function_that_begins_inside_another_is_detected() {
        // The second function begins at the branch of the first.
        let builder = ElfBuilder::new().export("cuInit", &BRANCH).raw("cuInner", 0x12, 1, 0x41003);
        let (functions, _) = planned_driver(&builder);
        assert_eq!(functions[0].point.offset, functions[0].point.entry);
    }

    #[test]
    fn a_function_of_unknown_size_ends_at_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so.1");
        ElfBuilder::new().export("cuInit", &BRANCH).export("cuLast", &BRANCH).write(&path);
        let mut found = inspect(&path, &path).unwrap();
        for function in &mut found[0].functions {
            function.size = 0;
        }
        let (plan, _) = plan(&found, &every, &nothing);
        let moved = |f: &PlannedFunction| f.point.offset - f.point.entry;
        assert_eq!(plan.targets[0].functions.iter().map(moved).collect::<Vec<_>>(), [3, 3]);
    }

    #[test]
    fn on_aarch64_the_instruction_after_bti_is_used_unless_it_is_in_a_loop() {
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let (bti, cbz, back, ret) = (0xd503_245f, 0xb400_0040, 0x17ff_ffff, 0xd65f_03c0);
        let builder = ElfBuilder::new()
            .aarch64()
            .export("cuInit", &bytes(&[0xa9bf_7bfd, ret]))
            .export("cuBranch", &bytes(&[bti, cbz, ret]))
            .export("cuLoop", &bytes(&[bti, cbz, back]))
            .export("cuTrap", &bytes(&[0xd420_0000]));
        let (functions, skipped) = planned_driver(&builder);
        let points: Vec<_> = functions
            .iter()
            .map(|f| (f.name.as_str(), f.point.offset - f.point.entry, f.point.cost))
            .collect();
        assert_eq!(
            points,
            [
                ("cuInit", 0, ProbeCost::SingleStepped),
                ("cuBranch", 4, ProbeCost::Emulated),
                ("cuLoop", 0, ProbeCost::SingleStepped)
            ]
        );
        assert_eq!(skipped[0].reason, "cuTrap cannot be probed: it begins with an instruction that traps");
    }

    #[test]
    fn a_library_without_selected_functions_is_no_target_and_a_missing_file_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so.1");
        ElfBuilder::new().export("cuInit", &PUSH).write(&path);
        let found = inspect(&path, &path).unwrap();
        let (none, skipped) = plan(&found, &nothing, &nothing);
        assert!(none.targets.is_empty() && skipped.is_empty());
        std::fs::remove_file(&path).unwrap();
        let (none, skipped) = plan(&found, &every, &nothing);
        assert!(none.targets.is_empty());
        assert!(skipped[0].reason.starts_with("cannot be opened: No such file"), "{}", skipped[0].reason);
    }

    #[test]
    fn damaged_files_never_panic_or_take_long() {
        let branch = [0x48, 0x85, 0xff, 0x0f, 0x84, 0, 0, 0, 0, 0xff, 0xe0, 0xc3];
        let good = ["cudaMalloc", "cudaFree"]
            .iter()
            .fold(ElfBuilder::new(), |builder, name| builder.export(name, &PUSH))
            .soname("libcudart.so.12")
            .export("cudaMemcpy", &branch)
            .build();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcudart.so.12");
        let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
        for _ in 0..2000 {
            let mut bytes = good.clone();
            random.damage(&mut bytes);
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(found) = inspect(&path, &path) {
                plan(&found, &every, &nothing);
            }
        }
    }
}
