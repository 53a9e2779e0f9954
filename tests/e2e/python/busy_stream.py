"""Waits for a stream again and again, and counts in a local variable: busy_stream.py LIBCUDA"""

import ctypes
import os
import sys


def train(cuda):
    step = 0
    while True:
        cuda.cuStreamSynchronize(None)
        step += 1


library = ctypes.CDLL(sys.argv[1])
library.cuInit(0)
print(os.getpid(), flush=True)
train(library)
