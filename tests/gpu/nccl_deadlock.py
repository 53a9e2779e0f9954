"""Two threads of one process, each the first of two ranks of a communicator whose second never comes. Prints its pid before
they wait; ends after SECONDS: nccl_deadlock.py SECONDS
"""

import ctypes
import glob
import json
import os
import sys
import threading
import time

import torch


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def library():
    folder = os.path.dirname(torch.__file__)
    wheels = glob.glob(os.path.join(folder, "..", "nvidia", "nccl", "lib", "libnccl.so.2"))
    return ctypes.CDLL(wheels[0] if wheels else "libnccl.so.2")


nccl = library()
nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]


def join(own):
    torch.cuda.set_device(0)
    communicator = ctypes.c_void_p()
    nccl.ncclCommInitRank(ctypes.byref(communicator), 2, own, 0)


ids = [UniqueId(), UniqueId()]
for own in ids:
    assert nccl.ncclGetUniqueId(ctypes.byref(own)) == 0
torch.ones(1, device="cuda")
for own in ids:
    threading.Thread(target=join, args=(own,), daemon=True).start()
time.sleep(1)
print(json.dumps({"pid": os.getpid()}), flush=True)
time.sleep(float(sys.argv[1]))
os._exit(0)
