/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * two_events OBJECT LIBRARY [both|entry|switched FUNCTION...]: probes eleven functions of a CUDA runtime, two
 * events per call, and prints a line for each; or attaches empty probes to entry and return, or to the entry
 * only, of the given functions. `switched` attaches those of the entry for a millisecond, again and again, as
 * sampling does for longer. Prints `ready` on stderr, and the number of events after SIGINT. It exists only
 * to compare gpuprobe with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <bpf/libbpf.h>
#include "two_events.h"

static const char *const functions[] = {
    "cudaMalloc",	    "cudaFree",
    "cudaMemcpy",	    "cudaLaunchKernel",
    "cudaStreamCreate",	    "cudaStreamSynchronize",
    "cudaGetDevice",	    "cudaSetDevice",
    "cudaEventCreate",	    "cudaEventRecord",
    "cudaEventSynchronize",
};
#define FUNCTIONS (sizeof(functions) / sizeof(*functions))

static volatile sig_atomic_t stop_requested;
static unsigned long long received;

static void stop(int number)
{
	(void)number;
	stop_requested = 1;
}

static int print(void *unused, void *data, size_t bytes)
{
	const struct event *event = data;
	const char *name = event->function < FUNCTIONS ? functions[event->function] : "?";

	(void)unused;
	if (bytes < sizeof(*event))
		return 0;
	received++;
	if (event->is_return)
		printf("%llu %s %u %s returned %d\n", event->at_ns, event->program, event->pid, name,
		       event->result);
	else
		printf("%llu %s %u %s(0x%llx, 0x%llx, 0x%llx)\n", event->at_ns, event->program, event->pid,
		       name, event->arguments[0], event->arguments[1], event->arguments[2]);
	return 0;
}

static int attach_events(struct bpf_object *object, const char *library)
{
	static const char *const programs[] = {"entered", "returned"};

	for (int i = 0; i < 2 * (int)FUNCTIONS; i++) {
		LIBBPF_OPTS(bpf_uprobe_opts, options, .retprobe = i % 2, .bpf_cookie = i / 2,
			    .func_name = functions[i / 2]);
		struct bpf_program *program = bpf_object__find_program_by_name(object, programs[i % 2]);

		if (!bpf_program__attach_uprobe_opts(program, -1, library, 0, &options))
			return 0;
	}
	return 1;
}

/* File offset of a function, from the dynamic symbol table, which stripped libraries keep; 0 if not found. */
static unsigned long offset_of(Elf *elf, const char *name)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	GElf_Phdr segment;
	GElf_Sym symbol;

	while ((section = elf_nextscn(elf, section))) {
		if (!gelf_getshdr(section, &header) || header.sh_type != SHT_DYNSYM)
			continue;
		for (int i = 0; gelf_getsym(elf_getdata(section, NULL), i, &symbol); i++) {
			if (strcmp(elf_strptr(elf, header.sh_link, symbol.st_name), name))
				continue;
			for (int k = 0; gelf_getphdr(elf, k, &segment); k++)
				if (segment.p_type == PT_LOAD &&
				    symbol.st_value - segment.p_vaddr < segment.p_filesz)
					return symbol.st_value - segment.p_vaddr + segment.p_offset;
		}
	}
	return 0;
}

/* Attaches probes for a millisecond, three times a second, until it is stopped. */
static int switch_probes(struct bpf_program *program, const char *library,
			 const struct bpf_uprobe_multi_opts *options)
{
	fprintf(stderr, "ready\n");
	while (!stop_requested) {
		struct bpf_link *link = bpf_program__attach_uprobe_multi(program, -1, library, NULL, options);

		if (!link)
			return 0;
		usleep(1000);
		bpf_link__destroy(link);
		usleep(332000);
	}
	return 1;
}

static int attach_empty_probes(struct bpf_object *object, const char *library, const char *ends, int count,
			       char **names)
{
	int at_both = !strcmp(ends, "both");
	struct bpf_program *program =
	    bpf_object__find_program_by_name(object, at_both ? "nothing_at_both" : "nothing_at_entry");
	unsigned long offsets[FUNCTIONS] = {};
	LIBBPF_OPTS(bpf_uprobe_multi_opts, options, .offsets = offsets, .cnt = count, .session = at_both);
	Elf *elf;

	elf_version(EV_CURRENT);
	elf = elf_begin(open(library, O_RDONLY), ELF_C_READ_MMAP, NULL);
	for (int i = 0; elf && i < count && count <= (int)FUNCTIONS; i++) {
		offsets[i] = offset_of(elf, names[i]);
		if (!offsets[i])
			return 0;
	}
	if (!elf || count > (int)FUNCTIONS)
		return 0;
	if (!strcmp(ends, "switched"))
		return switch_probes(program, library, &options);
	return bpf_program__attach_uprobe_multi(program, -1, library, NULL, &options) != NULL;
}

int main(int count, char **words)
{
	struct bpf_object *object = count >= 3 ? bpf_object__open_file(words[1], NULL) : NULL;
	struct ring_buffer *ring;

	if (!object || bpf_object__load(object)) {
		fprintf(stderr, "two_events: cannot load\n");
		return 1;
	}
	signal(SIGINT, stop);
	ring = ring_buffer__new(bpf_object__find_map_fd_by_name(object, "events"), print, NULL, NULL);
	if (!ring || !(count > 3 ? attach_empty_probes(object, words[2], words[3], count - 4, words + 4)
				 : attach_events(object, words[2]))) {
		fprintf(stderr, "two_events: cannot attach to %s\n", words[2]);
		return 1;
	}
	fprintf(stderr, "ready\n");
	while (!stop_requested) {
		int taken = ring_buffer__poll(ring, 100);

		if (taken < 0 && taken != -EINTR)
			return 1;
	}
	fprintf(stderr, "%llu events\n", received);
	bpf_object__close(object);
	return 0;
}
