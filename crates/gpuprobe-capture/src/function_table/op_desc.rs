//! The part of a function's row that describes a GPU operation, or an operation on streams and graphs.

use std::mem::offset_of;

use gpuprobe_event::catalogue::{Arg, ArgKind};
use gpuprobe_event::decode::{is_runtime_list, struct_arg};
use gpuprobe_event::{Api, Class, Direction, Function};

use crate::function_table::arg_loc::arg_loc;
use crate::load::collect::CountedOps;
use crate::wire::{gp_arg_loc, gp_call, gp_op_desc, number};

/// The description; empty if the operation is not counted.
pub(crate) fn op_desc(f: &Function, counted: CountedOps) -> gp_op_desc {
    let op = op_of(f);
    let wanted = match op {
        0 => false,
        // records show waits by themselves
        number::OP_SYNC_STREAM | number::OP_SYNC_ALL => counted.launch_rows(),
        number::OP_COPY | number::OP_MEMSET => counted.copies,
        op if is_capture_op(op) => counted.launches || counted.copies,
        _ => counted.launches,
    };
    if !wanted {
        return gp_op_desc::default();
    }
    let roles = &f.roles;
    let mut desc = gp_op_desc {
        op_kind: op,
        stream: arg_loc(f.arg(roles.stream)),
        graph: arg_loc(f.arg(roles.graph.or(roles.node).or(roles.graph_exec))),
        other: arg_loc(f.arg(roles.event.or(roles.child).or(roles.waits))),
        count: arg_loc(f.arg(roles.count)),
        params: arg_loc(f.arg(roles.params)),
        ..gp_op_desc::default()
    };
    if op >= number::OP_GRAPH_CREATE {
        desc.shape = kernel_at(f.arg(roles.params));
    }
    match op {
        number::OP_LAUNCH => launch(f, &mut desc),
        number::OP_COPY => copy(f, &mut desc),
        number::OP_EXEC_UPDATE => desc.other = arg_loc(f.arg(roles.graph_exec)),
        op if is_exec_node_op(op) => {
            desc.graph = arg_loc(f.arg(roles.graph_exec));
            desc.other = arg_loc(f.arg(roles.node));
            desc.params = arg_loc(f.arg(roles.params.or(roles.child)));
            desc.count = arg_loc(f.arg(roles.enabled));
        }
        _ => {}
    }
    desc
}

/// Whether calls of a function change which streams are captured. Operations on a captured stream are recorded in a
/// graph and not run.
pub fn changes_captures(f: &Function) -> bool {
    is_capture_op(op_of(f))
}

/// Whether calls of a function change graphs, or wait for streams.
pub fn changes_graphs(f: &Function) -> bool {
    let op = op_of(f);
    op >= number::OP_GRAPH_CREATE || matches!(op, number::OP_SYNC_STREAM | number::OP_SYNC_ALL)
}

/// Whether it changes a node of an executable graph.
fn is_exec_node_op(op: u8) -> bool {
    (number::OP_EXEC_SET_KERNEL..=number::OP_ENABLE_NODE).contains(&op)
}

fn is_capture_op(op: u8) -> bool {
    (number::OP_STREAM_DESTROY..=number::OP_CAPTURE_END).contains(&op)
}

/// The number of the operation; 0 for none. Copies, captures and graphs are followed in the API that does the work; launches, also of graphs, in the first probed call. Functions that the user has named may not call
/// such an API at all.
fn op_of(f: &Function) -> u8 {
    let op = f.roles.op.unwrap_or_default();
    let is_hooked = f.api == Api::Hook;
    let does_work = f.api.does_work();
    match (f.class, op) {
        (Class::Launch, _) if f.api.launches() || is_hooked => number::OP_LAUNCH,
        (Class::GraphLaunch, _) if f.api.launches() => number::OP_GRAPH_LAUNCH,
        (Class::Memcpy, _) if does_work || is_hooked => number::OP_COPY,
        (Class::Memset, _) if does_work || is_hooked => number::OP_MEMSET,
        (Class::Sync, _) if does_work || is_hooked => {
            if f.roles.stream.is_some() {
                number::OP_SYNC_STREAM
            } else {
                number::OP_SYNC_ALL
            }
        }
        (Class::Stream, "destroy") if does_work => number::OP_STREAM_DESTROY,
        (Class::Stream, "wait_event") if does_work => number::OP_EVENT_WAIT,
        (Class::Event, "record") if does_work => number::OP_EVENT_RECORD,
        (Class::Event, "destroy") if does_work => number::OP_EVENT_DESTROY,
        (Class::Graph | Class::GraphCapture, op) if does_work => graph_op(op),
        _ => 0,
    }
}

fn graph_op(op: &str) -> u8 {
    match op {
        "begin" => number::OP_CAPTURE_BEGIN,
        "begin_in" => number::OP_CAPTURE_ADD,
        "begin_again" => number::OP_CAPTURE_AGAIN,
        "end" => number::OP_CAPTURE_END,
        "create" => number::OP_GRAPH_CREATE,
        "clone" => number::OP_GRAPH_CLONE,
        "destroy" => number::OP_GRAPH_DESTROY,
        "add_kernel" => number::OP_ADD_KERNEL,
        "add_graph" => number::OP_ADD_GRAPH,
        "add_node" => number::OP_ADD_NODE,
        "destroy_node" => number::OP_DESTROY_NODE,
        "instantiate" => number::OP_EXEC_CREATE,
        "update" => number::OP_EXEC_UPDATE,
        "destroy_exec" => number::OP_EXEC_DESTROY,
        "set_kernel" => number::OP_SET_KERNEL,
        "set_node" => number::OP_SET_NODE,
        "set_exec_kernel" => number::OP_EXEC_SET_KERNEL,
        "set_exec_node" => number::OP_EXEC_SET_NODE,
        "set_exec_graph" => number::OP_EXEC_SET_GRAPH,
        "enable" => number::OP_ENABLE_NODE,
        _ => 0,
    }
}

/// Where the parameters of a kernel node have the handle of the kernel.
fn kernel_at(params: Option<&Arg>) -> u8 {
    if params.is_some_and(|params| params.ty.contains("hip")) { HIP_KERNEL_AT } else { 0 }
}

/// A struct with three dimensions, and nothing else.
const GRID_BYTES: u16 = 12;

/// In hipKernelNodeParams the dimensions of a block, and a pointer, are in front of it.
const HIP_KERNEL_AT: u8 = 24;

/// Sets where a launch has its dimensions.
fn launch(f: &Function, desc: &mut gp_op_desc) {
    let roles = &f.roles;
    let integers = |first: Option<u8>, count: u8| -> [gp_arg_loc; 3] {
        std::array::from_fn(|i| match (first, u8::try_from(i)) {
            (Some(first), Ok(i)) if i < count => arg_loc(f.arg(Some(first + i))),
            _ => gp_arg_loc::default(),
        })
    };
    desc.shared = arg_loc(f.arg(roles.shared));
    if roles.params.is_some() {
        desc.shape = if is_runtime_list(f) { number::LAUNCH_RUNTIME_LIST } else { number::LAUNCH_LIST };
    } else if roles.config.is_some() {
        let has_grid_only = struct_arg(f).is_some_and(|(_, layout)| layout.bytes == GRID_BYTES);
        desc.shape = if has_grid_only { number::LAUNCH_GROUPS } else { number::LAUNCH_CONFIG };
    } else if roles.global.is_some() {
        desc.shape = number::LAUNCH_SIZES;
    } else if f.arg(roles.grid.or(roles.block)).is_some_and(is_dim3) {
        desc.shape = number::LAUNCH_DIM3;
        desc.grid = words(arg_loc(f.arg(roles.grid)));
        desc.block = words(arg_loc(f.arg(roles.block)));
    } else if roles.plane.is_some() {
        desc.grid = integers(roles.plane, 2);
    } else if roles.threads.is_some() {
        desc.shape = number::LAUNCH_THREADS;
        desc.grid = integers(roles.threads, 3);
        desc.block = integers(roles.block, 3);
    } else {
        desc.grid = integers(roles.grid, 3);
        desc.block = integers(roles.block, 3);
        if is_usual(arg_loc(f.arg(roles.func)), desc) {
            desc.shape = number::LAUNCH_USUAL;
        }
    }
}

fn is_dim3(arg: &Arg) -> bool {
    matches!(arg.kind, ArgKind::Struct { .. })
}

/// Whether the kernel, its six dimensions, shared memory and stream are the first nine arguments.
fn is_usual(kernel: gp_arg_loc, desc: &gp_op_desc) -> bool {
    let registers = (offset_of!(gp_call, out) - offset_of!(gp_call, registers)) / 8;
    let nth = |n: usize| match n.checked_sub(registers) {
        None => (number::ARG_IN_REGISTER, n),
        Some(word) => (number::ARG_ON_STACK, word),
    };
    let locs = [kernel].into_iter().chain(desc.grid).chain(desc.block).chain([desc.shared, desc.stream]);
    locs.enumerate().all(|(n, arg_loc)| (arg_loc.kind, usize::from(arg_loc.index)) == nth(n))
}

/// How many stack words are needed to count a launch.
pub(crate) fn launch_words(kernel: gp_arg_loc, desc: &gp_op_desc) -> u8 {
    let gp_op_desc { grid, block, .. } = *desc;
    let others = [kernel, desc.shared, desc.stream, desc.count, desc.params];
    let on_stack = grid.into_iter().chain(block).chain(others).filter(|p| p.kind == number::ARG_ON_STACK);
    on_stack.map(|arg_loc| arg_loc.index + 1).max().unwrap_or(0)
}

/// The two adjacent words of a `dim3`.
fn words(first: gp_arg_loc) -> [gp_arg_loc; 3] {
    let second = match first.kind {
        0 => gp_arg_loc::default(),
        kind => gp_arg_loc { kind, index: first.index + 1 },
    };
    [first, second, gp_arg_loc::default()]
}

/// Sets where a copy has its addresses, sizes and direction.
fn copy(f: &Function, desc: &mut gp_op_desc) {
    let roles = &f.roles;
    desc.target = arg_loc(f.arg(roles.dst));
    desc.source = arg_loc(f.arg(roles.src));
    desc.sizes = arg_loc(f.arg(roles.sizes));
    desc.kind = arg_loc(f.arg(roles.kind));
    desc.copy_kind = match roles.direction {
        Some(Direction::Fixed(name)) => fixed(name),
        Some(Direction::FromKind) => number::COPY_BY_ARGUMENT,
        _ => number::COPY_BY_ADDRESS,
    };
    let described_by = f.arg(roles.params).map_or("", |arg| arg.ty);
    let is_operation = described_by.contains("BATCH_OP") || described_by.contains("BatchOp");
    desc.shape = match (is_operation, roles.count.is_some()) {
        (true, true) => number::COPY_OPERATIONS,
        (true, false) => number::COPY_OPERATION,
        (false, true) => number::COPY_BATCH,
        (false, false) => structure(described_by),
    };
}

/// The number of the direction with this name.
fn fixed(name: &str) -> u8 {
    let all = gpuprobe_event::counters::CopyDirection::ALL;
    let found = all.iter().position(|direction| direction.as_str() == name);
    found.and_then(|at| u8::try_from(at).ok()).unwrap_or(number::COPY_BY_ADDRESS)
}

fn structure(ty: &str) -> u8 {
    match ty.trim_start_matches("const ").trim_end_matches('*') {
        "CUDA_MEMCPY2D" => number::COPY_2D,
        "CUDA_MEMCPY2D_v1" => number::COPY_2D_OLD,
        "CUDA_MEMCPY3D" | "CUDA_MEMCPY3D_PEER" => number::COPY_3D,
        "CUDA_MEMCPY3D_v1" => number::COPY_3D_OLD,
        "hip_Memcpy2D" | "HIP_MEMCPY3D_5" => number::COPY_HIP_2D,
        "HIP_MEMCPY3D" => number::COPY_HIP_3D,
        "hipMemcpy3DParms" => number::COPY_PARMS,
        _ => number::COPY_LINEAR,
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use gpuprobe_event::catalogue;

    use super::*;

    const ALL: CountedOps = CountedOps {
        launches: true,
        copies: true,
        device_calls: false,
        rows: true,
        annotate_records: false,
        call_sites: false,
        samples_launch_returns: false,
    };

    fn of(api: Api, name: &str) -> gp_op_desc {
        op_desc(catalogue().lookup(api, Some(12), name).unwrap(), ALL)
    }

    fn shown(locs: &[gp_arg_loc]) -> Vec<(u8, u8)> {
        locs.iter().map(|p| (p.kind, p.index)).collect()
    }

    #[test]
    fn a_launch_has_its_dimensions_in_arguments_words_or_a_struct() {
        let (register, stack) = (number::ARG_IN_REGISTER, number::ARG_ON_STACK);
        let driver = of(Api::Driver, "cuLaunchKernel_ptsz");
        assert_eq!(shown(&driver.grid), [(register, 1), (register, 2), (register, 3)]);
        assert_eq!(shown(&driver.block), [(register, 4), (register, 5), (stack, 0)]);
        assert_eq!(shown(&[driver.shared, driver.stream]), [(stack, 1), (stack, 2)]);
        assert_eq!(driver.shape, number::LAUNCH_USUAL);
        let kernel = gp_arg_loc { kind: register, index: 0 };
        assert_eq!(launch_words(kernel, &driver), 3, "what follows the stream is not needed");
        let runtime = of(Api::Runtime, "cudaLaunchKernel");
        assert_eq!(runtime.shape, number::LAUNCH_DIM3);
        assert_eq!(shown(&runtime.grid), [(register, 1), (register, 2), (0, 0)]);
        assert_eq!(of(Api::Driver, "cuLaunchKernelEx").shape, number::LAUNCH_CONFIG);
        assert_eq!(of(Api::Driver, "cuLaunchCooperativeKernelMultiDevice").shape, number::LAUNCH_LIST);
        let plane = of(Api::Driver, "cuLaunchGridAsync");
        assert_eq!(shown(&plane.grid), [(register, 1), (register, 2), (0, 0)]);
        assert_eq!((shown(&[plane.stream]), plane.shape), (vec![(register, 3)], 0));
    }

    #[test]
    fn every_copy_function_of_the_cuda_driver_is_described_completely() {
        for f in catalogue().functions().iter().filter(|f| f.api == Api::Driver && f.class == Class::Memcpy) {
            let desc = op_desc(f, ALL);
            let has = |arg_loc: gp_arg_loc| arg_loc.kind != 0;
            let is_complete = match desc.shape {
                number::COPY_LINEAR => has(desc.source) && has(desc.target) && f.roles.size.is_some(),
                number::COPY_BATCH => [desc.source, desc.target, desc.sizes, desc.count].into_iter().all(has),
                number::COPY_OPERATIONS => has(desc.params) && has(desc.count),
                _ => has(desc.params),
            };
            assert!(is_complete, "{}", f.name);
            assert_eq!(f.roles.asynchronous, f.base.ends_with("Async"), "{}", f.name);
            assert_eq!(has(desc.stream), f.roles.asynchronous, "{}", f.name);
        }
        assert_eq!(of(Api::Driver, "cuMemcpy3DPeer").copy_kind, fixed("P2P"));
        assert_eq!(of(Api::Driver, "cuMemcpy2D").shape, number::COPY_2D_OLD);
    }

    #[test]
    fn hip_launches_and_copies_by_its_own_structs() {
        let hip = |name| op_desc(catalogue().lookup(Api::Hip, Some(7), name).unwrap(), ALL);
        let (register, stack) = (number::ARG_IN_REGISTER, number::ARG_ON_STACK);
        let in_threads = hip("hipExtModuleLaunchKernel");
        assert_eq!(in_threads.shape, number::LAUNCH_THREADS);
        assert_eq!(shown(&in_threads.grid), [(register, 1), (register, 2), (register, 3)]);
        assert_eq!(shown(&in_threads.block), [(register, 4), (register, 5), (stack, 0)]);
        assert_eq!(hip("hipModuleLaunchKernel").shape, number::LAUNCH_USUAL);
        assert_eq!(hip("hipLaunchKernel_spt").shape, number::LAUNCH_DIM3);
        let lists = ["hipLaunchCooperativeKernelMultiDevice", "hipModuleLaunchCooperativeKernelMultiDevice"];
        assert_eq!(lists.map(|name| hip(name).shape), [number::LAUNCH_RUNTIME_LIST, number::LAUNCH_LIST]);
        let old = catalogue().lookup(Api::Hip, Some(5), "hipDrvMemcpy3D").unwrap();
        let copies = [op_desc(old, ALL).shape, hip("hipDrvMemcpy3D").shape, hip("hipMemcpy3D").shape];
        assert_eq!(copies, [number::COPY_HIP_2D, number::COPY_HIP_3D, number::COPY_PARMS]);
        let nodes = ["hipGraphAddKernelNode", "hipGraphAddNode", "hipGraphExecKernelNodeSetParams"];
        assert_eq!(nodes.map(|name| hip(name).shape), [HIP_KERNEL_AT; 3]);
        assert_eq!(of(Api::Driver, "cuGraphAddKernelNode_v2").shape, 0);
    }

    #[test]
    fn level_zero_launches_by_a_struct_with_the_grid() {
        let launch = |name| op_desc(catalogue().lookup(Api::LevelZero, None, name).unwrap(), ALL);
        let register = number::ARG_IN_REGISTER;
        let direct = launch("zeCommandListAppendLaunchKernel");
        assert_eq!((direct.shape, shown(&[direct.stream])), (number::LAUNCH_GROUPS, vec![(register, 0)]));
        assert_eq!(launch("zeCommandListAppendLaunchKernelIndirect").shape, 0, "the GPU knows the grid");
        let copy = launch("zeCommandListAppendMemoryCopy");
        assert_eq!((copy.shape, copy.copy_kind), (number::COPY_LINEAR, number::COPY_BY_ADDRESS));
    }

    #[test]
    fn operations_that_are_not_counted_have_no_description() {
        let launch = catalogue().lookup(Api::Driver, None, "cuLaunchKernel").unwrap();
        let copy = catalogue().lookup(Api::Driver, None, "cuMemcpyHtoD_v2").unwrap();
        let capture = catalogue().lookup(Api::Driver, None, "cuStreamBeginCapture_v2").unwrap();
        let has_op = |counted| [launch, copy, capture].map(|f| u8::from(op_desc(f, counted).op_kind != 0));
        assert_eq!(has_op(CountedOps::default()), [0, 0, 0]);
        assert_eq!(has_op(CountedOps { copies: false, ..ALL }), [1, 0, 1]);
        assert_eq!(has_op(CountedOps { launches: false, ..ALL }), [0, 1, 1]);
    }

    #[test]
    fn waits_are_ignored_where_there_are_no_rows() {
        let wait = catalogue().lookup(Api::Driver, None, "cuStreamSynchronize").unwrap();
        assert_eq!(op_desc(wait, ALL).op_kind, number::OP_SYNC_STREAM);
        assert_eq!(op_desc(wait, CountedOps { rows: false, annotate_records: true, ..ALL }).op_kind, 0);
    }
}
