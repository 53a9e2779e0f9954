use super::*;
use crate::{Api, catalogue};

fn function(api: Api, major: u32, name: &str) -> &'static Function {
    catalogue().lookup(api, Some(major), name).unwrap()
}

fn show(f: &Function, words: &Words<'_>) -> Vec<(String, Value)> {
    arguments(f, words).unwrap().into_iter().map(|(n, v)| (n.into_owned(), v)).collect()
}

fn copied(f: &Function, words: &Words<'_>) -> CopyDirection {
    effect(f, words).transfer().unwrap().direction
}

fn launched_as(f: &Function, words: &Words<'_>) -> Launch {
    effect(f, words).launch().unwrap().clone()
}

fn named(name: &'static str) -> Value {
    Value::Name(Cow::Borrowed(name))
}

#[test]
fn a_copy_shows_size_and_direction_by_name() {
    let f = function(Api::Runtime, 12, "cudaMemcpy");
    let words = Words { registers: &[0x7f00, 0x5500, 4096, 0xdead_beef_0000_0001, 0, 0], ..Words::default() };
    let args = show(f, &words);
    assert_eq!(args[0], ("dst".to_owned(), Value::Hex(0x7f00)));
    assert_eq!(args[2], ("count".to_owned(), Value::Uint(4096)));
    assert_eq!(
        args[3],
        ("kind".to_owned(), named("H2D")),
        "the upper half of the register is not part of the enum"
    );
    assert_eq!(copied(f, &words), CopyDirection::HostToDevice);
}

#[test]
fn a_launch_reads_dim3_from_registers_and_the_stream_from_the_stack() {
    let f = function(Api::Runtime, 12, "cudaLaunchKernel");
    assert_eq!(stack_words(f), 2);
    let registers = [0x1000, 0x3_0000_0002, 0xffff_ffff_0000_0004, 0x2_0000_0020, 1, 0x2000];
    let words = Words { registers: &registers, stack: &[4096, 0x77], ..Words::default() };
    let args = show(f, &words);
    assert_eq!(args[1].1, Value::Dim3([2, 3, 4]));
    assert_eq!(args[2].1, Value::Dim3([32, 2, 1]));
    assert_eq!(args[4].1, Value::Uint(4096));
    assert_eq!(args[5].1, Value::Hex(0x77));
    let launch = launched_as(f, &words);
    assert_eq!((launch.grid, launch.block), (Some([2, 3, 4]), Some([32, 2, 1])));
    assert_eq!((stream(f, &words), launch.shared), (Some(0x77), 4096));
}

#[test]
fn values_that_could_not_be_read_are_unread() {
    let f = function(Api::Driver, 12, "cuLaunchKernel");
    let words = Words { registers: &[1, 2, 3, 4, 5, 6], ..Words::default() };
    let args = show(f, &words);
    assert_eq!(args[5].1, Value::Uint(6));
    assert_eq!(args[6].1, Value::Unread);
    assert_eq!(args[8].1, Value::Unread);
    let launch = launched_as(f, &words);
    assert_eq!((launch.grid, launch.block, stream(f, &words)), (Some([2, 3, 4]), None, None));
}

#[test]
fn a_launch_by_config_is_read_through_its_pointer() {
    let f = function(Api::Driver, 12, "cuLaunchKernelEx");
    let (position, layout) = struct_arg(f).unwrap();
    assert_eq!((position, layout.bytes), (0, 56));
    let mut config = vec![0u8; 56];
    for (i, n) in [7u32, 8, 9, 10, 11, 12].into_iter().enumerate() {
        config[4 * i..4 * i + 4].copy_from_slice(&n.to_le_bytes());
    }
    config[32] = 0x55;
    let words = Words { registers: &[0x10, 0x20, 0, 0, 0, 0], pointee: &config, ..Words::default() };
    let launch = launched_as(f, &words);
    assert_eq!((launch.grid, launch.block), (Some([7, 8, 9]), Some([10, 11, 12])));
    assert_eq!(stream(f, &words), Some(0x55));
}

#[test]
fn the_direction_of_a_driver_copy_is_in_its_name_or_struct() {
    let f = function(Api::Driver, 12, "cuMemcpyDtoH_v2");
    assert_eq!(copied(f, &Words::default()), CopyDirection::DeviceToHost);
    let f = function(Api::Driver, 12, "cuMemcpy2D_v2");
    let mut copy = vec![0u8; 128];
    copy[16] = 1; // srcMemoryType: host
    copy[72] = 2; // dstMemoryType: device
    let words = Words { registers: &[1, 0, 0, 0, 0, 0], pointee: &copy, ..Words::default() };
    assert_eq!(copied(f, &words), CopyDirection::HostToDevice);
    copy[72] = 4; // unified: the address decides
    let words = Words { registers: &[1, 0, 0, 0, 0, 0], pointee: &copy, ..Words::default() };
    assert_eq!(copied(f, &words), CopyDirection::Unknown);
    let f = function(Api::Runtime, 12, "cudaMemcpy3DAsync_ptsz");
    let mut copy = vec![0u8; 160];
    copy[152] = 2; // kind
    let words = Words { registers: &[1, 0, 0, 0, 0, 0], pointee: &copy, ..Words::default() };
    assert_eq!(copied(f, &words), CopyDirection::DeviceToHost);
}

#[test]
fn signed_numbers_and_small_structs() {
    let f = function(Api::Runtime, 12, "cudaSetDevice");
    let words = Words { registers: &[0x1234_5678_ffff_ffff], ..Words::default() };
    assert_eq!(show(f, &words)[0].1, Value::Int(-1));
    let f = function(Api::Runtime, 13, "cudaMemPrefetchAsync");
    let words = Words { registers: &[0x7f00, 64, 0x3_0000_0001, 0, 0x99, 0], ..Words::default() };
    let Value::Struct(location) = &show(f, &words)[2].1 else { panic!("location is a struct") };
    assert_eq!(location[1].1, Value::Int(3));
    assert_eq!(show(f, &words)[4].1, Value::Hex(0x99));
}

#[test]
fn statuses_are_numbers_with_names_for_failures_only() {
    let runtime = function(Api::Runtime, 12, "cudaMalloc");
    let driver = function(Api::Driver, 12, "cuMemAlloc_v2");
    assert_eq!(status(runtime, 0xdead_0000_0000), Some(0));
    assert_eq!(error_name(runtime, 0), None);
    assert_eq!(error_name(runtime, 600), None);
    assert_eq!(error_name(runtime, 2).unwrap(), "cudaErrorMemoryAllocation");
    assert_eq!(error_name(driver, 2).unwrap(), "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(error_name(driver, 4242).unwrap(), "unknown CUresult 4242");
    let text = function(Api::Runtime, 12, "cudaGetErrorString");
    assert_eq!(status(text, 5), None);
}

#[test]
fn every_function_decodes_from_any_words() {
    let ones = [u64::MAX; MAX_STACK_WORDS];
    let pointee = [0xffu8; MAX_POINTEE];
    let full =
        Words { registers: &ones, stack: &ones, outs: [None; 4], pointee: &pointee, is_text_cut: false };
    for f in catalogue().functions() {
        assert!(out_reads(f).len() <= MAX_OUTS, "{}", f.name);
        for words in [&full, &Words::default()] {
            let args = arguments(f, words);
            assert_eq!(args.is_some(), f.args.is_some());
            effect(f, words);
            stream(f, words);
        }
    }
}

#[test]
fn out_pointers_are_read_at_their_width() {
    let read = |arg, offset, bytes| OutRead { arg, offset, bytes };
    assert_eq!(out_reads(function(Api::Runtime, 12, "cudaMalloc")), [read(0, 0, 8)]);
    assert_eq!(out_reads(function(Api::Driver, 12, "cuMemAlloc")), [read(0, 0, 4)]);
    assert_eq!(out_reads(function(Api::Runtime, 12, "cudaMallocPitch")), [read(0, 0, 8), read(1, 0, 8)]);
    assert_eq!(out_reads(function(Api::Runtime, 12, "cudaMalloc3D")), [read(0, 0, 8), read(0, 8, 8)]);
}

#[test]
fn a_new_communicator_shows_its_handle_and_the_hash_of_its_id() {
    let f = function(Api::Nccl, 12, "ncclCommInitRank");
    assert_eq!((stack_words(f), out_reads(f)), (12, vec![OutRead { arg: 0, offset: 0, bytes: 8 }]));
    let outs = [Some(0x5b00), None, None, None];
    // the first bytes of an id: 1, 2, 0xff
    let mut stack = [0; MAX_STACK_WORDS];
    stack[0] = 0x00ff_0201;
    let words = Words { registers: &[0x7f00, 8, 3, 0, 0, 0], stack: &stack, outs, ..Words::default() };
    let args = show(f, &words);
    assert_eq!((&args[0].1, &args[1].1, &args[3].1), (&Value::Hex(0x5b00), &Value::Int(8), &Value::Int(3)));
    let mut hash = ((5381_u64 * 33) ^ 1).wrapping_mul(33) ^ 2;
    hash = hash.wrapping_mul(33) ^ u64::MAX;
    (3..128).for_each(|_| hash = hash.wrapping_mul(33));
    assert_eq!(args[2].1, Value::Hex(hash));
    let args = show(f, &Words { stack: &[], outs: [None; 4], ..words });
    assert_eq!((&args[0].1, &args[2].1), (&Value::Hex(0x7f00), &Value::Unread));
}

#[test]
fn a_unique_id_behind_a_pointer_has_the_same_hash() {
    let mut id = [0; MAX_POINTEE];
    id[..3].copy_from_slice(&[1, 2, 0xff]);
    let by_pointer = function(Api::Nccl, 12, "ncclCommInitRankScalable");
    let registers = [0x7f00, 8, 3, 2, 0x7e00, 0];
    let words = Words { registers: &registers, pointee: &id[..UNIQUE_ID], ..Words::default() };
    let args = show(by_pointer, &words);
    assert_eq!(args[4].0, "commIds");
    if cfg!(target_arch = "x86_64") {
        let by_value = function(Api::Nccl, 12, "ncclCommInitRankConfig");
        let on_stack = Words { registers: &registers, stack: &[0x00ff_0201], ..Words::default() };
        assert_eq!(show(by_value, &on_stack)[2].1, args[4].1);
    }
    assert!(matches!(args[4].1, Value::Hex(hash) if hash != 0x7e00));
    let unread = show(by_pointer, &Words { pointee: &[], ..words });
    assert_eq!(unread[4].1, Value::Unread, "a pointer is no id");
}

#[test]
fn communicators_of_one_process_are_shown_by_rank() {
    let f = function(Api::Nccl, 12, "ncclCommInitAll");
    let outs = [Some(0xa0), Some(0xb0), Some(0xc0), Some(0xd0)];
    let shown = |registers: &[u64], outs| show(f, &Words { registers, outs, ..Words::default() }).remove(0).1;
    let list = |entries: &[(&'static str, u64)]| {
        Value::Struct(entries.iter().map(|(at, n)| (Cow::Borrowed(*at), Value::Hex(*n))).collect())
    };
    assert_eq!(shown(&[0x7f00, 2, 0], outs), list(&[("0", 0xa0), ("1", 0xb0)]));
    assert_eq!(
        shown(&[0x7f00, 8, 0], outs).clone(),
        list(&[("0", 0xa0), ("1", 0xb0), ("2", 0xc0), ("3", 0xd0)])
    );
    assert_eq!(shown(&[0x7f00, 8, 0], [None; 4]), Value::Hex(0x7f00));
    assert_eq!(shown(&[0x7f00, 0, 0], outs), Value::Hex(0x7f00));
}
