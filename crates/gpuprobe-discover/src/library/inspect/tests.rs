use std::fs;

use super::*;
use crate::testing::{CODE_OFFSET, ElfBuilder};

const PUSH: [u8; 2] = [0x55, 0xc3];

fn names(library: &Library) -> Vec<&str> {
    library.functions.iter().map(|function| function.name.as_str()).collect()
}

fn inspected(builder: &ElfBuilder, name: &str) -> Vec<Library> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    builder.write(&path);
    inspect(&path, &path).unwrap()
}

fn runtime() -> ElfBuilder {
    STATIC_PROOFS.iter().fold(ElfBuilder::new(), |builder, name| builder.export(name, &PUSH))
}

fn static_program(count: usize) -> ElfBuilder {
    // push; mov dword [rdi], 12040; ret
    let version = [0x55, 0xc7, 0x07, 0x08, 0x2f, 0, 0, 0xc3];
    STATIC_PROOFS.iter().rev().take(count).fold(ElfBuilder::new(), |b, name| b.local(name, &version))
}

#[test]
fn a_shared_runtime_is_found_with_its_functions() {
    let builder = runtime().soname("libcudart.so.11.0").export("helper", &PUSH);
    let found = inspected(&builder, "libcudart-d0da41ae.so.11.8.89");
    assert_eq!(found.len(), 1);
    let library = &found[0];
    assert_eq!((library.kind, library.cuda_major), (Api::Runtime, Some(11)));
    assert_eq!(library.soname, "libcudart.so.11.0");
    assert!(!library.is_static);
    assert_eq!(names(library), STATIC_PROOFS);
    assert_eq!(library.functions[1].offset, CODE_OFFSET + 16, "a file offset, not an address");
    assert_eq!(library.functions[1].size, 2);
}

#[test]
fn hooked_functions_are_found_in_any_file_and_in_a_cuda_library() {
    let mut hooks = Hooks::default();
    let hook = |library: &str, function: &str| {
        format!("[[hook]]\nlibrary = \"{library}\"\nfunction = \"{function}\"\n")
    };
    let text = [hook("libmine.so*", "mine_*"), hook("libcudart*", "*"), hook("libcudart*", "cudaFree")];
    hooks.parse("h", &text.concat()).unwrap();
    let mut inspector = Inspector::with_hooks(Arc::new(hooks));
    let dir = tempfile::tempdir().unwrap();
    let mut found = |builder: &ElfBuilder, name: &str| {
        let path = dir.path().join(name);
        builder.write(&path);
        let of = |l: &Library| (l.kind, names(l).into_iter().map(str::to_owned).collect::<Vec<_>>());
        inspector.inspect(&path, &path).unwrap().libraries.iter().map(of).collect::<Vec<_>>()
    };
    let mine = ElfBuilder::new().export("mine_a", &PUSH).local("mine_b", &PUSH).export("other", &PUSH);
    let both = vec!["mine_a".to_owned(), "mine_b".to_owned()];
    assert_eq!(found(&mine, "libmine.so.1.2"), [(Api::Hook, both)], "also those that are not exported");
    assert_eq!(found(&mine, "libothers.so"), []);
    assert_eq!(found(&ElfBuilder::new().export("none", &PUSH), "libmine.so"), []);

    let runtime = runtime().soname("libcudart.so.12").export("helper", &PUSH);
    let [(Api::Runtime, cuda), (Api::Hook, hooked)] = &found(&runtime, "libcudart.so.12")[..] else {
        panic!("a library of CUDA with hooks")
    };
    assert_eq!(cuda, &STATIC_PROOFS);
    assert_eq!(hooked, &["cudaFree", "helper"], "functions of the catalogue must be named exactly");
    let seen: Vec<_> = inspector.hooked_files().iter().map(String::as_str).collect();
    assert_eq!(seen, ["libcudart.so.12", "libmine.so", "libmine.so.1.2"]);
}

#[test]
fn only_defined_functions_are_targets() {
    let builder = ElfBuilder::new()
        .export("cuInit", &PUSH)
        .raw("cuUndefined", 0x12, 0, 0x41000)
        .raw("cuZero", 0x12, 1, 0)
        .raw("cuObject", 0x11, 1, 0x41000)
        .raw("cuIndirect", 0x1a, 1, 0x41000)
        .raw("cuOutside", 0x12, 1, 0x9_0000);
    let found = inspected(&builder, "libcuda.so.1");
    assert_eq!(names(&found[0]), ["cuInit"]);
    assert_eq!(found[0].soname, "libcuda.so.1", "the file name if there is no SONAME");
}

#[test]
fn a_file_with_only_the_name_is_not_a_library() {
    let builder = ElfBuilder::new().soname("libcuda.so.1").export("cuteKitten", &PUSH);
    assert!(inspected(&builder, "libcuda.so.1").is_empty());
}

#[test]
fn the_soname_identifies_a_library_with_another_file_name() {
    assert_eq!(inspected(&runtime().soname("libcudart.so.12"), "copy.bin").len(), 1);
}

#[test]
fn a_linked_in_runtime_is_found_by_its_symbols() {
    let found = inspected(&static_program(5).interpreter("/lib/ld.so"), "train");
    assert_eq!(found.len(), 1);
    assert!(found[0].is_static);
    assert_eq!((found[0].soname.as_str(), found[0].cuda_major), ("libcudart_static", Some(12)));
    assert_eq!(found[0].functions.len(), 5);

    assert!(inspected(&static_program(3).interpreter("/lib/ld.so"), "wrapper").is_empty());
    assert!(inspected(&static_program(5), "libplain.so").is_empty(), "a library without GPU code");
    let gpu_library = || static_program(5).section(".nv_fatbin");
    assert_eq!(inspected(&gpu_library(), "libgpu.so").len(), 1);
    let importing = gpu_library().raw("__cudaRegisterFatBinary", 0x12, 0, 0);
    assert!(inspected(&importing, "libtorch_cuda.so").is_empty(), "its GPU code is registered elsewhere");
    let similar = gpu_library().raw("__cudaRegisterFatBinaryEnd", 0x12, 0, 0);
    assert_eq!(inspected(&similar, "libgpu.so").len(), 1, "the name of another function");
}

#[test]
fn a_program_with_a_stripped_runtime_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train");
    let causes = |builder: &ElfBuilder| {
        builder.write(&path);
        let scan = Inspector::new().inspect(&path, &path).unwrap();
        assert!(scan.libraries.is_empty());
        scan.skipped.iter().map(|skipped| skipped.cause).collect::<Vec<_>>()
    };
    let stripped = || ElfBuilder::new().section(".nv_fatbin");
    let program = || stripped().interpreter("/lib/ld.so");
    assert_eq!(causes(&program()), [Some(SkipCause::HiddenRuntime)]);
    let shared = program().raw("__cudaRegisterFatBinary", 0x12, 0, 0);
    assert_eq!(causes(&shared), [], "its runtime is a library");
    assert_eq!(causes(&stripped()), [], "a library such as cuBLAS");
    assert_eq!(causes(&ElfBuilder::new().interpreter("/lib/ld.so")), [], "no GPU code");
}

#[test]
fn a_file_can_contain_two_libraries() {
    let builder = static_program(5).section(".nv_fatbin").export("ncclGetVersion", &PUSH);
    let found = inspected(&builder, "libnccl.so.2");
    let kinds: Vec<_> = found.iter().map(|library| (library.kind, library.is_static)).collect();
    assert_eq!(kinds, [(Api::Nccl, false), (Api::Runtime, true)]);
}

#[test]
fn a_file_is_inspected_again_only_when_it_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libcudart.so.12");
    runtime().write(&path);
    let mut inspector = Inspector::new();
    inspector.inspect(&path, &path).unwrap();
    let link = dir.path().join("libcudart.so");
    fs::hard_link(&path, &link).unwrap();
    // Adding a link changes the stamp; from here on nothing does.
    inspector.inspect(&path, &path).unwrap();
    let before = inspector.contents.len();
    assert_eq!(inspector.inspect(&link, &link).unwrap().libraries[0].path, link);
    assert_eq!(inspector.contents.len(), before);
    runtime().export("cudaMemcpy", &PUSH).write(&path);
    assert_eq!(inspector.inspect(&path, &path).unwrap().libraries[0].functions.len(), 6);
}

#[test]
fn containers_of_one_image_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libcudart.so.12");
    runtime().write(&path);
    let seen_on = |dev, overlay| {
        let mut file = RegularFile::open(&path).unwrap();
        (file.id.dev, file.overlay) = (dev, overlay);
        file
    };
    let mut identities = Identities::default();
    let first = identities.of(&seen_on(50, true));
    assert_eq!(identities.of(&seen_on(51, true)), first);
    assert_eq!(identities.of(&seen_on(8, false)), first, "the host's own path to it");
    let mut identities = Identities::default();
    let first = identities.of(&seen_on(50, false));
    assert_ne!(identities.of(&seen_on(51, false)), first, "two disks can have the same numbers");

    let mut inspector = Inspector::new();
    let id_on = |inspector: &mut Inspector, dev| {
        let file = seen_on(dev, true);
        let contents = inspector.contents_of(&file, &path).unwrap();
        inspector.named(&contents.libraries[0], &file, &path, &path).id
    };
    let first = id_on(&mut inspector, 50);
    for inode in 0..CACHE_LIMIT as u64 {
        let mut other = seen_on(50, true);
        other.id.inode = inode;
        inspector.real_id(&other);
    }
    assert_eq!(id_on(&mut inspector, 51), first, "however many other files were seen meanwhile");
}

#[test]
fn a_forged_overlay_does_not_replace_the_functions_of_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let (forged, genuine) = (dir.path().join("forged/libcudart.so.12"), dir.path().join("libcudart.so.12"));
    runtime().write(&forged);
    runtime().export("cudaMemcpy", &PUSH).write(&genuine);
    let real = RegularFile::open(&genuine).unwrap();
    // an overlay over an attacker's file system, which can report any numbers
    let mut planted = RegularFile::open(&forged).unwrap();
    planted.overlay = true;
    (planted.id.dev, planted.id.inode, planted.stamp) = (50, real.id.inode, real.stamp);
    let mut inspector = Inspector::new();
    let functions = |inspector: &mut Inspector, file: &RegularFile, path: &Path| {
        inspector.contents_of(file, path).unwrap().libraries[0].functions.len()
    };
    assert_eq!(functions(&mut inspector, &planted, &forged), 5);
    assert_eq!(functions(&mut inspector, &real, &genuine), 6);
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libcuda.so\n.1");
    fs::write(&path, "no").unwrap();
    let text = inspect(&path, &path).unwrap_err().to_string();
    assert!(text.ends_with("libcuda.so\\n.1\": not an ELF file"), "{text}");
}

#[test]
fn programs_of_the_system_are_not_cuda() {
    for path in ["/bin/sh", "/proc/self/exe"] {
        assert!(inspect(Path::new(path), Path::new(path)).unwrap().is_empty());
    }
}

#[test]
fn files_that_are_no_longer_found_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let mut inspector = Inspector::new();
    let paths = [1, 2].map(|number| folder.path().join(format!("libcudart.so.{number}")));
    for path in &paths {
        runtime().write(path);
        inspector.inspect(path, path).unwrap();
    }
    assert_eq!(inspector.contents.len(), 2);
    let empty = crate::testing::FakeProc::new();
    inspector.of_processes(empty.path());
    assert_eq!(inspector.contents.len(), 2, "they were used since the last scan");
    inspector.inspect(&paths[0], &paths[0]).unwrap();
    inspector.of_processes(empty.path());
    assert_eq!(inspector.contents.len(), 1);
}
