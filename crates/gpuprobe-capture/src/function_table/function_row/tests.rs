use gpuprobe_event::{FunctionId, Hooks, catalogue, driver};

use super::*;

#[test]
fn records_of_linux_functions_have_room_for_the_described_arguments() {
    let row = |point: &str, args: &str| {
        let mut hooks = Hooks::default();
        hooks.parse("h", &format!("[[hook]]\n{point}\nargs = [{args}]")).unwrap();
        let signature = &hooks.linux()[0].signature;
        let result = if point.starts_with("kernel") { ResultKind::Errno } else { ResultKind::Moment };
        let function = driver::function_row(FunctionId(1), "f", (result, WIDE), Some(signature));
        let row = linux_function_row(&function, Collect::Stream);
        (row.stack_words, usize::from(row.record_bytes), row.flags)
    };
    let flags = number::FUNCTION_STREAM | number::FUNCTION_STATUS | number::FUNCTION_WIDE;
    let function = "kernel = true\nfunction = \"f\"";
    assert_eq!(row(function, "\"a:u64\""), (0, offset_of!(gp_call, out), flags));
    let with_text = (0, offset_of!(gp_call, pointee) + MAX_POINTEE, flags | number::FUNCTION_TEXT);
    assert_eq!(row(function, "\"a:u64\", \"b:str\""), with_text);
    let many: Vec<_> = (0..8).map(|n| format!("\"a{n}:u64\"")).collect();
    let (words, bytes, _) = row("tracepoint = \"g:t\"", &many.join(","));
    assert_eq!((words, bytes), (8, offset_of!(gp_call, stack) + 2 * 8));
}

fn of(api: Api, name: &str) -> gp_function {
    row(catalogue().lookup(api, Some(12), name).unwrap(), Collect::Stream, CountedOps::default())
}

fn register(index: u8) -> gp_arg_loc {
    gp_arg_loc { kind: number::ARG_IN_REGISTER, index }
}

fn same(a: gp_arg_loc, b: gp_arg_loc) -> bool {
    (a.kind, a.index) == (b.kind, b.index)
}

#[test]
fn an_allocation_reads_its_pointer_and_its_size() {
    let row = of(Api::Driver, "cuMemAlloc_v2");
    assert_eq!((row.action, row.size_rule, row.outs), (number::ACTION_ALLOC, number::SIZE_ARGUMENT, 1));
    assert!(same(row.size_a, register(1)) && same(row.out[0].loc, register(0)));
    assert_eq!(usize::from(row.record_bytes), offset_of!(gp_call, out) + 8);
}

#[test]
fn a_hook_returns_its_pointer_as_result_or_through_an_argument() {
    let rows = |text: &str| {
        let mut hooks = gpuprobe_event::Hooks::default();
        hooks.parse("h", &format!("[[hook]]\nlibrary = \"l\"\nfunction = \"f\"\n{text}")).unwrap();
        let f = hooks.libraries()[0].signature.row(gpuprobe_event::FunctionId(0), Api::Hook, "f");
        row(&f, Collect::Stream, CountedOps::default())
    };
    let by_result =
        rows("class = \"alloc\"\nargs = [\"n:size\", \"e:out_i32\"]\nreturns = \"ptr\"\nerror = \"e\"");
    assert_eq!((by_result.action, by_result.outs, by_result.out[0].bytes), (number::ACTION_ALLOC, 1, 4));
    let returned = number::FUNCTION_OUTPUT_IS_RESULT | number::FUNCTION_ERROR_IS_OUT;
    assert_eq!(by_result.flags & (returned | number::FUNCTION_STATUS), returned);

    let by_argument = rows(
        "class = \"alloc\"\nargs = [\"n:size\", \"p:out_ptr\", \"other:out_u32\"]\nreturns = \"status\"",
    );
    assert_eq!(
        (by_argument.outs, by_argument.out[0].bytes, by_argument.out[1].bytes),
        (2, 8, 4),
        "the address is the first"
    );
    assert!(same(by_argument.out[0].loc, register(1)) && same(by_argument.out[1].loc, register(2)));
    assert_eq!(by_argument.flags & returned, 0);

    let named = rows("args = [\"k:str\"]\nreturns = \"ptr\"\nnames = \"return\"");
    let expected = number::FUNCTION_OUTPUT_IS_RESULT | number::FUNCTION_NAMES;
    assert_eq!(named.flags & expected, expected);
    let launch = rows("class = \"launch\"\nargs = [\"q:ptr\", \"k:ptr\"]\nlaunches = \"k\"");
    assert!(same(launch.cuda_kernel, register(1)) && launch.flags & number::FUNCTION_LAUNCH == 0);
}

#[test]
fn the_table_has_a_row_for_every_function_of_the_catalogue() {
    assert_eq!(number::FUNCTIONS, catalogue::MOST_FUNCTIONS);
}

#[test]
fn pitched_memory_is_pitch_times_rows() {
    let row = of(Api::Runtime, "cudaMallocPitch");
    assert_eq!((row.size_rule, row.outs), (number::SIZE_PITCH, 2));
    assert!(same(row.size_a, register(3)));
    let row = of(Api::Runtime, "cudaMalloc3D");
    assert_eq!((row.size_rule, row.outs, row.stack_words), (number::SIZE_PITCH, 2, 3));
    assert_eq!((row.size_a.index, row.size_b.index), (1, 2));
}

#[test]
fn a_copy_of_rows_is_width_times_height_and_a_memset_counts_elements() {
    let row = of(Api::Runtime, "cudaMemcpy2D");
    assert_eq!((row.action, row.size_rule), (number::ACTION_MOVE, number::SIZE_PRODUCT));
    assert!(same(row.size_a, register(4)) && same(row.size_b, register(5)));
    assert_eq!(of(Api::Driver, "cuMemsetD32_v2").size_scale, 4);
}

#[test]
fn every_copy_and_memset_has_a_size() {
    let moves = |f: &&Function| matches!(f.class, Class::Memcpy | Class::Memset);
    for f in catalogue().functions().iter().filter(moves) {
        let row = row(f, Collect::Stream, CountedOps::default());
        assert!(row.size_rule != 0 && row.size_a.kind != 0, "{}", f.name);
        let has_list = f.roles.count.is_some();
        let is_of_list = matches!(row.size_rule, number::SIZE_BOX | number::SIZE_LIST);
        assert!(!has_list || (is_of_list && row.size_b.kind != 0), "{}", f.name);
        assert_eq!(row.extent.stride != 0, row.size_rule == number::SIZE_BOX, "{}", f.name);
    }
}

#[test]
fn registered_host_memory_is_keyed_by_its_argument() {
    let row = of(Api::Runtime, "cudaHostRegister");
    assert_eq!(row.action, number::ACTION_ALLOC);
    assert_ne!(row.flags & number::FUNCTION_POINTER_IS_ARGUMENT, 0);
    assert_eq!(of(Api::Runtime, "cudaHostUnregister").action, number::ACTION_FREE);
}

#[test]
fn every_record_fits() {
    for f in catalogue().functions() {
        let row = row(
            f,
            Collect::Count,
            CountedOps {
                launches: true,
                copies: true,
                device_calls: true,
                rows: false,
                annotate_records: true,
                call_sites: true,
                samples_launch_returns: false,
            },
        );
        assert!(usize::from(row.record_bytes) <= size_of::<gp_call>(), "{}", f.name);
    }
}

#[test]
fn launches_copies_and_waits_take_a_call_site_if_they_are_streamed_and_it_is_asked_for() {
    let takes = |name: &str, collect, call_sites| {
        let counted = CountedOps { call_sites, ..CountedOps::default() };
        let function = catalogue().lookup(Api::Runtime, Some(12), name).unwrap();
        row(function, collect, counted).flags & number::FUNCTION_TAKES_SITE != 0
    };
    for name in
        ["cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemset", "cudaDeviceSynchronize"]
    {
        assert!(takes(name, Collect::Stream, true), "{name}");
        assert!(!takes(name, Collect::Stream, false) && !takes(name, Collect::Count, true), "{name}");
    }
    // allocations have one anyway, and a free has that of its allocation
    assert!(!takes("cudaMalloc", Collect::Stream, true) && !takes("cudaFree", Collect::Stream, true));
}

#[test]
fn a_report_of_a_tensor_is_read_from_its_arguments() {
    let f = catalogue().functions().iter().find(|f| f.roles.op == Some("change")).unwrap();
    let row = row(f, Collect::Tensors, CountedOps::default());
    assert_eq!(
        (row.memory_op, row.flags, row.action),
        (number::MEMORY_TENSOR_CHANGE, 0, number::ACTION_NOTHING)
    );
    let arguments = [row.pointer, row.size_a, row.in_use, row.reserved_bytes, row.device];
    for (index, argument) in (0u8..).zip(arguments) {
        assert!(same(argument, register(index)), "argument {index}");
    }
}

#[test]
fn returns_are_sampled_of_launches_of_one_kernel_that_are_counted_or_recorded() {
    let samples = |name: &str, collect, rows| {
        let counted =
            CountedOps { launches: true, rows, samples_launch_returns: true, ..CountedOps::default() };
        let function = catalogue().lookup(Api::Driver, None, name).unwrap();
        row(function, collect, counted).flags & number::FUNCTION_SAMPLES_RETURNS != 0
    };
    assert!(
        samples("cuLaunchKernel", Collect::Count, true) && samples("cuLaunchKernelEx", Collect::Count, true)
    );
    assert!(
        samples("cuLaunchKernel", Collect::Stream, false)
            && samples("cuLaunchKernelEx", Collect::Stream, false)
    );
    assert!(!samples("cuLaunchKernel", Collect::CountAndStream, true), "counts and records are compared");
    assert!(!samples("cuLaunchCooperativeKernelMultiDevice", Collect::Count, true), "several kernels");
    let counted = CountedOps { launches: true, samples_launch_returns: true, ..CountedOps::default() };
    let of_loader = catalogue().lookup(Api::OpenCl, None, "clEnqueueNDRangeKernel").unwrap();
    let flags = row(of_loader, Collect::Stream, counted).flags;
    assert_eq!(flags & number::FUNCTION_SAMPLES_RETURNS, 0, "the vendor's launch is found inside of it");
    assert!(
        !samples("cuGraphLaunch", Collect::Count, true) && !samples("cuMemAlloc_v2", Collect::Count, true)
    );
}

#[test]
fn functions_of_opencl_use_objects_and_have_sizes_in_lists() {
    let launch = of(Api::OpenCl, "clEnqueueNDRangeKernel");
    let has = |row: &gp_function, flag: u32| row.flags & flag != 0;
    assert!(has(&launch, number::FUNCTION_SIZES) && !has(&launch, number::FUNCTION_LAUNCH));
    let locs = [launch.size_a, launch.pointee, launch.size_b].map(|loc| (loc.kind, loc.index));
    assert_eq!(locs, [2, 4, 5].map(|register| (number::ARG_IN_REGISTER, register)));
    assert_eq!(launch.pointee_bytes, 48);
    let create = of(Api::OpenCl, "clCreateBuffer");
    let made = number::FUNCTION_OBJECT | number::FUNCTION_OUTPUT_IS_RESULT | number::FUNCTION_ERROR_IS_OUT;
    assert_eq!((create.action, create.flags & made), (number::ACTION_ALLOC, made));
    let release = of(Api::OpenCl, "clReleaseMemObject");
    assert_eq!(release.action, number::ACTION_FREE);
    assert!(has(&release, number::FUNCTION_OBJECT) && has(&release, number::FUNCTION_STATUS));
    assert_eq!(of(Api::OpenCl, "clRetainMemObject").memory_op, number::MEMORY_RETAIN_OBJECT);
    assert_eq!(of(Api::OpenCl, "clCreateSubBuffer").memory_op, number::MEMORY_SHARE_OBJECT);
    assert_eq!(of(Api::OpenCl, "clCreateImage").size_rule, number::SIZE_IMAGE);
    let svm = of(Api::OpenCl, "clSVMAlloc");
    assert!(!has(&svm, number::FUNCTION_OBJECT) && svm.action == number::ACTION_ALLOC);
    let read = of(Api::OpenCl, "clEnqueueReadImage");
    assert_eq!((read.size_rule, read.extent.dimensions), (number::SIZE_BOX, 3));
    assert!(has(&read, number::FUNCTION_OBJECT) && has(&read, number::FUNCTION_ASYNC));
    assert!(
        !has(&of(Api::OpenCl, "clEnqueueReadBufferRect"), number::FUNCTION_OBJECT),
        "its regions are bytes"
    );
    let info = of(Api::OpenCl, "clGetKernelInfo");
    assert!(has(&info, number::FUNCTION_NAMES) && info.named_if == 0x1190);
}

#[test]
fn functions_of_cuda_use_no_objects() {
    let flags = number::FUNCTION_OBJECT | number::FUNCTION_SIZES | number::FUNCTION_MAY_REPEAT;
    for f in catalogue().functions().iter().filter(|f| f.api.row().vendor.title == "CUDA") {
        assert_eq!(row(f, Collect::Stream, CountedOps::default()).flags & flags, 0, "{}", f.name);
    }
}

#[test]
fn a_kernel_of_level_zero_has_its_name_in_a_struct_and_not_ready_is_an_answer() {
    let create = of(Api::LevelZero, "zeKernelCreate");
    let flags = number::FUNCTION_NAMES | number::FUNCTION_OBJECT | number::FUNCTION_HANDLE_IS_OUT;
    assert_eq!(create.flags & flags, flags);
    assert_eq!((create.name.index, create.name_at, create.answer), (1, 24, 1));
    let launch = of(Api::LevelZero, "zeCommandListAppendLaunchKernel");
    assert_eq!((launch.cuda_kernel.index, launch.pointee.index, launch.pointee_bytes), (1, 2, 12));
    assert_eq!([Api::Driver, Api::Hip].map(|api| api.row().answers), [[600], [600]]);
    assert_eq!(of(Api::Driver, "cuStreamQuery").answer, 600);
}
