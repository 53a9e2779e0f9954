/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Finds the Python thread state of the calling thread, whose frames it runs. The interpreter's "current"
 * thread state is not set while the GIL is released, as it is in most calls to the GPU. The thread-specific
 * key of the interpreter has the state also then.
 *
 * If a process has several interpreters, a thread may have a state in each, and may use one that another
 * thread has made. Since 3.12 the key has the one that it used last. Before, the key has the first one that
 * the thread made, so all states are searched. 3.10 and 3.11: each evaluation of Python code has a C frame on
 * the stack of the thread that evaluates, and the state points to the innermost. The state in use is the one
 * whose C frame is the innermost on the stack of the calling thread. In 3.9 nothing tells, so the state of
 * the key counts only while no other interpreter runs code.
 *
 * The program changes its lists meanwhile. A list counts only if each state points back to the one before it
 * and to its interpreter, and if the last interpreter is the main one, which is the oldest.
 */
#ifndef GP_PYTHON_STATES_BPF_H
#define GP_PYTHON_STATES_BPF_H

#include "own_stack.bpf.h"

/* where glibc has the values of the first keys, from the thread pointer; pointers to further blocks follow */
#define GP_FIRST_KEYS 0x310
#define GP_KEYS_IN_BLOCK 32
#define GP_KEY_SIZE 16
#define GP_MOST_KEYS 1024

/* What is known about the state of a thread. */
enum gp_state {
	GP_STATE_FOUND,
	/* memory could not be read */
	GP_STATE_UNREAD,
	/* the process has several interpreters, and any of several states may be in use */
	GP_STATE_UNCERTAIN,
};

/* Reads a word. Returns whether that was possible. */
static __always_inline bool word_at(__u64 address, __u64 *word)
{
	return !bpf_probe_read_user(word, sizeof(*word), (void *)address);
}

/*
 * Reads the value that the current thread has for a thread-specific key: 0 if it has none. Returns whether
 * that was possible.
 */
static __always_inline bool value_of_key(__u64 pointer, __u32 key, __u64 *value)
{
	__u64 block = pointer + GP_FIRST_KEYS;

	*value = 0;
	if (!pointer || key >= GP_MOST_KEYS)
		return false;
	/* the pointer to the first block is there as well */
	if (key >= GP_KEYS_IN_BLOCK &&
	    !word_at(block + GP_KEYS_IN_BLOCK * GP_KEY_SIZE + 8 * (key / GP_KEYS_IN_BLOCK), &block))
		return false;
	return !block || word_at(block + key % GP_KEYS_IN_BLOCK * GP_KEY_SIZE + 8, value);
}

/* The thread state that the key of the current thread has: 0 if none. Returns whether it could be read. */
static __always_inline bool state_of_key(const struct gp_python *python, __u64 *state)
{
	__u64 pointer = thread_pointer_of(bpf_get_current_task_btf());
	__u32 key = 0;

	return !bpf_probe_read_user(&key, sizeof(key), (void *)python->thread_key) &&
	       value_of_key(pointer, key, state);
}

/* The innermost frame of a thread state, which may be 0: 0 if it has none. Returns whether it could be read.
 */
static __always_inline bool innermost_frame(const struct gp_python *python, __u64 state, __u64 *frame)
{
	*frame = 0;
	if (state && !word_at(state + python->thread_frame, frame))
		return false;
	return !*frame || !python->has_c_frame || word_at(*frame + python->frame_in_c_frame, frame);
}

/* What every thread state begins with, up to 3.11 and later. */
struct state_links {
	__u64 previous;
	__u64 next;
	__u64 interpreter;
};

struct state_step {
	struct gp_state_search *search;
	const struct gp_python *python;
};

/* Goes on to the states of the next interpreter. Returns 1 if there is none. */
static __always_inline long next_interpreter(struct gp_state_search *search, const struct gp_python *python)
{
	__u64 next = 0;

	search->previous = 0;
	if (search->interpreter == search->main) {
		search->is_complete = 1;
		return 1;
	}
	if (!word_at(search->interpreter + python->next_interpreter, &next) || !next)
		return 1;
	search->interpreter = next;
	return !word_at(next + python->first_thread, &search->state);
}

/* Looks at one thread state. */
static long state_step(__u64 index, struct state_step *step)
{
	struct gp_state_search *search = step->search;
	const struct gp_python *python = step->python;
	struct state_links links;
	__u64 frame = 0;

	if (!search->state)
		return next_interpreter(search, python);
	if (bpf_probe_read_user(&links, sizeof(links), (void *)search->state) ||
	    links.previous != search->previous || links.interpreter != search->interpreter ||
	    !word_at(search->state + (python->c_frame ? python->c_frame : python->thread_frame), &frame))
		return 1;
	if (!python->c_frame) {
		if (frame && links.interpreter != search->interpreter_of_key)
			search->others_run = 1;
	} else if (is_in(&search->stack, frame)) {
		search->found = search->state;
		/* only one further inside counts now */
		search->stack.end = frame;
	}
	search->previous = search->state;
	search->state = links.next;
	return 0;
}

/* Searches the states of all interpreters for the one in use. */
static __always_inline int search_states(struct gp_thread *thread, const struct gp_python *python,
					 __u64 stack_pointer)
{
	struct gp_state_search *search = &thread->python.search;
	struct state_step step = {.search = search, .python = python};
	__u64 of_key = thread->python.state, frame = 0;

	if (!is_in(&thread->own_stack, stack_pointer))
		learn_own_stack(thread, stack_pointer);
	if (!is_in(&thread->own_stack, stack_pointer))
		return GP_STATE_UNCERTAIN;
	search->stack.start = stack_pointer;
	search->stack.end = thread->own_stack.end;
	search->interpreter_of_key = 0;
	if (of_key && !word_at(of_key + __builtin_offsetof(struct state_links, interpreter),
			       &search->interpreter_of_key))
		return GP_STATE_UNREAD;
	if (!word_at(search->interpreter + python->first_thread, &search->state))
		return GP_STATE_UNREAD;
	search->previous = 0;
	search->found = 0;
	search->others_run = 0;
	search->is_complete = 0;
	bpf_loop(GP_PYTHON_STATES, state_step, &step, 0);
	if (!search->is_complete || search->others_run)
		return GP_STATE_UNCERTAIN;
	if (search->found)
		thread->python.state = search->found;
	else if (python->c_frame && (!innermost_frame(python, of_key, &frame) || frame))
		/* it runs code, on another stack */
		return GP_STATE_UNCERTAIN;
	return GP_STATE_FOUND;
}

/* Finds the state of the current thread, and stores it in thread->python.state: 0 if it has none. */
GP_GLOBAL_FUNC int find_state(__u32 tgid, __u64 stack_pointer)
{
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	struct gp_python *python = bpf_map_lookup_elem(&pythons, &tgid);
	/* the newest and the main one */
	__u64 interpreters[2] = {}, state = 0;

	if (!thread || !python || !state_of_key(python, &state))
		return GP_STATE_UNREAD;
	thread->python.state = state;
	if (!python->interpreters)
		return GP_STATE_FOUND;
	if (bpf_probe_read_user(interpreters, sizeof(interpreters), (void *)python->interpreters))
		return GP_STATE_UNREAD;
	if (interpreters[0] == interpreters[1])
		return GP_STATE_FOUND;
	thread->python.search.interpreter = interpreters[0];
	thread->python.search.main = interpreters[1];
	return search_states(thread, python, stack_pointer);
}

#endif
