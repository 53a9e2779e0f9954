"""Waits for a stream, in a method that a module calls: hung_stream.py LIBCUDA"""

import ctypes
import os
import sys

cuda = ctypes.CDLL(sys.argv[1])


def wait_for_stream():
    cuda.cuStreamSynchronize(None)


class Model:
    def forward(self):
        return wait_for_stream()


cuda.cuInit(0)
print(os.getpid(), flush=True)
Model().forward()
