"""Two greenlets that switch inside a CUDA call. greenlet copies the part of the stack that both use away and back.

greenlets.py LIBCUDART [ROUNDS] prints how many calls were made.
"""

import ctypes
import sys

import greenlet

cudart = ctypes.CDLL(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 100
made = failed = 0
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def allocate_and_free():
    global made, failed
    block = ctypes.c_void_p()
    failed |= cudart.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(4096))
    failed |= cudart.cudaFree(block)
    made += 2


@CALLBACK
def switch(_):
    scheduler.switch()


def deeper(levels, work):
    return deeper(levels - 1, work) if levels else work()


def call_out():
    global made, failed
    made += 1
    failed |= cudart.cudaLaunchHostFunc(None, switch, None)


def loop(depth):
    while True:
        deeper(depth, call_out)
        allocate_and_free()
        scheduler.switch()


scheduler = greenlet.getcurrent()
pair = [greenlet.greenlet(lambda: loop(0)), greenlet.greenlet(lambda: loop(20))]
for i in range(rounds):
    first, returns_first = i & 1, i >> 1 & 1
    pair[first].switch()
    allocate_and_free()
    pair[1 - first].switch()
    deeper(40, allocate_and_free)
    pair[returns_first].switch()
    pair[1 - returns_first].switch()
print('{"made":%d}' % made, flush=True)
sys.exit(failed)
