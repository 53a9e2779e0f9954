"""Ten thousand Python frames: deep_recursion.py LIBCUDART"""

import os
import sys
import threading

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402

DEPTH = 10_000


def recurse(depth):
    if depth:
        recurse(depth - 1)
    else:
        leak(4096)


sys.setrecursionlimit(DEPTH + 1000)
# up to 3.10 each Python frame also has native ones
threading.stack_size(256 << 20)
thread = threading.Thread(target=recurse, args=(DEPTH,))
thread.start()
thread.join()
leak_ledger.print_ledger()
