use super::parse_tables::base_name;
use super::vendor::VENDORS;
use super::*;
use crate::table::lines;

fn function(api: Api, major: u32, name: &str) -> &'static Function {
    catalogue().lookup(api, Some(major), name).unwrap()
}

fn locations(f: &Function, aarch64: bool) -> Vec<String> {
    let location = |a: &Arg| if aarch64 { a.aarch64 } else { a.x86_64 };
    f.args.as_ref().unwrap().iter().map(|a| location(a).describe(aarch64)).collect()
}

#[test]
fn every_row_of_every_table_parses() {
    let expected: usize = Api::ALL.into_iter().map(|api| lines(api.row().functions).count()).sum();
    assert_eq!(catalogue().functions().len(), expected);
    for (i, f) in catalogue().functions().iter().enumerate() {
        assert_eq!(f.id.0 as usize, i, "{} is not at its own index", f.name);
    }
}

#[test]
fn every_role_names_an_argument_and_every_name_in_roles_exists() {
    for line in VENDORS.iter().flat_map(|vendor| lines(vendor.roles)) {
        if line.starts_with('[') {
            let class = line.trim_matches(['[', ']']);
            assert!(Class::from_name(class).is_some(), "unknown class {class}");
            continue;
        }
        let (name, words) = line.split_once(' ').unwrap_or((line, ""));
        let rows: Vec<_> = catalogue().functions().iter().filter(|f| f.base == name).collect();
        assert!(!rows.is_empty(), "roles.tbl has {name}, which no table has");
        let values = ["elem", "space", "direction", "op", "scope", "jumps_to"];
        let is_result = |value| value == "return";
        for (role, value) in words.split(' ').filter_map(|w| w.split_once('=')) {
            if values.contains(&role) || is_result(value) {
                continue;
            }
            for argument in value.split(':').next().unwrap().split(',') {
                let found = rows.iter().any(|f| f.args.iter().flatten().any(|a| a.name == argument));
                assert!(found, "{name}: {role}={argument} names no argument");
            }
        }
    }
}

#[test]
fn error_tables_are_whole() {
    let table = |name| catalogue().enum_table(name).unwrap();
    assert_eq!(table("cudaError_t").values().len(), 139);
    assert_eq!(table("CUresult").values().len(), 106);
    assert_eq!(table("cudaError_t").name_of(2), Some("cudaErrorMemoryAllocation"));
    assert_eq!(table("CUresult").name_of(2), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(table("cudaError_t").name_of(35), Some("cudaErrorInsufficientDriver"));
    assert_eq!(table("cudaError_t").name_of(700), Some("cudaErrorIllegalAddress"));
    assert_eq!(table("CUresult").name_of(719), Some("CUDA_ERROR_LAUNCH_FAILED"));
    assert_eq!(table("cudaError_t").name_of(123_456), None);
}

#[test]
fn copy_kinds_have_the_numbers_of_the_header() {
    let kinds = catalogue().enum_table("cudaMemcpyKind").unwrap();
    let names: Vec<_> = kinds.values().iter().map(|v| kinds.name_of(v.0).unwrap()).collect();
    assert_eq!(names, ["H2H", "H2D", "D2H", "D2D", "Default"]);
    let header: Vec<_> = kinds.values().iter().map(|v| v.1).collect();
    assert_eq!(header[1], "cudaMemcpyHostToDevice");
    assert_eq!(header[2], "cudaMemcpyDeviceToHost");
}

#[test]
fn launch_arguments_are_where_a_real_library_takes_them() {
    let f = function(Api::Runtime, 12, "cudaLaunchKernel");
    assert_eq!(locations(f, false), ["rdi", "rsi+rdx", "rcx+r8", "r9", "[rsp+8]", "[rsp+16]"]);
    assert_eq!(locations(f, true), ["x0", "x1+x2", "x3+x4", "x5", "x6", "x7"]);
    let f = function(Api::Driver, 12, "cuLaunchKernel");
    let stack = ["[rsp+8]", "[rsp+16]", "[rsp+24]", "[rsp+32]", "[rsp+40]"];
    assert_eq!(locations(f, false)[..6], ["rdi", "rsi", "rdx", "rcx", "r8", "r9"]);
    assert_eq!(locations(f, false)[6..], stack);
    assert_eq!(locations(f, true)[8..], ["[sp+0]", "[sp+8]", "[sp+16]"]);
}

#[test]
fn large_structs_go_to_memory_and_a_hidden_result_shifts_registers() {
    let f = function(Api::Runtime, 12, "cudaIpcOpenMemHandle");
    assert_eq!(locations(f, false), ["rdi", "[rsp+8]", "rsi"]);
    assert_eq!(locations(f, true), ["x0", "*x1", "x2"]);
    let f = function(Api::Runtime, 12, "cudaCreateChannelDesc");
    assert_eq!(locations(f, false), ["rsi", "rdx", "rcx", "r8", "r9"]);
    assert_eq!(locations(f, true), ["x0", "x1", "x2", "x3", "x4"]);
}

#[test]
fn a_name_that_changed_between_majors_has_the_signature_of_its_library() {
    let old = function(Api::Runtime, 12, "cudaMemPrefetchAsync");
    let new = function(Api::Runtime, 13, "cudaMemPrefetchAsync");
    assert_eq!(old.args.as_ref().unwrap()[2].name, "dstDevice");
    assert_eq!(new.args.as_ref().unwrap()[2].name, "location");
    let unknown = catalogue().lookup(Api::Runtime, Some(99), "cudaMemPrefetchAsync").unwrap();
    assert_eq!(unknown.id, new.id, "a library newer than the tables is read by the newest signature");
}

#[test]
fn versions_and_variants() {
    assert_eq!(base_name("hipStreamGetCaptureInfo_v2_spt"), "hipStreamGetCaptureInfo");
    assert_eq!(base_name("hipGetDevicePropertiesR0600"), "hipGetDeviceProperties");
    assert_eq!(base_name("_Z23hipDestroySurfaceObjectP13__hip_surface"), "hipDestroySurfaceObject");
    assert_eq!(base_name("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE").get(..4), Some("_ZN3"));
    assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
    assert_eq!(base_name("cuMemcpyHtoD_v2_ptds"), "cuMemcpyHtoD");
    assert_eq!(base_name("cudaLaunchKernel_ptsz"), "cudaLaunchKernel");
    assert_eq!(base_name("cudaGraph_void"), "cudaGraph_void");
    let version_in = |ranges, version| Api::Runtime.row().vendor.version_in(ranges, version);
    assert!(version_in("11.8,12.4-13.0", "12.8"));
    assert!(!version_in("11.8,12.4-13.0", "12.0"));
    assert!(!version_in("-", "12.0"));
    assert_eq!(catalogue().exports(Api::Runtime, "12.9").count(), 435);
    assert_eq!(catalogue().exports(Api::Runtime, "13.4").count(), 458);
}

#[test]
fn allocations_have_roles() {
    let f = function(Api::Driver, 12, "cuMemAlloc_v2");
    assert_eq!((f.class, f.roles.out, f.roles.size), (Class::Alloc, Some(0), Some(1)));
    assert_eq!(f.roles.space, Some(Space::Device));
    assert_eq!(function(Api::Runtime, 12, "cudaMallocAsync").roles.space, Some(Space::Pool));
    assert!(function(Api::Runtime, 12, "cudaGetDevice").hot);
    assert_eq!(function(Api::Runtime, 12, "__cudaLaunchKernel").roles.jumps_to, Some("cudaLaunchKernel"));
    let memset = function(Api::Driver, 12, "cuMemsetD32_v2");
    assert_eq!(memset.roles.elem, 4);
}

#[test]
fn reports_of_tensors_have_their_figures_in_registers() {
    let rows = catalogue().functions().iter().filter(|f| f.api == Api::Framework);
    for f in rows.inspect(|f| assert_eq!(f.class, Class::Tensor)) {
        let figures = [f.roles.size, f.roles.in_use, f.roles.reserved, f.roles.device];
        assert!(figures.iter().all(Option::is_some), "{}", f.name);
        assert_eq!(f.roles.op == Some("change"), f.roles.ptr.is_some(), "{}", f.name);
        assert!(locations(f, false).iter().all(|at| at.starts_with('r')), "{}", f.name);
        assert!(locations(f, true).iter().all(|at| at.starts_with('x')), "{}", f.name);
    }
}

#[test]
fn names_need_no_escapes_in_a_trace() {
    let is_plain = |name: &str| name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\');
    let of_vendors = VENDORS.iter().flat_map(|vendor| [vendor.enums, vendor.structs]);
    let tables: Vec<_> = Api::ALL.into_iter().map(|api| api.row().functions).chain(of_vendors).collect();
    for line in tables.iter().flat_map(|table| table.lines()).filter(|line| !line.starts_with('#')) {
        assert!(is_plain(line), "{line}");
    }
}
