/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Part of copies.bpf.h: the structs that describe copies in HIP. */
#ifndef GP_HIP_COPIES_BPF_H
#define GP_HIP_COPIES_BPF_H

/*
 * One end in a struct of HIP: an address of the host, an address of the GPU and an array, of which one is
 * set. The numbers of its types of memory are different in each release.
 */
static __always_inline struct end end_of_pointers(__u64 at, bool *failed)
{
	struct end end = {.address = user_word(at, 8, failed), .type = GP_TYPE_UNIFIED};

	if (!end.address)
		end.address = user_word(at + 8, 8, failed);
	if (!end.address)
		end.type = GP_TYPE_ARRAY;
	return end;
}

GP_GLOBAL_FUNC int read_hip_struct(__u64 at, __u32 shape, struct copy *copy)
{
	bool failed = false, is_3d = shape == GP_COPY_HIP_3D;

	if (!copy)
		return 0;
	copy->source = end_of_pointers(at + (is_3d ? 40 : 24), &failed);
	copy->target = end_of_pointers(at + (is_3d ? 120 : 80), &failed);
	return !failed;
}

/*
 * hipMemcpy3DParms: an array or an address for each end, and the kind. The width is in elements if there is
 * an array, whose size is not known, so such a copy is not read.
 */
GP_GLOBAL_FUNC int read_parms(__u64 at, struct copy *copy)
{
	bool failed = false;
	__u32 kind;

	if (!copy)
		return 0;
	kind = user_word(at + 152, 4, &failed);
	set_types(copy, kind <= GP_D2D ? kind : GP_BY_ADDRESS);
	copy->source.address = user_word(at + 32, 8, &failed);
	copy->target.address = user_word(at + 96, 8, &failed);
	if (user_word(at, 8, &failed) || user_word(at + 64, 8, &failed))
		return 0;
	return !failed;
}

#endif
