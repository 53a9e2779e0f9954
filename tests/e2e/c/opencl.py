"""Uses OpenCL through pyopencl and prints how many buffers and launches each line has made."""

import json
import os

import numpy
import pyopencl as cl

SOURCE = "__kernel void twice(__global int *c) { c[get_global_id(0)] *= 2; }"

context = cl.Context(cl.get_platforms()[0].get_devices())
queue = cl.CommandQueue(context)
kernel = cl.Program(context, SOURCE).build().twice
host = numpy.arange(1024, dtype=numpy.int32)
for _ in range(7):
    large = cl.Buffer(context, cl.mem_flags.READ_WRITE, 65536)  # buffers
for _ in range(3):
    small = cl.Buffer(context, cl.mem_flags.READ_WRITE, host.nbytes)  # buffers
cl.enqueue_copy(queue, small, host)
for _ in range(5):
    kernel(queue, host.shape, None, small)  # launches
for _ in range(2):
    cl.enqueue_nd_range_kernel(queue, kernel, host.shape, (32,))  # launches
cl.enqueue_copy(queue, host, small)
assert host[3] == 3 << 7


def lines(what, counts):
    with open(__file__) as source:
        found = [number for number, text in enumerate(source, 1) if text.endswith(f"  # {what}\n")]
    return dict(zip(map(str, found), counts, strict=True))


print(json.dumps({"pid": os.getpid(), "buffers": lines("buffers", [7, 3]), "launches": lines("launches", [5, 2])}))
