/* Rules about physical memory, its references and its mappings. */
#include "rules.h"

uint64_t create_on(int device, size_t size)
{
	struct CUmemAllocationProp prop = {.type = 1, .location = {1, device}};
	uint64_t handle = 0;

	must(!cuMemCreate(&handle, size, &prop, 0), "physical memory");
	allocated(KIND_VMM, device, size);
	return handle;
}

static uint64_t reserve(size_t size)
{
	uint64_t base = 0;

	must(!cuMemAddressReserve(&base, size, 0, 0, 0), "addresses");
	return base;
}

void rule_unmap(void)
{
	uint64_t base = reserve(32 * MIB), handles[3];
	size_t at = 0;

	for (size_t i = 0; i < 3; i++) {
		handles[i] = create_on(0, 2 * (i + 1) * MIB);
		must(!cuMemMap(base + at, 2 * (i + 1) * MIB, 0, handles[i], 0), "it is mapped");
		must(!cuMemRelease(handles[i]), "its reference goes");
		at += 2 * (i + 1) * MIB;
	}
	show();
	must(cuMemUnmap(base, 7 * MIB), "half a mapping cannot be unmapped");
	show();
	must(!cuMemUnmap(base, 6 * MIB), "two mappings go at once");
	freed(KIND_VMM, 0, 2 * MIB);
	freed(KIND_VMM, 0, 4 * MIB);
	show();
	must(!cuMemUnmap(base + 6 * MIB, 6 * MIB), "and the third");
	freed(KIND_VMM, 0, 6 * MIB);
	show();
}

void rule_retain(void)
{
	uint64_t base = reserve(32 * MIB), first = create_on(0, 4 * MIB), second, again = 0;

	must(!cuMemMap(base, 4 * MIB, 0, first, 0) && !cuMemMap(base + 4 * MIB, 4 * MIB, 0, first, 0),
	     "mapped");
	must(!cuMemRelease(first), "its first reference goes");
	must(!cuMemUnmap(base, 4 * MIB), "one mapping goes");
	show();
	must(!cuMemRetainAllocationHandle(&again, base + 5 * MIB), "a reference from what is mapped");
	must(!cuMemUnmap(base + 4 * MIB, 4 * MIB), "the last mapping goes");
	show();
	must(!cuMemRelease(again), "the last reference goes");
	freed(KIND_VMM, 0, 4 * MIB);
	show();
	second = create_on(0, 6 * MIB);
	must(second == first, "its number is the next one's");
	must(cuMemRelease(second + 1), "an unused number");
	show();
}

void rule_import(void)
{
	uint64_t base = reserve(8 * MIB), own = create_on(0, 4 * MIB), imported = 0;
	long shared = 0;

	must(!cuMemExportToShareableHandle(&shared, own, 1, 0), "it is exported");
	must(!cuMemImportFromShareableHandle(&imported, (void *)shared, 1), "it is imported");
	show();
	must(!cuMemMap(base, 4 * MIB, 0, imported, 0), "it is mapped");
	allocated(KIND_VMM, 0, 4 * MIB);
	show();
	must(!cuMemUnmap(base, 4 * MIB), "it has a reference");
	show();
	must(!cuMemRelease(imported), "it had a reference");
	freed(KIND_VMM, 0, 4 * MIB);
	show();
}
