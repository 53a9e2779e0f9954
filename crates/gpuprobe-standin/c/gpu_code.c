/*
 * The sections of a program with CUDA kernels: images for the GPU, and a descriptor for each that the program
 * passes to the runtime. They are loaded with the program, so stripping keeps them.
 */
static const unsigned long long image[2] __attribute__((section(".nv_fatbin"), used, aligned(8))) = {1, 0};

struct descriptor {
	int magic;
	int version;
	const void *image;
	void *unused;
};

/* the loader fills in its address, so it cannot be constant */
static struct descriptor descriptor
    __attribute__((section(".nvFatBinSegment"), used, aligned(8))) = {0x466243b1, 1, image, 0};
