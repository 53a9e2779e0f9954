use super::*;

fn taken(globs: &[&str], name: &str) -> bool {
    let globs: Vec<String> = globs.iter().map(|g| (*g).to_owned()).collect();
    let selection = Selection::from_globs(&globs, Layer::Both, &Hooks::default()).unwrap();
    catalogue().functions().iter().any(|f| f.name == name && selection.selects(f))
}

#[test]
fn hot_functions_are_not_selected_by_default() {
    assert!(taken(&[], "cudaMalloc"));
    assert!(!taken(&[], "cudaGetDevice"));
    assert!(!taken(&[], "nvmlInit_v2"));
    assert!(taken(&["*"], "cudaGetDevice"));
    assert!(taken(&["nvml*"], "nvmlInit_v2"));
}

#[test]
fn internal_functions_are_selected_by_name_and_otherwise_probed_only_for_kernel_names() {
    let collected = |globs: &[&str], name: &str| {
        let globs: Vec<String> = globs.iter().map(|g| (*g).to_owned()).collect();
        let selection = Selection::from_globs(&globs, Layer::Both, &Hooks::default()).unwrap();
        let f = catalogue().functions().iter().find(|f| f.name == name).unwrap();
        let is_probed = selection.selects(f) || selection.is_state_only(f);
        is_probed.then(|| selection.collect(f.id, Collect::Stream))
    };
    assert_eq!(collected(&[], "__cudaRegisterFunction"), Some(Collect::StateOnly));
    assert_eq!(collected(&[], "__cudaGetKernel"), Some(Collect::StateOnly));
    for name in ["__cudaRegisterFatBinary", "__cudaRegisterVar", "__cudaPushCallConfiguration"] {
        assert_eq!(collected(&[], name), None, "{name}");
        assert_eq!(collected(&["__cuda*"], name), Some(Collect::Stream), "{name}");
        assert_eq!(collected(&["*"], name), Some(Collect::Stream), "{name}");
    }
    assert_eq!(collected(&["!cudaFree"], "__cudaRegisterFunction"), Some(Collect::StateOnly));
    assert_eq!(collected(&["cudaMalloc"], "__cudaRegisterFunction"), None, "no launches, no names");
}

#[test]
fn a_layer_leaves_out_the_other_one_and_keeps_other_libraries() {
    let names = |globs: &[&str], layer| {
        let globs: Vec<String> = globs.iter().map(|g| (*g).to_owned()).collect();
        let selection = Selection::from_globs(&globs, layer, &Hooks::default())?;
        let selects =
            |name: &str| catalogue().functions().iter().any(|f| f.name == name && selection.selects(f));
        anyhow::Ok(["cudaMalloc", "cuMemAlloc_v2", "ncclAllReduce"].map(selects))
    };
    assert_eq!(names(&[], Layer::Both).unwrap(), [true, true, true]);
    assert_eq!(names(&[], Layer::Driver).unwrap(), [false, true, true]);
    assert_eq!(names(&[], Layer::Runtime).unwrap(), [true, false, true]);
    let error = names(&["cudaMalloc"], Layer::Driver).unwrap_err().to_string();
    assert_eq!(error, "no function of this --layer matches cudaMalloc");
    let register = catalogue().functions().iter().find(|f| f.name == "__cudaRegisterFunction").unwrap();
    let names_kernels =
        |layer| Selection::from_globs(&[], layer, &Hooks::default()).unwrap().is_state_only(register);
    assert!(names_kernels(Layer::Both) && !names_kernels(Layer::Driver), "it names handles of the runtime");
}

#[test]
fn exclusions_take_precedence() {
    assert!(!taken(&["!cudaMalloc"], "cudaMalloc"));
    assert!(taken(&["!cudaMalloc"], "cudaFree"));
    assert!(!taken(&["cuda*", "!cudaMem*"], "cudaMemcpy"));
    assert!(!taken(&["cuda*"], "cuMemAlloc_v2"));
}

#[test]
fn the_essential_functions_are_in_the_catalogue() {
    for base in Api::Driver.row().essential {
        assert!(catalogue().functions().iter().any(|f| f.base == *base), "{base}");
    }
    let few = Selection::from_globs(&[], Layer::Both, &Hooks::default()).unwrap().on(Tier::Perf);
    let taken = |selection: &Selection| {
        let of_cuda = catalogue().functions().iter().filter(|f| f.api.row().vendor.title == "CUDA");
        of_cuda.filter(|f| selection.selects(f)).count()
    };
    assert!(taken(&few) < 70, "{}", taken(&few));
    let named =
        Selection::from_globs(&["cuda*".to_owned()], Layer::Both, &Hooks::default()).unwrap().on(Tier::Perf);
    assert!(taken(&named) > 400, "named functions are selected");

    let daemon = |named| {
        let classes = vec![Class::Alloc, Class::Free, Class::Memcpy, Class::Launch, Class::Context];
        let failures = RuntimeFailures::Rare;
        Selection::Driver { classes, named, few: false, failures, entry_counted: Vec::new() }.on(Tier::Perf)
    };
    let (few, named) = (daemon(false), daemon(true));
    assert!(few.is_reduced() && taken(&few) < 80, "{}", taken(&few));
    assert!(!named.is_reduced() && taken(&named) > 150, "{}", taken(&named));
    let selects = |name: &str| few.selects(catalogue().lookup(Api::Driver, None, name).unwrap());
    assert!(["cuMemAllocFromPoolAsync", "cuMemFree_v2", "cuLaunchKernel"].iter().all(|name| selects(name)));
    assert!(
        !selects("cuMemcpyAtoA_v2") && !selects("cuStreamSynchronize"),
        "essential, but of another class"
    );
}

#[test]
fn references_to_memory_objects_are_followed_where_allocations_are_selected() {
    let collected = |globs: &[&str], name: &str| {
        let globs: Vec<String> = globs.iter().map(|g| (*g).to_owned()).collect();
        let selection = Selection::from_globs(&globs, Layer::Both, &Hooks::default()).unwrap();
        let f = catalogue().lookup(Api::OpenCl, None, name).unwrap();
        let is_probed = selection.selects(f) || selection.is_state_only(f);
        is_probed.then(|| selection.collect(f.id, Collect::Stream))
    };
    assert_eq!(collected(&[], "clRetainMemObject"), Some(Collect::Stream));
    assert_eq!(collected(&["clCreateBuffer"], "clRetainMemObject"), Some(Collect::StateOnly));
    assert_eq!(collected(&["clCreateBuffer"], "clCreateSubBuffer"), Some(Collect::StateOnly));
    assert_eq!(collected(&["clFinish"], "clRetainMemObject"), None);
    assert_eq!(collected(&[], "clSetKernelArg"), None);
}

#[test]
fn a_daemon_counts_communicators_but_no_collectives() {
    let classes = crate::cmd::daemon::EVERYTHING.to_vec();
    let daemon = |tier| {
        Selection::Driver {
            classes: classes.clone(),
            named: false,
            few: false,
            failures: RuntimeFailures::Rare,
            entry_counted: Vec::new(),
        }
        .on(tier)
    };
    let selects = |tier, api, name: &str| daemon(tier).selects(catalogue().lookup(api, None, name).unwrap());
    assert!(selects(Tier::Session, Api::Nccl, "ncclCommInitRank"));
    assert!(!selects(Tier::Session, Api::Nccl, "ncclAllReduce"));
    assert!(!selects(Tier::Perf, Api::Nccl, "ncclCommInitRank"), "each probe takes long there");
    for name in ["cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpyDtoH_v2"] {
        assert!(selects(Tier::Session, Api::Driver, name) && selects(Tier::Perf, Api::Driver, name));
    }
}

#[test]
fn a_daemon_probes_an_operation_in_one_layer() {
    let probed = |failures, tier, name: &str| {
        let f = catalogue().lookup(Api::Runtime, Some(12), name).unwrap();
        let classes = crate::cmd::daemon::EVERYTHING.to_vec();
        let (named, few, entry_counted) = (false, false, Vec::new());
        let daemon = Selection::Driver { classes, named, few, failures, entry_counted }.on(tier);
        daemon.selects(f) || daemon.is_state_only(f) || daemon.needed_for_failures(f)
    };
    use RuntimeFailures::{None, Rare, WithMemory};
    for name in ["cudaMalloc", "cudaFree", "cudaMallocHost", "cudaMemcpy", "cudaMemset"] {
        let in_all = [None, Rare, WithMemory].map(|failures| probed(failures, Tier::Session, name));
        assert_eq!(in_all, [false, false, true], "{name}");
        assert!(!probed(WithMemory, Tier::Perf, name), "each probe takes long there: {name}");
    }
    assert!(probed(Rare, Tier::Session, "cudaHostRegister"));
    for name in ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaDeviceSynchronize"] {
        assert!(!probed(WithMemory, Tier::Session, name), "{name}");
    }
}

#[test]
fn runtime_functions_whose_calls_are_not_probed_have_failure_points() {
    let has_point = |failures, tier, name: &str| {
        let classes = crate::cmd::daemon::EVERYTHING.to_vec();
        let (named, few, entry_counted) = (false, false, Vec::new());
        let daemon = Selection::Driver { classes, named, few, failures, entry_counted }.on(tier);
        daemon.failure_point(&runtime(), name).is_some()
    };
    use RuntimeFailures::{None, Rare, WithMemory};
    for name in ["cudaMalloc", "cudaFree", "cudaMemcpy", "cudaMemset"] {
        let in_all = [None, Rare, WithMemory].map(|failures| has_point(failures, Tier::Session, name));
        assert_eq!(in_all, [false, true, false], "{name}");
        assert!(has_point(Rare, Tier::Multi, name) && !has_point(Rare, Tier::Perf, name), "{name}");
    }
    for name in ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaDeviceSynchronize"] {
        assert!(has_point(WithMemory, Tier::Session, name), "{name}");
    }
    for name in ["cudaHostRegister", "cudaSetDevice", "cudaGetLastError", "cudaEventQuery", "cuMemAlloc_v2"] {
        assert!(!has_point(Rare, Tier::Session, name), "{name}");
    }
    let globs = Selection::from_globs(&[], Layer::Both, &Hooks::default()).unwrap();
    assert!(globs.failure_point(&runtime(), "cudaMalloc").is_none(), "its calls are probed");
}

fn runtime() -> Library {
    let path = std::path::PathBuf::from("/x/libcudart.so.12");
    Library {
        path: path.clone(),
        open_path: path,
        id: gpuprobe_discover::FileId { dev: 1, inode: 7 },
        opened: None,
        kind: Api::Runtime,
        soname: String::new(),
        cuda_major: Some(12),
        is_static: false,
        is_behind_loader: false,
        may_stall: false,
        functions: Vec::new(),
    }
}

#[test]
fn gpu_ops_are_followed_by_state_only_probes() {
    let of = |glob: &str, tier| {
        Selection::from_globs(&[glob.to_owned()], Layer::Both, &Hooks::default())
            .unwrap()
            .following_gpu_ops()
            .on(tier)
    };
    let driver = |name: &str| catalogue().lookup(Api::Driver, None, name).unwrap();
    let follows = |selection: &Selection, name: &str| {
        let f = driver(name);
        !selection.selects(f) && (selection.needed_for_gpu_ops(f) || selection.needed_for_addresses(f))
    };
    let launches = of("cudaLaunchKernel", Tier::Session);
    assert!(follows(&launches, "cuStreamBeginCapture_v2") && !follows(&launches, "cuMemAlloc_v2"));
    assert!(!follows(&launches, "cuGraphInstantiateWithFlags"), "graph launches are not selected");
    assert!(follows(&of("cudaGraphLaunch", Tier::Session), "cuGraphInstantiateWithFlags"));
    let copies = of("cudaMemcpy*", Tier::Session);
    assert!(["cuMemcpyHtoD_v2", "cuMemAlloc_v2", "cuMemMap"].iter().all(|name| follows(&copies, name)));
    assert!(!follows(&copies, "cuMemSetAccess") && !follows(&copies, "cuStreamSynchronize"));
    assert!(!follows(&of("cudaMemcpy*", Tier::Perf), "cuMemcpyHtoD_v2"));
    assert!(!follows(&of("cudaMalloc", Tier::Session), "cuStreamBeginCapture_v2"));
    let few = Selection::from_globs(&[], Layer::Both, &Hooks::default())
        .unwrap()
        .following_gpu_ops()
        .on(Tier::Perf);
    assert!(few.selects(driver("cuStreamBeginCapture_v2")) && few.selects(driver("cuMemHostRegister_v2")));
    let traced =
        Selection::from_globs(&["cudaLaunchKernel".to_owned()], Layer::Both, &Hooks::default()).unwrap();
    assert!(!follows(&traced, "cuStreamBeginCapture_v2"), "`trace` does not need it");
}

#[test]
fn invalid_globs_and_globs_without_a_match_are_refused() {
    let error = |glob: &str| {
        Selection::from_globs(&[glob.to_owned()], Layer::Both, &Hooks::default()).unwrap_err().to_string()
    };
    assert!(error("vulkan*").contains("gpuprobe list"));
    assert!(error("cudaMalocManaged").contains("did you mean cudaMallocManaged?"));
    assert!(error("cumemaloc*").contains("did you mean cuMemAlloc, "), "{}", error("cumemaloc*"));
    assert!(error("CUDAFREE").contains("cudaFree"));
    assert!(error("[").contains("is not a valid glob"));
    assert!(error("cudaMalloc,cudaFree").contains("can be repeated"));

    let second = |glob: &str| {
        let globs = ["cudaFree".to_owned(), glob.to_owned()];
        Selection::from_globs(&globs, Layer::Both, &Hooks::default()).unwrap_err().to_string()
    };
    assert!(second("cudaMaloc").contains("`cudaMaloc`: did you mean cudaMalloc, "), "one of several");
    assert!(second("!cudaMaloc").contains("did you mean cudaMalloc, "), "it would exclude nothing");
    assert!(second("!cuda*").contains("excluded again"));
}
