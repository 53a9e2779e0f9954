"""Waits for a stream in two of several interpreters: hung_interpreters.py LIBCUDA

The first thread is in the oldest interpreter, which a newer one has called. Another thread is in one that the first
thread has made.
"""

import os
import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

PREPARE = f"""
import ctypes
import {interpreters.__name__} as interpreters
cuda = ctypes.CDLL({sys.argv[1]!r})
cuda.cuInit(0)
"""
WAIT = """
def wait_in_{name}():
    cuda.cuStreamSynchronize(None)
wait_in_{name}()
"""


def create():
    is_new = sys.version_info >= (3, 13)
    made = interpreters.create("legacy") if is_new else interpreters.create(isolated=False)
    run(made, PREPARE)
    return made


def run(interpreter, code):
    problem = interpreters.run_string(interpreter, code)
    if problem is not None:
        raise RuntimeError(problem)


oldest, newer, newest = create(), create(), create()
print(os.getpid(), flush=True)
threading.Thread(target=run, args=(newest, WAIT.format(name="thread"))).start()
call = WAIT.format(name="first")
run(newer, f"interpreters.run_string({int(oldest)}, {call!r})")
