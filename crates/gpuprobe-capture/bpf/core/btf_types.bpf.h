/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Types that user space needs and that no map uses. The compiler omits types without a variable from the
 * BTF type information, and Rust's types and constants are generated from that.
 */
#ifndef GP_BTF_TYPES_BPF_H
#define GP_BTF_TYPES_BPF_H

#include "maps.bpf.h"
#include "../wire/thread_sample.h"

/* No program reads or writes this variable. It occupies some bytes of a page that exists anyway. */
struct gp_types {
	struct gp_process_record process_record;
	struct gp_name_record name_record;
	struct gp_graph_record graph_record;
	struct gp_pending_call pending_call;
	struct gp_python_record python_record;
	struct gp_stack_record stack_record;
	struct gp_out_of_memory_record out_of_memory_record;
	struct gp_xid_record xid_record;
	struct gp_thread_sample thread_sample;
	struct gp_agent_record agent_record;

	enum gp_length length;
	enum gp_device device;
	enum gp_space space;
	enum gp_library_state library_state;
	enum gp_status_register status_register;
	enum gp_loss loss;
	enum gp_arg_loc_kind arg_loc_kind;
	enum gp_action action;
	enum gp_memory_op memory_op;
	enum gp_size_rule size_rule;
	enum gp_function_flags function_flags;
	enum gp_record_kind record_kind;
	enum gp_call_flags call_flags;
	enum gp_unprobed unprobed;
	enum gp_effect effect;
	enum gp_name_kind name_kind;
	enum gp_graph_change graph_change;
	enum gp_python_length python_length;
	enum gp_python_end python_end;
	enum gp_python_absence python_absence;
	enum gp_agent_probe agent_probe;
	enum gp_process_change process_change;

	enum gp_pause_flags pause_flags;
	enum gp_pause_state pause_state;
	enum gp_pause pause;

	enum gp_device_syscall syscall;
	enum gp_device_kind device_kind;
	enum gp_minor minor;
	enum gp_unified_event unified_event;

	enum gp_context_flags context_flags;
	enum gp_bit bit;

	enum gp_stack_length stack_length;
	enum gp_scramble scramble;
	enum gp_stacks_wanted stacks_wanted;
	enum gp_thread_sample_length thread_sample_length;

	enum gp_op op;
	enum gp_launch_shape launch_shape;
	enum gp_copy_shape copy_shape;
	enum gp_copy_kind copy_kind;
	enum gp_host_memory host_memory;
	enum gp_gap_kind gap_kind;
} gp_types = {};

#endif
