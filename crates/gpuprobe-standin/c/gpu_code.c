/*
 * The sections that a program with kernels has: images for the GPU, and for each of them a descriptor that
 * the program hands to the runtime. They are loaded with the program, so that they stay when it is stripped.
 */
static const unsigned long long image[2] __attribute__((section(".nv_fatbin"), used, aligned(8))) = {1, 0};

struct descriptor {
	int magic;
	int version;
	const void *image;
	void *unused;
};

/* its address is filled in by the loader, so it cannot be constant */
static struct descriptor descriptor
    __attribute__((section(".nvFatBinSegment"), used, aligned(8))) = {0x466243b1, 1, image, 0};
