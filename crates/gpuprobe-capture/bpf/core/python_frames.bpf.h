/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Walks the Python frames of the calling thread. Only on x86-64 with glibc; user space does not write to
 * `pythons` elsewhere.
 */
#ifndef GP_PYTHON_FRAMES_BPF_H
#define GP_PYTHON_FRAMES_BPF_H

#include "python_states.bpf.h"

/* The word at an offset of what was read last. */
static __always_inline __u64 read_word(const struct gp_python_walk *walk, __u8 offset)
{
	return *(const __u64 *)&walk->bytes[offset & (GP_PYTHON_FRAME_BYTES - 8)];
}

static __always_inline __u8 read_byte(const struct gp_python_walk *walk, __u8 offset)
{
	return walk->bytes[offset & (GP_PYTHON_FRAME_BYTES - 1)];
}

static __always_inline __u64 mixed(__u64 sum, __u64 word)
{
	return (sum ^ word) * GP_SCRAMBLE;
}

/* Reads the beginning of a line table. What cannot be read is zero. */
static __always_inline void read_table(struct gp_line_table *table, __u64 address)
{
	/* after the reference count and the type */
	const __u64 at = address + 16, words = sizeof(table->word);

	if (!bpf_probe_read_user(table, sizeof(*table), (void *)at))
		return;
	/* a small one may end before a page that is not there */
	__builtin_memset(table, 0, sizeof(*table));
	bpf_probe_read_user(table, sizeof(*table) - words, (void *)at);
	bpf_probe_read_user(table->word, table->size < words ? table->size : words, (void *)(address + 32));
}

/* The number of four bytes at an offset of what was read last. */
static __always_inline __u32 read_number(const struct gp_python_walk *walk, __u8 offset)
{
	__u64 word = read_word(walk, offset);

	return offset & 4 ? word >> 32 : word;
}

/*
 * A hash of the name of a file, if it is in ASCII. Callers and called functions are often in the same file,
 * and a name does not change while its frame exists.
 */
static __always_inline __u64 hash_of_file(struct gp_python_walk *walk, __u64 address)
{
	struct gp_file_name *file = &walk->file;
	const __u64 words = sizeof(file->word);
	__u64 sum;

	if (address == walk->file_address)
		return walk->file_hash;
	__builtin_memset(file, 0, sizeof(*file));
	/* after the reference count and the type */
	bpf_probe_read_user(file, sizeof(*file) - words, (void *)(address + 16));
	if (file->state & GP_PYTHON_ASCII)
		bpf_probe_read_user(file->word, file->length < words ? file->length : words,
				    (void *)(address + 48));
	sum = mixed(0, file->length);
	for (__u32 i = 0; i < GP_PYTHON_FILE_WORDS; i++)
		sum = mixed(sum, file->word[i]);
	walk->file_address = address;
	walk->file_hash = sum;
	return sum;
}

/* The fingerprint of a code object; 0 if it cannot be read. */
static __always_inline __u64 fingerprint_of(struct gp_python_walk *walk, const struct gp_python *python,
					    __u64 code)
{
	struct gp_line_table *table = &walk->table;
	__u64 sum, address, file;

	if (bpf_probe_read_user(walk->bytes, sizeof(walk->bytes), (void *)(code + python->code_begin)))
		return 0;
	address = read_word(walk, python->line_table);
	file = read_word(walk, python->file);
	sum = mixed(mixed(0, file), read_word(walk, python->name));
	sum = mixed(mixed(sum, address), read_number(walk, python->first_line));
	read_table(table, address);
	sum = mixed(sum, table->size);
	for (__u32 i = 0; i < GP_PYTHON_TABLE_WORDS; i++) {
		/* without what follows the table */
		if (table->size <= 8 * i)
			table->word[i] = 0;
		else if (table->size < 8 * (i + 1))
			table->word[i] &= ~0ULL >> (64 - 8 * (table->size & 7));
		sum = mixed(sum, table->word[i]);
	}
	return mixed(sum, python->version != GP_NO_OFFSET ? read_number(walk, python->version)
							  : hash_of_file(walk, file)) |
	       1;
}

struct python_step {
	struct gp_python_walk *walk;
	const struct gp_python *python;
	__u64 frame;
};

/* Adds the frame at step->frame, unless it has no Python code, and goes on to its caller. */
static long python_step(__u64 index, struct python_step *step)
{
	struct gp_python_walk *walk = step->walk;
	const struct gp_python *python = step->python;
	struct gp_python_frame *frame;
	__u64 code, instruction, fingerprint;
	__u32 at = walk->count;
	__u8 owner = 0;

	if (!step->frame) {
		walk->end = GP_PYTHON_COMPLETE;
		return 1;
	}
	if (at >= GP_PYTHON_FRAMES) {
		walk->end = GP_PYTHON_TOO_DEEP;
		return 1;
	}
	if (bpf_probe_read_user(walk->bytes, sizeof(walk->bytes), (void *)step->frame))
		return 1;
	step->frame = read_word(walk, python->previous);
	if (python->owner != GP_NO_OFFSET)
		owner = read_byte(walk, python->owner) & 7;
	if (python->shim_owners >> owner & 1) {
		if (owner == python->entry_owner && at)
			walk->frame[(at - 1) & (GP_PYTHON_FRAMES - 1)].code |= 1;
		return 0;
	}
	code = read_word(walk, python->code) & ~(python->code_tag | 1);
	instruction = read_word(walk, python->instruction);
	if (python->instruction_bytes == 4)
		instruction = (__u32)instruction;
	if (python->every_is_entry ||
	    (python->entry_flag != GP_NO_OFFSET && read_byte(walk, python->entry_flag)))
		code |= 1;
	fingerprint = fingerprint_of(walk, python, code & ~1ULL);
	walk->hash = mixed(mixed(mixed(walk->hash, code), instruction), fingerprint);
	frame = &walk->frame[at & (GP_PYTHON_FRAMES - 1)];
	frame->code = code;
	frame->instruction = instruction;
	frame->fingerprint = fingerprint;
	walk->count = at + 1;
	return 0;
}

/* Whether the current thread is named as those of PyTorch's backward pass. */
static __always_inline bool is_autograd_thread(void)
{
	const char expected[] = "pt_autograd_";
	char name[16] = {};

	bpf_get_current_comm(name, sizeof(name));
	for (__u32 i = 0; i < sizeof(expected) - 1; i++)
		if (name[i] != expected[i])
			return false;
	return true;
}

/*
 * Walks the frames of the current thread into its state, also a hash of them, which it returns:
 * gp_python_absence if there are none, or if not even the first could be read. The same frames always have
 * the same hash.
 */
GP_GLOBAL_FUNC __u64 walk_python(__u32 tgid, __u64 stack_pointer)
{
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	struct gp_python *python = bpf_map_lookup_elem(&pythons, &tgid);
	struct python_step step = {};
	bool is_read;
	int found;

	if (!thread)
		return GP_NO_PYTHON;
	thread->python.count = 0;
	thread->python.hash = GP_NO_PYTHON;
	if (!python)
		return GP_NO_PYTHON;
	thread->python.file_address = 0;
	thread->python.file_hash = 0;
	thread->python.end = GP_PYTHON_LOST;
	step.walk = &thread->python;
	step.python = python;
	found = find_state(tgid, stack_pointer);
	if (found == GP_STATE_UNCERTAIN) {
		count_loss(GP_LOSS_UNASSIGNED_PYTHON);
		return GP_NO_PYTHON;
	}
	is_read = found == GP_STATE_FOUND && innermost_frame(python, thread->python.state, &step.frame);
	if (is_read && !step.frame && is_autograd_thread())
		thread->python.hash = GP_AUTOGRAD_THREAD;
	if (is_read && step.frame) {
		bpf_loop(GP_PYTHON_STEPS, python_step, &step, 0);
		is_read = thread->python.count || thread->python.end == GP_PYTHON_COMPLETE;
		thread->python.hash = thread->python.count ? thread->python.hash | 1 : GP_NO_PYTHON;
	}
	/* user space counts the rest of a walk whose first frames it gets */
	if (!is_read)
		count_loss(GP_LOSS_UNREAD_PYTHON);
	return thread->python.hash;
}

/* Sends the frames that walk_python() found, before the stack with this id. Returns whether they were sent.
 */
GP_GLOBAL_FUNC int send_python(__u64 id, __u32 stack_kind)
{
	struct gp_thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	struct gp_python_record *record;

	if (!thread || !thread->python.count)
		return 0;
	record = bpf_ringbuf_reserve(&python_stacks, sizeof(*record), 0);
	if (!record) {
		count_loss(GP_LOSS_LOST_STACK);
		return 0;
	}
	record->kind = GP_RECORD_PYTHON;
	record->end = thread->python.end;
	record->tgid = thread->tgid;
	record->instance = thread->instance;
	record->id = id;
	record->stack_kind = stack_kind;
	record->frames = thread->python.count;
	record->reserved = 0;
	/* clang copies only up to 1 KiB itself */
	bpf_probe_read_kernel(record->frame, sizeof(record->frame), thread->python.frame);
	bpf_ringbuf_submit(record, 0);
	return 1;
}

#endif
