//! Builds the libraries and workloads in a folder, with the system's C and C++ compilers.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::error::Error;
use crate::exports::{ExportList, Library};
use crate::generate;
use crate::lock::FolderLock;
use crate::options::{BuildOptions, Parts, Prologue};
use crate::sources::{DRIVER, RUNTIME, SOURCES};

const C_FLAGS: [&str; 7] =
    ["-std=gnu11", "-O2", "-g1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"];
/// Like programs that are not built for profilers: without frame pointers, so that unwinding needs `.eh_frame`, and with
/// line information. One file is one program.
const CXX_FLAGS: [&str; 7] =
    ["-std=c++17", "-O2", "-g", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror"];
const LIBRARY_FLAGS: [&str; 3] = ["-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec"];
const LINK_FLAGS: [&str; 2] = ["-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"];

/// The library with the allocator of tensors. It has the name of PyTorch's, and functions of its own.
const C10_CUDA: &str = "libc10_cuda.so";

/// A folder with stand-in libraries and workloads, which find each other without environment variables.
#[derive(Clone, Debug)]
pub struct Built {
    /// The absolute path of the folder.
    pub dir: PathBuf,
    /// Path of the CUDA runtime.
    pub libcudart: PathBuf,
    /// Path of the CUDA driver.
    pub libcuda: PathBuf,
    /// The options it was built with.
    pub options: BuildOptions,
}

/// The sources of workloads that exist for CUDA and for HIP.
const LEDGER: [&str; 3] = ["ledger", "ledger_calls", "ledger_print"];
const TORTURE: [&str; 5] = ["torture", "torture_context", "torture_memory", "torture_print", "torture_vmm"];

/// Workloads with one source file that are linked with the CUDA runtime.
const RUNTIME_WORKLOADS: [&str; 13] = [
    "args",
    "capture",
    "classic",
    "constructor",
    "crash",
    "demo",
    "diary",
    "forker",
    "hangs",
    "longjmp",
    "recursion",
    "stacks",
    "waits",
];

impl Built {
    /// The path of a workload's executable.
    pub fn workload(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path of a library.
    pub fn library(&self, library: Library) -> PathBuf {
        self.dir.join(library.soname())
    }
}

/// Builds into a folder, unless it already contains a build of the same sources and options. Safe to call from several
/// threads and processes at the same time.
pub fn build(out_dir: &Path, options: &BuildOptions) -> Result<Built, Error> {
    build_or_copy(out_dir, options, None)
}

/// Like [`build`], but copies everything from another folder if that contains a build of the same sources and options.
pub fn build_or_copy(out_dir: &Path, options: &BuildOptions, from: Option<&Path>) -> Result<Built, Error> {
    fs::create_dir_all(out_dir).map_err(Error::io(out_dir))?;
    let dir = out_dir.canonicalize().map_err(Error::io(out_dir))?;
    let lock = FolderLock::take(&dir)?;
    let stamp = dir.join("stamp");
    let wanted = stamp_of(&dir, options);
    if fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
        // no stamp while the build is incomplete
        if stamp.exists() {
            fs::remove_file(&stamp).map_err(Error::io(&stamp))?;
        }
        if !from.map_or(Ok(false), |from| copy_if_current(from, &dir, &wanted))? {
            Builder { dir: dir.clone(), options: *options }.build()?;
        }
        fs::write(&stamp, wanted).map_err(Error::io(&stamp))?;
    }
    drop(lock);
    let runtime = Library::Runtime(options.cuda).soname();
    Ok(Built {
        libcudart: dir.join(runtime),
        libcuda: dir.join(Library::Driver.soname()),
        dir,
        options: *options,
    })
}

/// Copies the files of a folder that has this stamp; `false` if it does not.
fn copy_if_current(from: &Path, to: &Path, wanted: &str) -> Result<bool, Error> {
    if !from.is_dir() {
        return Ok(false);
    }
    let _lock = FolderLock::take(from)?;
    if fs::read_to_string(from.join("stamp")).ok().as_deref() != Some(wanted) {
        return Ok(false);
    }
    for entry in fs::read_dir(from).map_err(Error::io(from))? {
        let file = entry.map_err(Error::io(from))?.path();
        if let Some(name) = file.file_name().filter(|name| file.is_file() && *name != "stamp") {
            let copy = to.join(name);
            // an executable that is still running cannot be overwritten, only replaced
            if copy.exists() {
                fs::remove_file(&copy).map_err(Error::io(&copy))?;
            }
            fs::copy(&file, &copy).map_err(Error::io(&file))?;
        }
    }
    Ok(true)
}

/// A hash over everything that the build depends on.
fn stamp_of(dir: &Path, options: &BuildOptions) -> String {
    let mut hasher = DefaultHasher::new();
    SOURCES.hash(&mut hasher);
    options.hash(&mut hasher);
    (C_FLAGS, CXX_FLAGS, LIBRARY_FLAGS, LINK_FLAGS, prefix_map(dir, options)).hash(&mut hasher);
    // another compiler may be one for another architecture
    for compiler in [compiler("CC", "cc"), compiler("CXX", "c++")] {
        (version_of(&compiler), compiler).hash(&mut hasher);
    }
    let all = [Library::Driver, Library::Nvml, Library::Nccl, Library::C10, Library::Hip];
    for library in [Library::Runtime(options.cuda)].into_iter().chain(all) {
        generate::stubs(&ExportList::of(library)).hash(&mut hasher);
    }
    format!("{:016x}\n", hasher.finish())
}

/// The compiler that an environment variable names. In a build script, a variable for its target goes first, as in the
/// crate `cc`: `CC_aarch64_unknown_linux_gnu`.
fn compiler(variable: &str, default: &str) -> OsString {
    let of_target = env::var("TARGET")
        .ok()
        .and_then(|target| env::var_os(format!("{variable}_{}", target.replace('-', "_"))));
    of_target.or_else(|| env::var_os(variable)).unwrap_or_else(|| default.into())
}

/// What a compiler says about its version, in one language; `None` if it is not installed.
fn version_of(compiler: &OsStr) -> Option<Vec<u8>> {
    Some(Command::new(compiler).arg("--version").env("LC_ALL", "C").output().ok()?.stdout)
}

/// Flags for what is embedded: it must not depend on the folders of sources and outputs.
fn prefix_map(dir: &Path, options: &BuildOptions) -> Vec<String> {
    if options.parts != Parts::Demo {
        return Vec::new();
    }
    let here = env::current_dir().unwrap_or_default();
    [dir, &here].map(|dir| format!("-ffile-prefix-map={}=.", dir.display())).to_vec()
}

struct Builder {
    dir: PathBuf,
    options: BuildOptions,
}

impl Builder {
    fn build(&self) -> Result<(), Error> {
        self.write_sources()?;
        if self.options.parts == Parts::Hip {
            return self.hip();
        }
        let runtime = Library::Runtime(self.options.cuda);
        self.library(Library::Driver, DRIVER, None)?;
        self.library(runtime, RUNTIME, None)?;
        match self.options.parts {
            Parts::Demo => {
                for prologue in Prologue::BENCHED {
                    self.bench_driver(prologue)?;
                }
                self.workload("bench", &["bench"], Link::Nothing)?;
                self.workload("demo", &["demo"], Link::Runtime)?;
                return self.static_program("demo");
            }
            Parts::Ledger => return self.workload("ledger", &LEDGER, Link::Runtime),
            Parts::All | Parts::Hip => {}
        }
        self.library(Library::Nvml, &["nvml.c", "nvml_health.c", "nvml_mig.c", "faults.c"], None)?;
        self.library(Library::Nccl, &["nccl.c", "faults.c"], None)?;
        self.library(Library::C10, &["c10.c", "faults.c"], None)?;
        self.c10_cuda()?;
        self.cupti()?;
        self.library(runtime, RUNTIME, Some(&self.options.cuda.renamed_runtime()))?;
        self.static_object(runtime, RUNTIME, &["-DSTATIC_RUNTIME"])?;
        self.plugin()?;
        for name in RUNTIME_WORKLOADS {
            self.workload(name, &[name], Link::Runtime)?;
        }
        self.workload("args_renamed", &["args"], Link::Renamed)?;
        self.workload("late_dlopen", &["late_dlopen"], Link::Nothing)?;
        let driver_workloads = ["brief", "driver_args", "driver_only", "gaps", "gpus", "hoarder", "lookups"];
        for name in driver_workloads.into_iter().chain(["paced", "rates", "spurt", "vmm"]) {
            self.workload(name, &[name], Link::Driver)?;
        }
        self.workload("collectives", &["collectives"], Link::Nccl)?;
        self.workload("callers", &["callers"], Link::Both)?;
        self.workload("gpu_work", &["gpu_work"], Link::Both)?;
        self.workload("nvtx_ranges", &["nvtx_ranges"], Link::Both)?;
        self.workload("unmapped", &["unmapped"], Link::Both)?;
        self.workload("rare_call", &["rare_call"], Link::Runtime)?;
        self.workload("static_runtime", &["static_runtime"], Link::Static)?;
        self.workload("torture", &TORTURE, Link::Both)?;
        let rules = ["rules", "rules_context", "rules_vmm", "torture_print"];
        self.workload("rules", &rules, Link::Both)?;
        let launches = ["launches", "launches_counted", "launches_doors", "launches_graphs"];
        self.workload("launches", &launches, Link::Both)?;
        self.workload("copies", &["copies", "copies_table"], Link::Driver)?;
        self.workload("copies_runtime", &["copies", "copies_runtime"], Link::Both)?;
        self.workload("names", &["names"], Link::Both)?;
        self.workload("prepared", &["prepared"], Link::Both)?;
        self.workload("ledger", &LEDGER, Link::Runtime)?;
        self.workload("ledger_static", &LEDGER, Link::Static)?;
        for name in ["leaks", "leaks_deep", "leaks_many"] {
            self.program(name, name, &[], &[self.runtime_path()])?;
        }
        self.program("leaks_driver", "leaks", &["-DLEAKS_DRIVER"], &[self.driver_path()])?;
        let libraries = [C10_CUDA, Library::C10.soname()].map(|name| self.dir.join(name));
        self.program("tensors", "tensors", &[], &libraries)
    }

    /// Builds HIP, with the code of the CUDA runtime and the CUDA driver behind its exports, and its workloads.
    fn hip(&self) -> Result<(), Error> {
        self.library(Library::Driver, DRIVER, None)?;
        let parts: Vec<_> =
            RUNTIME.iter().chain(DRIVER).copied().filter(|name| *name != "faults.c").collect();
        self.library(Library::Hip, &[&parts[..], &["faults.c"]].concat(), None)?;
        self.workload("ledger", &LEDGER, Link::Hip)?;
        self.workload("torture", &[&TORTURE[..], &["hip_calls"]].concat(), Link::Hip)?;
        let launches = ["launches", "launches_counted", "launches_graphs", "launches_hip", "hip_calls"];
        self.workload("launches", &launches, Link::Hip)
    }

    fn source(&self, name: &str) -> PathBuf {
        self.dir.join("src").join(name)
    }

    fn write_sources(&self) -> Result<(), Error> {
        let write = |name: &str, text: &str| {
            let path = self.source(name);
            fs::write(&path, text).map_err(Error::io(path))
        };
        let workloads = self.source("workloads");
        fs::create_dir_all(&workloads).map_err(Error::io(workloads))?;
        for (name, text) in SOURCES {
            write(name, text)?;
        }
        let errors = if self.options.parts == Parts::Hip { "hipError_t" } else { "cudaError_t" };
        write("runtime_errors.h", &generate::error_names(errors))?;
        write("driver_errors.h", &generate::error_names("CUresult"))
    }

    /// The C compiler with the flags that every file needs.
    fn cc(&self) -> Command {
        self.compiler("CC", "cc", &C_FLAGS)
    }

    /// A compiler, which an environment variable may name, with the flags that every file needs.
    fn compiler(&self, variable: &str, name: &str, flags: &[&str]) -> Command {
        let mut compiler = Command::new(compiler(variable, name));
        compiler
            .args(prefix_map(&self.dir, &self.options))
            .args(flags)
            .arg("-I")
            .arg(self.dir.join("src"))
            .arg(format!("-DPROLOGUE_{}", self.options.prologue.define()))
            .arg(format!("-DCUDA_MAJOR={}", self.options.cuda.major()))
            .arg(format!("-DRUNTIME_VERSION={}", self.options.cuda.runtime_version()));
        compiler
    }

    /// Writes a library's generated assembler file.
    fn stubs(&self, exports: &ExportList) -> Result<PathBuf, Error> {
        let path = self.source(&format!("{}.S", exports.library.soname()));
        fs::write(&path, generate::stubs(exports)).map_err(Error::io(&path))?;
        Ok(path)
    }

    /// Builds a library, under its own name or another one.
    fn library(&self, library: Library, sources: &[&str], name: Option<&str>) -> Result<(), Error> {
        let exports = ExportList::of(library);
        let soname = name.unwrap_or(library.soname());
        let script = self.source(&format!("{soname}.map"));
        fs::write(&script, generate::version_script(&exports)).map_err(Error::io(&script))?;
        let mut cc = self.cc();
        if library == Library::Hip {
            cc.arg("-DSTANDIN_HIP");
        }
        cc.args(LIBRARY_FLAGS)
            .args(["-shared", "-s", "-pthread"])
            .args(LINK_FLAGS)
            .arg(format!("-Wl,-soname,{soname}"))
            .arg(format!("-Wl,--version-script={}", script.display()))
            .args(sources.iter().map(|s| self.source(s)))
            .arg(self.stubs(&exports)?)
            .args(["-ldl", "-o"])
            .arg(self.dir.join(soname));
        run(cc, soname)
    }

    /// Builds one relocatable object with a whole library. A program that links it has the functions only in `.symtab`.
    fn static_object(&self, library: Library, sources: &[&str], defines: &[&str]) -> Result<(), Error> {
        let name = static_name(library);
        let mut cc = self.cc();
        cc.args(LIBRARY_FLAGS)
            .args(defines)
            .args(["-r", "-nostdlib"])
            .args(sources.iter().map(|s| self.source(s)))
            .arg(self.stubs(&ExportList::of(library))?)
            .arg("-o")
            .arg(self.dir.join(name));
        run(cc, name)
    }

    /// Builds a workload that contains the runtime, the driver and the C library, so that it runs on any host.
    fn static_program(&self, name: &str) -> Result<(), Error> {
        let runtime = Library::Runtime(self.options.cuda);
        self.static_object(runtime, RUNTIME, &["-DSTATIC_RUNTIME", "-DSTATIC_DRIVER"])?;
        // the runtime has a function of this name, too, and brings what both use
        let own: Vec<&str> = DRIVER.iter().copied().filter(|source| !RUNTIME.contains(source)).collect();
        self.static_object(Library::Driver, &own, &["-Dstandin_generic=standin_generic_driver_call"])?;
        let program = format!("{name}_static");
        let mut cc = self.cc();
        cc.args(["-static", "-pthread"])
            .arg(self.source(&format!("workloads/{name}.c")))
            .arg(self.source("gpu_code.c"))
            .args([runtime, Library::Driver].map(|library| self.dir.join(static_name(library))))
            .arg("-o")
            .arg(self.dir.join(&program));
        run(cc, &program)
    }

    /// Builds the few functions that `gpuprobe bench` calls. The library does not look like a CUDA driver, so that another
    /// gpuprobe on the machine does not probe it.
    fn bench_driver(&self, prologue: Prologue) -> Result<(), Error> {
        let name = format!("libbench.{}.so", prologue.define().to_ascii_lowercase());
        let options = BuildOptions { prologue, ..self.options };
        let mut cc = Self { options, dir: self.dir.clone() }.cc();
        cc.args(LIBRARY_FLAGS)
            .args(["-shared", "-s"])
            .args(["bench_driver.c", "bench_driver.S"].map(|name| self.source(name)))
            .arg("-o")
            .arg(self.dir.join(&name));
        run(cc, &name)
    }

    /// Builds the allocator that reports to libc10.
    fn c10_cuda(&self) -> Result<(), Error> {
        let mut cxx = self.compiler("CXX", "c++", &CXX_FLAGS);
        cxx.args(["-fPIC", "-shared", "-pthread"])
            .args(LINK_FLAGS)
            .arg(format!("-Wl,-soname,{C10_CUDA}"))
            .arg(self.source("c10_cuda.cpp"))
            .arg(self.dir.join(Library::C10.soname()))
            .arg(self.runtime_path())
            .arg("-o")
            .arg(self.dir.join(C10_CUDA));
        run(cxx, C10_CUDA)
    }

    /// Builds CUPTI. It looks for the driver that the program has loaded.
    fn cupti(&self) -> Result<(), Error> {
        let name = self.options.cuda.cupti();
        let mut cc = self.cc();
        cc.args(LIBRARY_FLAGS)
            .args(["-shared", "-s", "-pthread"])
            .arg(format!("-Wl,-soname,{name}"))
            .args(["cupti.c", "cupti_records.c", "faults.c"].map(|source| self.source(source)))
            .args(["-ldl", "-o"])
            .arg(self.dir.join(&name));
        run(cc, &name)
    }

    fn plugin(&self) -> Result<(), Error> {
        let mut cc = self.cc();
        cc.args(["-fPIC", "-shared"])
            .args(LINK_FLAGS)
            .arg("-Wl,-soname,libplugin.so")
            .arg(self.source("workloads/plugin.c"))
            .arg(self.runtime_path())
            .arg("-o")
            .arg(self.dir.join("libplugin.so"));
        run(cc, "libplugin.so")
    }

    fn runtime_path(&self) -> PathBuf {
        self.dir.join(Library::Runtime(self.options.cuda).soname())
    }

    fn driver_path(&self) -> PathBuf {
        self.dir.join(Library::Driver.soname())
    }

    fn workload(&self, name: &str, sources: &[&str], link: Link) -> Result<(), Error> {
        let mut cc = self.cc();
        cc.args(LINK_FLAGS)
            .arg("-pthread")
            .args(sources.iter().map(|s| self.source(&format!("workloads/{s}.c"))));
        match link {
            Link::Nothing => {}
            Link::Runtime => drop(cc.arg(self.runtime_path())),
            Link::Renamed => drop(cc.arg(self.dir.join(self.options.cuda.renamed_runtime()))),
            Link::Static => {
                let runtime = Library::Runtime(self.options.cuda);
                cc.arg(self.source("gpu_code.c")).arg(self.dir.join(static_name(runtime)));
            }
            Link::Driver => drop(cc.arg(self.driver_path())),
            Link::Hip => drop(cc.arg("-DSTANDIN_HIP").arg(self.dir.join(Library::Hip.soname()))),
            Link::Nccl => drop(cc.arg(self.dir.join(Library::Nccl.soname()))),
            // also for programs that look functions up by name and so have no references to either library
            Link::Both => {
                cc.arg("-Wl,--no-as-needed").arg(self.runtime_path()).arg(self.driver_path());
            }
        }
        cc.args(["-ldl", "-o"]).arg(self.dir.join(name));
        run(cc, name)
    }

    /// Builds a workload in C++.
    fn program(
        &self,
        name: &str,
        source: &str,
        defines: &[&str],
        libraries: &[PathBuf],
    ) -> Result<(), Error> {
        let mut cxx = self.compiler("CXX", "c++", &CXX_FLAGS);
        cxx.args(defines)
            .args(LINK_FLAGS)
            .arg("-pthread")
            .arg(self.source(&format!("workloads/{source}.cpp")))
            .args(libraries)
            .arg("-o")
            .arg(self.dir.join(name));
        run(cxx, name)
    }
}

fn static_name(library: Library) -> &'static str {
    match library {
        Library::Runtime(_) => "cudart_static.o",
        _ => "cuda_static.o",
    }
}

/// What a workload is linked with.
#[derive(Clone, Copy)]
enum Link {
    Nothing,
    Runtime,
    /// The runtime under the name that auditwheel gives it.
    Renamed,
    Static,
    Driver,
    Nccl,
    Hip,
    /// The runtime and the driver.
    Both,
}

fn run(mut command: Command, target: &str) -> Result<(), Error> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = match command.output() {
        Ok(output) => output,
        Err(source) => return Err(Error::Tool { tool, source }),
    };
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Compile { tool, target: target.to_owned(), stderr })
}
