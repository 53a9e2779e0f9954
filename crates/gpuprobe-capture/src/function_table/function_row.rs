//! The row of a function in the BPF table of functions.

use std::mem::offset_of;

use gpuprobe_event::catalogue::{Arg, KernelHandles, Pointee, ResultKind, SIZES, UNIQUE_ID};
use gpuprobe_event::decode::{
    LIST_ENTRY, MAX_POINTEE, launch_list, out_reads, stack_words, struct_arg, text_arg,
};
use gpuprobe_event::{Api, Class, Function, Space};

use crate::function_table::arg_loc::{add_copied_structs, arg_loc, pointer_loc, saved_words};
use crate::function_table::op_desc::{launch_words, op_desc};
use crate::host::linux_types::WIDE;
use crate::load::collect::{Collect, CountedOps};
use crate::wire::{gp_arg_loc, gp_call, gp_extent, gp_function, gp_out, number};

/// The row of a function of a library.
pub(crate) fn row(f: &Function, collect: Collect, counted: CountedOps) -> gp_function {
    if collect == Collect::Failures && operation_of(f) == 0 {
        return failures_row(f);
    }
    if collect == Collect::Tensors {
        return tensor_row(f);
    }
    let mut row = gp_function { size_scale: f.roles.elem.max(1), ..gp_function::default() };
    row.flags = collected(collect) | of_result(f);
    row.answer = answer(f);
    if f.api == Api::Hook || runs_callbacks(f) {
        row.flags |= number::FUNCTION_RUNS_CODE;
    }
    // functions that are called often and allocate nothing skip the read of the return address
    let is_plain =
        matches!(f.class, Class::Launch | Class::Memcpy | Class::Memset | Class::Free | Class::Sync);
    if !(is_plain && collect == Collect::Count) {
        row.flags |= number::FUNCTION_KEEPS_RETURN;
    }
    row.stack_words = u8::try_from(stack_words(f)).unwrap_or(0);
    add_copied_structs(f, &mut row);
    for (slot, read) in row.out.iter_mut().zip(out_reads(f)) {
        *slot = gp_out { loc: arg_loc(f.arg(Some(read.arg))), offset: read.offset, bytes: read.bytes };
        row.outs += 1;
    }
    if let Some((position, layout)) = struct_arg(f) {
        row.pointee = arg_loc(f.arg(Some(position)));
        row.pointee_bytes = u8::try_from(layout.bytes).unwrap_or(u8::MAX);
    }
    if let Some((position, Pointee::UniqueId)) = f.pointee {
        row.pointee = pointer_loc(f.arg(Some(position)));
        row.pointee_bytes = u8::try_from(UNIQUE_ID).unwrap_or(u8::MAX);
    }
    text(f, &mut row);
    names(f, &mut row);
    action(f, &mut row);
    row.op_desc = op_desc(f, counted);
    if f.class == Class::Launch && collect == Collect::Count {
        counted_launch(&mut row, counted);
    } else if f.class == Class::Launch && collect == Collect::Stream && row.outs == 0 {
        sample_returns(&mut row, counted);
    }
    if ["_ptsz", "_ptds", "_spt"].iter().any(|suffix| f.name.ends_with(suffix)) {
        row.flags |= number::FUNCTION_PER_THREAD;
    }
    if row.action == number::ACTION_ALLOC && f.api == Api::Hip {
        row.flags |= number::FUNCTION_FIRST_DEVICE;
    }
    if f.roles.asynchronous {
        row.flags |= number::FUNCTION_ASYNC;
    }
    if counted.call_sites && takes_site(f.class) && row.flags & number::FUNCTION_STREAM != 0 {
        row.flags |= number::FUNCTION_TAKES_SITE;
    }
    // the first entry of a list of launches
    if let Some(position) = launch_list(f) {
        row.pointee = arg_loc(f.arg(Some(position)));
        row.pointee_bytes = u8::try_from(LIST_ENTRY).unwrap_or(u8::MAX);
    }
    row.record_bytes = record_bytes(&row, counted.annotate_records && makes_several_copies(f));
    row
}

/// A launch that is counted, not streamed.
fn counted_launch(row: &mut gp_function, counted: CountedOps) {
    // counting needs no other arguments
    row.stack_words = launch_words(row.cuda_kernel, &row.op_desc);
    sample_returns(row, counted);
}

/// Lets some returns of a launch go unprobed, if that is wanted. A loader's launch stays open during the vendor's.
fn sample_returns(row: &mut gp_function, counted: CountedOps) {
    let is_list = [number::LAUNCH_LIST, number::LAUNCH_RUNTIME_LIST].contains(&row.op_desc.shape);
    let is_launch = row.op_desc.op_kind == number::OP_LAUNCH && !is_list;
    if counted.samples_launch_returns && is_launch && row.flags & number::FUNCTION_MAY_REPEAT == 0 {
        row.flags |= number::FUNCTION_SAMPLES_RETURNS;
    }
}

/// The flags for what the result of a call says.
fn of_result(f: &Function) -> u32 {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    flag(is_status(f), number::FUNCTION_STATUS)
        | flag(f.returns_what_it_makes(), number::FUNCTION_OUTPUT_IS_RESULT)
        | flag(f.roles.error_out.is_some(), number::FUNCTION_ERROR_IS_OUT)
}

/// The status that is an answer.
fn answer(f: &Function) -> u16 {
    let answers = f.api.row().answers;
    answers.first().and_then(|answer| u16::try_from(*answer).ok()).unwrap_or(0)
}

/// The flags for what is collected.
fn collected(collect: Collect) -> u32 {
    match collect {
        Collect::Count => number::FUNCTION_COUNT,
        Collect::Stream => number::FUNCTION_STREAM,
        Collect::CountAndStream => number::FUNCTION_COUNT | number::FUNCTION_STREAM,
        Collect::Failures => number::FUNCTION_FAILURES,
        // the program for entry counts does not read the row
        Collect::StateOnly | Collect::EntryCount | Collect::Tensors => 0,
    }
}

/// Whether calls of a class have a call site if that is asked for. Allocations have one anyway.
fn takes_site(class: Class) -> bool {
    use Class::{GraphLaunch, Launch, Memcpy, Memset, Sync};
    matches!(class, Launch | GraphLaunch | Memcpy | Memset | Sync)
}

/// The row of a function of which only failures are counted: its effect on memory is seen in the CUDA driver's
/// functions that it calls.
fn failures_row(f: &Function) -> gp_function {
    let status = if is_status(f) { number::FUNCTION_STATUS } else { 0 };
    let code = if runs_callbacks(f) { number::FUNCTION_RUNS_CODE } else { 0 };
    let flags = number::FUNCTION_FAILURES | number::FUNCTION_KEEPS_RETURN | status | code;
    gp_function { size_scale: 1, flags, answer: answer(f), ..gp_function::default() }
}

/// The row of a function by which a framework reports tensors.
fn tensor_row(f: &Function) -> gp_function {
    let roles = &f.roles;
    gp_function {
        size_scale: 1,
        memory_op: operation_of(f),
        pointer: arg_loc(f.arg(roles.ptr)),
        size_a: arg_loc(f.arg(roles.size)),
        in_use: arg_loc(f.arg(roles.in_use)),
        reserved_bytes: arg_loc(f.arg(roles.reserved)),
        device: arg_loc(f.arg(roles.device)),
        ..gp_function::default()
    }
}

/// The row of a system call on an NVIDIA device file. The command takes the place of arguments on the stack.
pub(crate) fn device_call_row(f: &Function, collect: Collect) -> gp_function {
    let flags = match collect {
        Collect::Stream => number::FUNCTION_STREAM,
        Collect::CountAndStream => number::FUNCTION_COUNT | number::FUNCTION_STREAM,
        _ => number::FUNCTION_COUNT,
    };
    let has_argument = ["ioctl", "open"].contains(&f.name);
    let bytes = if has_argument { offset_of!(gp_call, pointee) } else { offset_of!(gp_call, out) };
    gp_function {
        size_scale: 1,
        flags,
        record_bytes: u16::try_from(bytes).unwrap_or(u16::MAX),
        ..gp_function::default()
    }
}

/// Sets what only APIs with objects have: counts of references, loaders, and launches with lists of sizes.
fn objects(f: &Function, row: &mut gp_function) {
    if !f.api.row().behind_loader.is_empty() {
        row.flags |= number::FUNCTION_MAY_REPEAT;
    }
    if f.uses_objects() {
        row.flags |= number::FUNCTION_OBJECT;
    }
    if let Some((global, Pointee::Sizes)) = f.pointee {
        row.flags |= number::FUNCTION_SIZES;
        row.pointee = arg_loc(f.arg(Some(global)));
        row.pointee_bytes = u8::try_from(SIZES).unwrap_or(u8::MAX);
        row.size_a = arg_loc(f.arg(f.roles.dimensions));
        row.size_b = arg_loc(f.arg(f.roles.local));
    }
}

/// Sets where a text is read through an argument.
fn text(f: &Function, row: &mut gp_function) {
    if let Some(position) = text_arg(f) {
        row.flags |= number::FUNCTION_TEXT;
        row.pointee = arg_loc(f.arg(Some(position)));
        row.pointee_bytes = u8::try_from(MAX_POINTEE).unwrap_or(u8::MAX);
    }
}

/// The row of a function of the Linux kernel, or of a tracepoint.
pub(crate) fn linux_function_row(f: &Function, collect: Collect) -> gp_function {
    let mut row = device_call_row(f, collect);
    text(f, &mut row);
    // the arguments of a tracepoint beyond those in registers
    row.stack_words = u8::try_from(stack_words(f)).unwrap_or(0);
    row.record_bytes = record_bytes(&row, false);
    if f.result == ResultKind::Moment {
        row.stack_words = u8::try_from(f.args.iter().flatten().count()).unwrap_or(0);
    }
    if f.result == ResultKind::Errno {
        row.flags |= number::FUNCTION_STATUS;
        row.flags |= if f.result_type == WIDE { number::FUNCTION_WIDE } else { 0 };
    }
    row
}

/// Whether a function calls code of the program on the calling thread.
pub(crate) fn runs_callbacks(f: &Function) -> bool {
    let takes_callback = |argument: &Arg| argument.ty.contains("B2DSize");
    f.class == Class::HostCallback || f.args.iter().flatten().any(takes_callback)
}

/// Whether a C++ exception may leave a function. The unwinder cannot pass the address that a return probe puts on the
/// stack, and ends the program, so only the entry of such a function is probed.
pub(crate) fn may_throw(f: &Function) -> bool {
    f.api == Api::Hook && f.name.starts_with("_Z") && !f.roles.nothrow
}

fn is_status(f: &Function) -> bool {
    matches!(f.result, ResultKind::Status(_))
}

/// Sets how a function identifies a CUDA kernel: the one that it launches, or the name of one.
fn names(f: &Function, row: &mut gp_function) {
    objects(f, row);
    let roles = &f.roles;
    if f.class == Class::Launch && roles.func.is_some() {
        row.cuda_kernel = arg_loc(f.arg(roles.func));
        if f.api.row().kernels != KernelHandles::Named {
            row.flags |= number::FUNCTION_LAUNCH;
        }
    }
    if !gives_kernel_names(f) {
        return;
    }
    row.flags |= number::FUNCTION_NAMES;
    row.cuda_kernel = arg_loc(f.arg(roles.named));
    row.name = arg_loc(f.arg(roles.name));
    if let Some((argument, at)) = f.name_in() {
        row.name = arg_loc(Some(argument));
        row.name_at = at;
    }
    row.alias = arg_loc(f.arg(roles.alias));
    if let Some((position, wanted)) = roles.only_if {
        row.device = arg_loc(f.arg(Some(position)));
        row.named_if = wanted;
    }
    if roles.func_out.is_some() {
        row.flags |= number::FUNCTION_HANDLE_IS_OUT;
    }
    if roles.name_out.is_some() {
        row.flags |= number::FUNCTION_NAME_IS_OUT;
    }
}

/// Whether calls of a function give the names of CUDA kernels.
pub fn gives_kernel_names(f: &Function) -> bool {
    let roles = &f.roles;
    let handle = roles.func_is_result || roles.func_out.or(roles.named).is_some();
    handle && roles.name.or(roles.name_in).or(roles.name_out).or(roles.alias).is_some()
}

/// Sets the effect of a function on memory, and where its size is.
fn action(f: &Function, row: &mut gp_function) {
    let roles = &f.roles;
    row.space = roles.space.map_or(0, |s| s as u8);
    match f.class {
        Class::Alloc if row.outs > 0 || roles.out_is_result => {
            row.action = number::ACTION_ALLOC;
            if roles.format.is_some() {
                image_size(f, row);
            } else if roles.desc.is_some() {
                array_size(f, row);
            } else if roles.pitch_out.is_some() {
                row.size_rule = number::SIZE_PITCH;
                row.size_a = arg_loc(f.arg(roles.height));
            } else if roles.pitched_out.is_some() {
                row.size_rule = number::SIZE_PITCH;
                extent(f.arg(roles.extent), row);
            } else {
                size(f, row);
            }
        }
        Class::HostRegister => {
            row.action = number::ACTION_ALLOC;
            row.space = Space::Pinned as u8;
            row.flags |= number::FUNCTION_POINTER_IS_ARGUMENT;
            row.pointer = arg_loc(f.arg(roles.ptr));
            size(f, row);
        }
        Class::Free | Class::HostUnregister if roles.ptr.is_some() => {
            row.action = number::ACTION_FREE;
            row.pointer = arg_loc(f.arg(roles.ptr));
        }
        Class::Memcpy | Class::Memset => {
            row.action = number::ACTION_MOVE;
            moved(f, row);
        }
        Class::Vmm | Class::Context | Class::Device | Class::Reference => operation(f, row),
        _ => {}
    }
}

/// Sets an operation on physical memory or on a context, or one that identifies a GPU.
fn operation(f: &Function, row: &mut gp_function) {
    let roles = &f.roles;
    row.memory_op = operation_of(f);
    row.pointer = arg_loc(f.arg(roles.ptr));
    row.cuda_kernel = arg_loc(f.arg(roles.handle));
    row.device = arg_loc(f.arg(roles.device));
    row.size_a = arg_loc(f.arg(roles.size));
    if row.memory_op == number::MEMORY_VMM_CREATE {
        row.space = Space::Vmm as u8;
        row.size_rule = number::SIZE_ARGUMENT;
    }
}

/// The number of an operation on physical memory or on a context, or of one that identifies a GPU or reports a tensor; 0
/// for none.
pub(crate) fn operation_of(f: &Function) -> u8 {
    match (f.class, f.roles.op.unwrap_or_default()) {
        (Class::Vmm, "create") => number::MEMORY_VMM_CREATE,
        (Class::Vmm, "import") => number::MEMORY_VMM_IMPORT,
        (Class::Vmm, "retain") => number::MEMORY_VMM_RETAIN,
        (Class::Vmm, "release") => number::MEMORY_VMM_RELEASE,
        (Class::Vmm, "map") => number::MEMORY_VMM_MAP,
        (Class::Vmm, "unmap") => number::MEMORY_VMM_UNMAP,
        (Class::Context, "create") => number::MEMORY_CONTEXT_CREATE,
        (Class::Context, "destroy") => number::MEMORY_CONTEXT_DESTROY,
        (Class::Context, "set") => number::MEMORY_CONTEXT_SET,
        (Class::Context, "push") => number::MEMORY_CONTEXT_PUSH,
        (Class::Context, "pop") => number::MEMORY_CONTEXT_POP,
        (Class::Context, "retain") => number::MEMORY_PRIMARY_RETAIN,
        (Class::Context, "release") => number::MEMORY_PRIMARY_RELEASE,
        (Class::Context, "reset") => number::MEMORY_PRIMARY_RESET,
        (Class::Reference, "retain") => number::MEMORY_RETAIN_OBJECT,
        (Class::Reference, "share") => number::MEMORY_SHARE_OBJECT,
        (Class::Device, "uuid" | "pci") => number::MEMORY_DEVICE_IDENTITY,
        (Class::Device, "set_device") => number::MEMORY_DEVICE_SET,
        (Class::Device, "reset_device") => number::MEMORY_DEVICE_RESET,
        (Class::Tensor, "change") => number::MEMORY_TENSOR_CHANGE,
        (Class::Tensor, "out_of_memory") => number::TENSOR_OUT_OF_MEMORY,
        _ => 0,
    }
}

/// Whether calls of a function change the current context, or destroy one. Allocations are counted by context.
pub fn changes_contexts(f: &Function) -> bool {
    operation_of(f) != 0 && (f.class == Class::Context || (f.class == Class::Device && !identifies_gpus(f)))
}

/// Whether calls of a function change what is known about an address that may be copied from or to.
pub fn changes_addresses(f: &Function) -> bool {
    match f.class {
        // an array or another object has a handle, and no address
        Class::Alloc | Class::Free => f.roles.space != Some(Space::Array) && !f.uses_objects(),
        Class::HostRegister | Class::HostUnregister => true,
        Class::Vmm => operation_of(f) != 0,
        _ => false,
    }
}

/// Whether calls of a function identify one of the process's GPUs.
pub fn identifies_gpus(f: &Function) -> bool {
    operation_of(f) == number::MEMORY_DEVICE_IDENTITY
}

/// Sets how the size of an array follows from its descriptor.
fn array_size(f: &Function, row: &mut gp_function) {
    let roles = &f.roles;
    let ty = f.arg(roles.desc).map_or("", |arg| arg.ty);
    if ty.contains("ARRAY3D_DESCRIPTOR") {
        row.size_rule = number::SIZE_ARRAY_3D;
        row.size_a = arg_loc(f.arg(roles.levels));
    } else if ty.contains("ARRAY_DESCRIPTOR") {
        row.size_rule = number::SIZE_ARRAY_2D;
    } else if roles.extent.is_some() {
        row.size_rule = number::SIZE_CHANNELS_EXTENT;
        row.size_a = arg_loc(f.arg(roles.extent));
        row.size_b = arg_loc(f.arg(roles.levels));
    } else {
        row.size_rule = number::SIZE_CHANNELS;
        row.size_a = arg_loc(f.arg(roles.width));
        row.size_b = arg_loc(f.arg(roles.height));
    }
}

/// Sets how the size of an image follows from its format, and from its description or its sides.
fn image_size(f: &Function, row: &mut gp_function) {
    let roles = &f.roles;
    row.size_a = arg_loc(f.arg(roles.format));
    row.size_rule = number::SIZE_IMAGE;
    if roles.desc.is_none() {
        row.size_rule = number::SIZE_IMAGE_SIDES;
        row.size_b = arg_loc(f.arg(roles.width));
        row.extent.dimensions = if roles.levels.is_some() { 3 } else { 2 };
    }
}

/// Sets a size that is one argument, or width times height.
fn size(f: &Function, row: &mut gp_function) {
    let roles = &f.roles;
    if roles.size.is_some() {
        row.size_rule = number::SIZE_ARGUMENT;
        row.size_a = arg_loc(f.arg(roles.size));
    } else if roles.width.is_some() && roles.height.is_some() {
        row.size_rule = number::SIZE_PRODUCT;
        row.size_a = arg_loc(f.arg(roles.width));
        row.size_b = arg_loc(f.arg(roles.height));
    }
}

/// Sets a size that is in an extent, a struct or a list, or else in plain arguments.
fn moved(f: &Function, row: &mut gp_function) {
    let roles = &f.roles;
    if roles.region.is_some() {
        row.size_rule = number::SIZE_BOX;
        row.size_a = arg_loc(f.arg(roles.region));
        row.extent = gp_extent { offset: 0, word: 8, dimensions: 3, stride: 24 };
        row.pointer = arg_loc(f.arg(roles.image));
    } else if roles.extent.is_some() {
        row.size_rule = number::SIZE_EXTENT;
        row.size_a = arg_loc(f.arg(roles.extent));
    } else if roles.sizes.is_some() {
        row.size_rule = number::SIZE_LIST;
        row.size_a = arg_loc(f.arg(roles.sizes));
        row.size_b = arg_loc(f.arg(roles.count));
    } else if let Some(extent) = f.arg(roles.params).and_then(|arg| described(arg.ty)) {
        row.size_rule = number::SIZE_BOX;
        row.size_a = arg_loc(f.arg(roles.params));
        row.size_b = arg_loc(f.arg(roles.count));
        row.extent = extent;
    } else {
        size(f, row);
    }
}

/// Where the structs that describe copies have their dimensions.
fn described(ty: &str) -> Option<gp_extent> {
    let (offset, word, dimensions, stride) = match ty.trim_start_matches("const ").trim_end_matches('*') {
        "CUDA_MEMCPY2D" | "hip_Memcpy2D" => (112, 8, 2, 128),
        "CUDA_MEMCPY2D_v1" => (84, 4, 2, 96),
        "CUDA_MEMCPY3D" | "CUDA_MEMCPY3D_PEER" => (176, 8, 3, 200),
        "CUDA_MEMCPY3D_v1" => (128, 4, 3, 144),
        "CUDA_MEMCPY3D_BATCH_OP" | "cudaMemcpy3DBatchOp" | "hipMemcpy3DBatchOp" => (80, 8, 3, 112),
        "HIP_MEMCPY3D" => (160, 8, 3, 184),
        "HIP_MEMCPY3D_5" => (112, 4, 3, 128),
        "cudaMemcpy3DParms" | "hipMemcpy3DParms" => (128, 8, 3, 160),
        "cudaMemcpy3DPeerParms" | "hipMemcpy3DPeerParms" => (144, 8, 3, 168),
        _ => return None,
    };
    Some(gp_extent { offset, word, dimensions, stride })
}

/// Height and depth of a `cudaExtent` by value: its second and third word.
fn extent(arg: Option<&Arg>, row: &mut gp_function) {
    if let gp_arg_loc { kind: number::ARG_ON_STACK, index } = arg_loc(arg) {
        row.size_a = gp_arg_loc { kind: number::ARG_ON_STACK, index: index + 1 };
        row.size_b = gp_arg_loc { kind: number::ARG_ON_STACK, index: index + 2 };
    }
}

/// Whether a call makes several copies. Its record then has their parts instead of a struct.
pub(crate) fn makes_several_copies(f: &Function) -> bool {
    f.class == Class::Memcpy && f.roles.count.is_some()
}

/// How many bytes of a record are used.
fn record_bytes(row: &gp_function, has_parts: bool) -> u16 {
    let ends_contexts = matches!(
        row.memory_op,
        number::MEMORY_CONTEXT_DESTROY
            | number::MEMORY_PRIMARY_RELEASE
            | number::MEMORY_PRIMARY_RESET
            | number::MEMORY_DEVICE_RESET
    );
    let bytes = if ends_contexts {
        // the memory that ended with the context, by kind, takes the place of arguments on the stack
        offset_of!(gp_call, pointee)
    } else if has_parts {
        offset_of!(gp_call, pointee) + MAX_POINTEE
    } else if row.pointee_bytes > 0 {
        offset_of!(gp_call, pointee) + usize::from(row.pointee_bytes)
    } else if saved_words(row) > 0 {
        offset_of!(gp_call, stack) + 8 * saved_words(row)
    } else {
        offset_of!(gp_call, out) + 8 * usize::from(row.outs)
    };
    u16::try_from(bytes.next_multiple_of(8)).unwrap_or(u16::MAX)
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
