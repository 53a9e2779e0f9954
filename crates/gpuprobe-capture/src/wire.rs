//! The structs of `bpf/gpuprobe.h`, as generated from the object's type information, and the one way to make them
//! from bytes and bytes from them.

mod generated {
    #![allow(
        dead_code,
        unreachable_pub,
        missing_debug_implementations,
        clippy::all,
        clippy::allow_attributes_without_reason,
        clippy::undocumented_unsafe_blocks,
        clippy::wildcard_imports,
        clippy::unwrap_used,
        clippy::use_self,
        clippy::too_many_lines,
        clippy::map_err_ignore,
        reason = "generated code"
    )]
    include!(concat!(env!("OUT_DIR"), "/wire.skel.rs"));
}

pub(crate) use generated::types::{
    gp_call, gp_command, gp_command_key, gp_config, gp_context, gp_context_key, gp_copies, gp_copy_key,
    gp_count, gp_count_key, gp_extent, gp_failure_key, gp_file, gp_function, gp_gap, gp_graph_counts,
    gp_kernel_key, gp_launch_key, gp_launches, gp_live, gp_live_key, gp_memory, gp_name_record, gp_out,
    gp_part, gp_physical, gp_place, gp_process_key, gp_process_record, gp_range_key, gp_site, gp_site_key,
    gp_site_node, gp_stack_record, gp_stream, gp_task, gp_unified, gp_way, gp_way_key, gp_xid_record,
};

/// The compiled programs.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpuprobe.bpf.o"));

/// A struct that may be made of any bytes.
///
/// # Safety
/// The type is `repr(C)`, has no padding that is read, and every bit pattern of it is valid.
pub(crate) unsafe trait Wire: Copy + Default {}

macro_rules! wire {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: generated as repr(C) from a C struct of integers and arrays of integers, whose padding is
            // explicit in gpuprobe.h; any bits are a value of it.
            unsafe impl Wire for $name {}
        )*
    };
}

wire!(
    gp_call,
    gp_command,
    gp_command_key,
    gp_config,
    gp_context,
    gp_context_key,
    gp_copies,
    gp_copy_key,
    gp_count,
    gp_count_key,
    gp_failure_key,
    gp_file,
    gp_function,
    gp_graph_counts,
    gp_kernel_key,
    gp_launch_key,
    gp_launches,
    gp_live,
    gp_live_key,
    gp_memory,
    gp_name_record,
    gp_part,
    gp_physical,
    gp_process_key,
    gp_process_record,
    gp_range_key,
    gp_site,
    gp_site_key,
    gp_site_node,
    gp_stack_record,
    gp_stream,
    gp_unified,
    gp_way,
    gp_way_key,
    gp_xid_record,
);

// SAFETY: an integer, of which any bits are a value.
unsafe impl Wire for u64 {}

// SAFETY: bytes, each of which may have any value.
unsafe impl Wire for [u8; 16] {}

// SAFETY: as for u64.
unsafe impl Wire for u32 {}

/// A struct from the bytes at hand. Bytes that are missing are zero, for records are cut where nothing follows;
/// bytes over are ignored.
pub(crate) fn from_bytes<T: Wire>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let length = bytes.len().min(size_of::<T>());
    // SAFETY: both regions are valid for `length` bytes and do not overlap; T: Wire allows any bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast::<u8>(), length);
    }
    value
}

/// The bytes of a struct.
pub(crate) fn as_bytes<T: Wire>(value: &T) -> &[u8] {
    // SAFETY: the region is the value itself, borrowed for as long as the slice; T: Wire has no hidden padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Numbers of `gpuprobe.h` that are no fields; enums do not survive into the generated types.
pub(crate) mod number {
    pub(crate) const NO_DEVICE: u8 = 255;
    pub(crate) const STACK_WORDS: usize = 12;
    pub(crate) const ANY_MINOR: u32 = 0xf_ffff;

    pub(crate) const DRIVER_IOCTL: u32 = 0;
    pub(crate) const DRIVER_OPEN: u32 = 2;
    pub(crate) const DRIVER_CALLS: u32 = 4;
    /// In `gp_live.since_ns`.
    pub(crate) const SPARE: u64 = 1 << 63;

    pub(crate) const SCRAMBLE: u64 = 0x9e37_79b9_7f4a_7c15;
    pub(crate) const SITE_STEPS: usize = 256;
    pub(crate) const SHORT_STACK_BYTES: usize = 2 * 4096;
    pub(crate) const STACK_PART_BYTES: usize = 1024;
    /// What is counted outside of contexts, in the number of one: the GPU is below.
    pub(crate) const OF_DEVICE: u64 = 1 << 63;
    pub(crate) const STACKS_NONE: u32 = 1;

    pub(crate) const LIBRARIES: u16 = 4096;
    pub(crate) const LIBRARY_ACTIVE: u32 = 0;
    pub(crate) const LIBRARY_ATTACHING: u32 = 1;
    pub(crate) const LIBRARY_DETACHING: u32 = 2;

    pub(crate) const PLACE_REGISTER: u8 = 1;
    pub(crate) const PLACE_STACK: u8 = 2;

    pub(crate) const ACTION_ALLOC: u8 = 1;
    pub(crate) const ACTION_FREE: u8 = 2;
    pub(crate) const ACTION_MOVE: u8 = 3;

    pub(crate) const SIZE_ARGUMENT: u8 = 1;
    pub(crate) const SIZE_PRODUCT: u8 = 2;
    pub(crate) const SIZE_PITCH: u8 = 3;
    pub(crate) const SIZE_ARRAY_2D: u8 = 4;
    pub(crate) const SIZE_ARRAY_3D: u8 = 5;
    pub(crate) const SIZE_CHANNELS: u8 = 6;
    pub(crate) const SIZE_CHANNELS_EXTENT: u8 = 7;
    pub(crate) const SIZE_EXTENT: u8 = 8;
    pub(crate) const SIZE_BOX: u8 = 9;
    pub(crate) const SIZE_LIST: u8 = 10;

    pub(crate) const OP_VMM_CREATE: u8 = 1;
    pub(crate) const OP_VMM_IMPORT: u8 = 2;
    pub(crate) const OP_VMM_RETAIN: u8 = 3;
    pub(crate) const OP_VMM_RELEASE: u8 = 4;
    pub(crate) const OP_VMM_MAP: u8 = 5;
    pub(crate) const OP_VMM_UNMAP: u8 = 6;
    pub(crate) const OP_CONTEXT_CREATE: u8 = 7;
    pub(crate) const OP_CONTEXT_DESTROY: u8 = 8;
    pub(crate) const OP_CONTEXT_SET: u8 = 9;
    pub(crate) const OP_CONTEXT_PUSH: u8 = 10;
    pub(crate) const OP_CONTEXT_POP: u8 = 11;
    pub(crate) const OP_PRIMARY_RETAIN: u8 = 12;
    pub(crate) const OP_PRIMARY_RELEASE: u8 = 13;
    pub(crate) const OP_PRIMARY_RESET: u8 = 14;
    pub(crate) const OP_DEVICE_TOLD: u8 = 15;

    pub(crate) const FUNCTION_COUNT: u32 = 1;
    pub(crate) const FUNCTION_STREAM: u32 = 2;
    pub(crate) const FUNCTION_STATUS: u32 = 4;
    pub(crate) const FUNCTION_POINTER_IS_ARGUMENT: u32 = 8;
    pub(crate) const FUNCTION_TEXT: u32 = 16;
    pub(crate) const FUNCTION_LAUNCH: u32 = 32;
    pub(crate) const FUNCTION_NAMES: u32 = 64;
    pub(crate) const FUNCTION_HANDLE_IS_OUT: u32 = 128;
    pub(crate) const FUNCTION_NAME_IS_OUT: u32 = 256;
    pub(crate) const FUNCTION_PER_THREAD: u32 = 1024;
    pub(crate) const FUNCTION_ASYNC: u32 = 2048;
    pub(crate) const FUNCTION_FAILURES: u32 = 4096;
    pub(crate) const FUNCTION_WIDE: u32 = 8192;
    pub(crate) const FUNCTION_GIVES_RESULT: u32 = 16384;
    pub(crate) const FUNCTION_ERROR_IS_OUT: u32 = 32768;
    pub(crate) const FUNCTION_ENTRY_ONLY: u32 = 65536;
    pub(crate) const FUNCTION_PAUSED: u32 = 131_072;
    pub(crate) const FUNCTION_RUNS_CODE: u32 = 262_144;

    pub(crate) const WORK_LAUNCH: u8 = 1;
    pub(crate) const WORK_GRAPH_LAUNCH: u8 = 2;
    pub(crate) const WORK_COPY: u8 = 3;
    pub(crate) const WORK_MEMSET: u8 = 4;
    pub(crate) const WORK_SYNC_STREAM: u8 = 5;
    pub(crate) const WORK_SYNC_ALL: u8 = 6;
    pub(crate) const WORK_STREAM_DESTROY: u8 = 7;
    pub(crate) const WORK_EVENT_RECORD: u8 = 8;
    pub(crate) const WORK_EVENT_WAIT: u8 = 9;
    pub(crate) const WORK_EVENT_DESTROY: u8 = 10;
    pub(crate) const WORK_CAPTURE_BEGIN: u8 = 11;
    pub(crate) const WORK_CAPTURE_ADD: u8 = 12;
    pub(crate) const WORK_CAPTURE_AGAIN: u8 = 13;
    pub(crate) const WORK_CAPTURE_END: u8 = 14;
    pub(crate) const WORK_GRAPH_CREATE: u8 = 15;
    pub(crate) const WORK_GRAPH_CLONE: u8 = 16;
    pub(crate) const WORK_GRAPH_DESTROY: u8 = 17;
    pub(crate) const WORK_ADD_KERNEL: u8 = 18;
    pub(crate) const WORK_ADD_GRAPH: u8 = 19;
    pub(crate) const WORK_ADD_NODE: u8 = 20;
    pub(crate) const WORK_DESTROY_NODE: u8 = 21;
    pub(crate) const WORK_EXEC_CREATE: u8 = 22;
    pub(crate) const WORK_EXEC_UPDATE: u8 = 23;
    pub(crate) const WORK_EXEC_DESTROY: u8 = 24;

    pub(crate) const LAUNCH_USUAL: u8 = 1;
    pub(crate) const LAUNCH_DIM3: u8 = 2;
    pub(crate) const LAUNCH_CONFIG: u8 = 3;
    pub(crate) const LAUNCH_LIST: u8 = 4;
    pub(crate) const LAUNCH_RUNTIME_LIST: u8 = 5;

    pub(crate) const COPY_LINEAR: u8 = 0;
    pub(crate) const COPY_2D: u8 = 1;
    pub(crate) const COPY_2D_OLD: u8 = 2;
    pub(crate) const COPY_3D: u8 = 3;
    pub(crate) const COPY_3D_OLD: u8 = 4;
    pub(crate) const COPY_BATCH: u8 = 5;
    pub(crate) const COPY_OPERATION: u8 = 6;
    pub(crate) const COPY_OPERATIONS: u8 = 7;

    pub(crate) const COPY_BY_ARGUMENT: u8 = 7;
    pub(crate) const COPY_BY_ADDRESS: u8 = 8;
    pub(crate) const FUNCTION_KEEPS_RETURN: u32 = 512;

    pub(crate) const RECORD_CALL: u16 = 1;
    pub(crate) const RECORD_PROCESS: u16 = 2;
    pub(crate) const RECORD_HOLD: u16 = 3;
    pub(crate) const RECORD_NAME: u16 = 4;
    pub(crate) const RECORD_STACK: u16 = 5;
    pub(crate) const RECORD_SITE: u16 = 6;
    pub(crate) const RECORD_XID: u16 = 7;

    pub(crate) const NAME_TOLD: u16 = 0;
    pub(crate) const NAME_ALIAS: u16 = 1;
    pub(crate) const NAME_CANDIDATE: u16 = 2;

    pub(crate) const CALL_UNREAD_OUT: u16 = 1;
    pub(crate) const CALL_UNREAD_STACK: u16 = 16;
    pub(crate) const CALL_UNREAD_POINTEE: u16 = 32;
    pub(crate) const CALL_NESTED_ACTION: u16 = 64;
    pub(crate) const CALL_UNFINISHED: u16 = 128;
    pub(crate) const CALL_KNOWN_FREE: u16 = 256;
    pub(crate) const CALL_REPLACED: u16 = 512;
    pub(crate) const CALL_BEGUN: u16 = 1024;
    pub(crate) const CALL_CUT_TEXT: u16 = 2048;
    pub(crate) const CALL_NESTED_WORK: u16 = 4096;
    pub(crate) const CALL_CAPTURED: u16 = 8192;
    pub(crate) const CALL_KNOWN_KERNELS: u16 = 16384;

    pub(crate) const HELD_STOPPED: u16 = 1;
    pub(crate) const HELD_POLITELY: u16 = 2;
    pub(crate) const HELD_AT_EXEC: u16 = 4;

    pub(crate) const HOLD_NOT: u8 = 0;
    pub(crate) const HOLD_BY_WAITING: u8 = 1;
    pub(crate) const HOLD_BY_STOPPING: u8 = 2;

    pub(crate) const PROCESS_START: u16 = 1;
    pub(crate) const PROCESS_EXEC: u16 = 2;
    pub(crate) const PROCESS_EXIT: u16 = 3;
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{counters, decode};

    use super::*;

    #[test]
    fn the_two_sides_agree_on_limits() {
        let call = gp_call::default();
        assert_eq!(call.out.len(), decode::MAX_OUTS);
        assert_eq!(call.stack.len(), decode::MAX_STACK_WORDS);
        assert_eq!(call.pointee.len(), decode::MAX_POINTEE);
        assert_eq!(gp_count::default().latency.len(), counters::LATENCY_BUCKETS);
        assert_eq!(gp_context::default().live_bytes.len(), gpuprobe_event::Space::ALL.len());
    }

    /// `NAME = value` or `NAME,` lines of one enum of the header.
    fn enum_of_header(name: &str) -> Vec<(String, u64)> {
        let header = concat!(
            include_str!("../bpf/gpuprobe.h"),
            include_str!("../bpf/config.h"),
            include_str!("../bpf/driver.h"),
            include_str!("../bpf/site.h"),
            include_str!("../bpf/work.h")
        );
        let body = header.split(&format!("enum {name} {{")).nth(1).unwrap().split("};").next().unwrap();
        let mut next = 0;
        let mut found = Vec::new();
        for line in body.lines().map(str::trim).filter(|l| l.starts_with("GP_")) {
            let (name, value) = line.trim_end_matches(',').split_once(" = ").unwrap_or((line, ""));
            next = value.parse().unwrap_or(next);
            found.push((name.trim_end_matches(',').to_owned(), next));
            next += 1;
        }
        found
    }

    fn expect(name: &str, values: &[u64]) {
        let header: Vec<_> = enum_of_header(name).into_iter().map(|v| v.1).collect();
        assert_eq!(header, values, "{name}");
    }

    #[test]
    fn the_numbers_of_functions_are_those_of_the_header() {
        use number::*;
        expect("gp_place_kind", &[0, PLACE_REGISTER.into(), PLACE_STACK.into()]);
        let states = [LIBRARY_ACTIVE, LIBRARY_ATTACHING, LIBRARY_DETACHING];
        expect("gp_library_state", &states.map(u64::from));
        expect("gp_action", &[0, ACTION_ALLOC.into(), ACTION_FREE.into(), ACTION_MOVE.into()]);
        let sizes = [
            0,
            SIZE_ARGUMENT,
            SIZE_PRODUCT,
            SIZE_PITCH,
            SIZE_ARRAY_2D,
            SIZE_ARRAY_3D,
            SIZE_CHANNELS,
            SIZE_CHANNELS_EXTENT,
            SIZE_EXTENT,
            SIZE_BOX,
            SIZE_LIST,
        ];
        expect("gp_size_rule", &sizes.map(u64::from));
        let operations = [
            0,
            OP_VMM_CREATE,
            OP_VMM_IMPORT,
            OP_VMM_RETAIN,
            OP_VMM_RELEASE,
            OP_VMM_MAP,
            OP_VMM_UNMAP,
            OP_CONTEXT_CREATE,
            OP_CONTEXT_DESTROY,
            OP_CONTEXT_SET,
            OP_CONTEXT_PUSH,
            OP_CONTEXT_POP,
            OP_PRIMARY_RETAIN,
            OP_PRIMARY_RELEASE,
            OP_PRIMARY_RESET,
            OP_DEVICE_TOLD,
        ];
        expect("gp_memory_op", &operations.map(u64::from));
    }

    #[test]
    fn the_flags_of_functions_are_those_of_the_header() {
        use number::*;
        expect(
            "gp_function_flags",
            &[
                FUNCTION_COUNT,
                FUNCTION_STREAM,
                FUNCTION_STATUS,
                FUNCTION_POINTER_IS_ARGUMENT,
                FUNCTION_TEXT,
                FUNCTION_LAUNCH,
                FUNCTION_NAMES,
                FUNCTION_HANDLE_IS_OUT,
                FUNCTION_NAME_IS_OUT,
                FUNCTION_KEEPS_RETURN,
                FUNCTION_PER_THREAD,
                FUNCTION_ASYNC,
                FUNCTION_FAILURES,
                FUNCTION_WIDE,
                FUNCTION_GIVES_RESULT,
                FUNCTION_ERROR_IS_OUT,
                FUNCTION_ENTRY_ONLY,
                FUNCTION_PAUSED,
                FUNCTION_RUNS_CODE,
            ]
            .map(u64::from),
        );
    }

    /// The names of an enum without what they all begin with, as the constants here have them.
    fn names_of_header(name: &str, prefix: &str) -> Vec<String> {
        let all = enum_of_header(name).into_iter();
        all.map(|(name, _)| name.trim_start_matches("GP_").trim_start_matches(prefix).to_owned()).collect()
    }

    #[test]
    fn the_numbers_of_work_are_those_of_the_header() {
        use number::*;
        let work = names_of_header("gp_work", "WORK_");
        let at = |n: u8| work[usize::from(n)].as_str();
        assert_eq!(work.len(), usize::from(WORK_EXEC_DESTROY) + 1);
        assert_eq!([at(WORK_LAUNCH), at(WORK_GRAPH_LAUNCH)], ["LAUNCH", "GRAPH_LAUNCH"]);
        assert_eq!([at(WORK_COPY), at(WORK_MEMSET)], ["COPY", "MEMSET"]);
        assert_eq!([at(WORK_SYNC_STREAM), at(WORK_SYNC_ALL)], ["SYNC_STREAM", "SYNC_ALL"]);
        assert_eq!(at(WORK_STREAM_DESTROY), "STREAM_DESTROY");
        assert_eq!([at(WORK_EVENT_RECORD), at(WORK_EVENT_WAIT)], ["EVENT_RECORD", "EVENT_WAIT"]);
        assert_eq!(at(WORK_EVENT_DESTROY), "EVENT_DESTROY");
        assert_eq!([at(WORK_CAPTURE_BEGIN), at(WORK_CAPTURE_ADD)], ["CAPTURE_BEGIN", "CAPTURE_ADD"]);
        assert_eq!([at(WORK_CAPTURE_AGAIN), at(WORK_CAPTURE_END)], ["CAPTURE_AGAIN", "CAPTURE_END"]);
        assert_eq!([at(WORK_GRAPH_CREATE), at(WORK_GRAPH_CLONE)], ["GRAPH_CREATE", "GRAPH_CLONE"]);
        assert_eq!([at(WORK_GRAPH_DESTROY), at(WORK_ADD_KERNEL)], ["GRAPH_DESTROY", "ADD_KERNEL"]);
        assert_eq!([at(WORK_ADD_GRAPH), at(WORK_ADD_NODE)], ["ADD_GRAPH", "ADD_NODE"]);
        assert_eq!([at(WORK_DESTROY_NODE), at(WORK_EXEC_CREATE)], ["DESTROY_NODE", "EXEC_CREATE"]);
        assert_eq!([at(WORK_EXEC_UPDATE), at(WORK_EXEC_DESTROY)], ["EXEC_UPDATE", "EXEC_DESTROY"]);
        let launches = [0, LAUNCH_USUAL, LAUNCH_DIM3, LAUNCH_CONFIG, LAUNCH_LIST, LAUNCH_RUNTIME_LIST];
        expect("gp_launch_shape", &launches.map(u64::from));
        let copies = [
            COPY_LINEAR,
            COPY_2D,
            COPY_2D_OLD,
            COPY_3D,
            COPY_3D_OLD,
            COPY_BATCH,
            COPY_OPERATION,
            COPY_OPERATIONS,
        ];
        expect("gp_copy_shape", &copies.map(u64::from));
        let kinds = names_of_header("gp_copy_kind", "");
        assert_eq!(kinds.len(), counters::CopyDirection::ALL.len() + 2);
        for (name, direction) in kinds.iter().zip(counters::CopyDirection::ALL).take(4) {
            assert_eq!(name, direction.as_str());
        }
        assert_eq!(kinds[usize::from(COPY_BY_ARGUMENT)], "BY_ARGUMENT");
        assert_eq!(kinds[usize::from(COPY_BY_ADDRESS)], "BY_ADDRESS");
        let hosts = names_of_header("gp_host_memory", "");
        assert_eq!(hosts.len(), counters::HostMemory::ALL.len());
        let calls = names_of_header("gp_driver_call", "");
        let at = |n: u32| calls[n as usize].as_str();
        assert_eq!([at(DRIVER_IOCTL), at(DRIVER_OPEN)], ["IOCTL", "OPEN"]);
        assert_eq!(at(DRIVER_CALLS), "DRIVER_CALLS");
        let unified = names_of_header("gp_unified_event", "");
        let order = ["CPU_FAULT", "GPU_FAULT", "MOVED_TO_GPU", "MOVED_TO_CPU", "MOVED_BETWEEN_GPUS"];
        assert_eq!(unified[..order.len()], order);
        let gaps = names_of_header("gp_gap_kind", "");
        assert_eq!(gaps, ["AFTER_SYNC", "AFTER_LAUNCH", "GAP_KINDS"]);
    }

    #[test]
    fn the_numbers_of_records_are_those_of_the_header() {
        use number::*;
        let records =
            [RECORD_CALL, RECORD_PROCESS, RECORD_HOLD, RECORD_NAME, RECORD_STACK, RECORD_SITE, RECORD_XID];
        expect("gp_record_kind", &records.map(u64::from));
        expect("gp_name_kind", &[NAME_TOLD, NAME_ALIAS, NAME_CANDIDATE].map(u64::from));
        expect(
            "gp_call_flags",
            &[
                CALL_UNREAD_OUT,
                CALL_UNREAD_STACK,
                CALL_UNREAD_POINTEE,
                CALL_NESTED_ACTION,
                CALL_UNFINISHED,
                CALL_KNOWN_FREE,
                CALL_REPLACED,
                CALL_BEGUN,
                CALL_CUT_TEXT,
                CALL_NESTED_WORK,
                CALL_CAPTURED,
                CALL_KNOWN_KERNELS,
                32768,
            ]
            .map(u64::from),
        );
        expect("gp_hold_flags", &[HELD_STOPPED, HELD_POLITELY, HELD_AT_EXEC].map(u64::from));
        expect("gp_hold", &[HOLD_NOT, HOLD_BY_WAITING, HOLD_BY_STOPPING].map(u64::from));
        use crate::news::Answer;
        expect("gp_held", &[Answer::Seen as u64, Answer::Stop as u64, Answer::GoOn as u64]);
        expect("gp_stacks_wanted", &[0, STACKS_NONE.into()]);
        expect("gp_process_change", &[PROCESS_START, PROCESS_EXEC, PROCESS_EXIT].map(u64::from));
    }

    #[test]
    fn the_kernels_loss_counters_are_in_the_order_of_the_causes() {
        let header = enum_of_header("gp_loss");
        let (last, causes) = header.split_last().unwrap();
        assert_eq!(last.0, "GP_LOSS_CAUSES");
        for (name, index) in causes {
            let cause = gpuprobe_event::LossCause::from_index(usize::try_from(*index).unwrap()).unwrap();
            assert_eq!(name.trim_start_matches("GP_LOSS_").to_ascii_lowercase(), cause.as_str());
        }
    }

    #[test]
    fn short_records_are_filled_with_zero() {
        let call: gp_call = from_bytes(&[1, 0, 0, 0, 9, 0, 0, 0, 77]);
        assert_eq!((call.kind, call.function, call.id, call.pointee[159]), (1, 9, 77, 0));
        assert_eq!(as_bytes(&call).len(), size_of::<gp_call>());
    }
}
