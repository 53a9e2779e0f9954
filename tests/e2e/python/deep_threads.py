"""Allocates deep inside native functions, in threads with and without Python: deep_threads.py LIBCUDART LIBRARY

LIBRARY is compiled from c/deep_threads.c. The sizes say which thread it was; the ledger has no lines.
"""

import ctypes
import os
import sys
import threading

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402

SIZES = {b"pt_autograd_0": 4096, b"worker": 8192, b"pt_autograd_1": 12288}

library = ctypes.CDLL(sys.argv[2])
allocate = ctypes.cast(leak_ledger.cudart.cudaMalloc, ctypes.c_void_p)


def record(size):
    leak_ledger.rows.append({"stack": [], "bytes": size})
    return ctypes.c_size_t(size)


def native(name):
    assert library.deep_thread(allocate, record(SIZES[name]), name) == 0


def of_python(name):
    """This thread has the name of those of PyTorch's backward pass, but runs Python."""
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
    assert library.deep_call(allocate, record(SIZES[name])) == 0


leak_ledger.wait()
for _ in range(3):
    native(b"pt_autograd_0")
    native(b"worker")
    thread = threading.Thread(target=of_python, args=(b"pt_autograd_1",))
    thread.start()
    thread.join()
leak_ledger.print_ledger()
os._exit(0)
