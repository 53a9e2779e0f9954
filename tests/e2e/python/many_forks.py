"""Allocates twice, forks children that only wait, and then one that allocates: many_forks.py LIBCUDART COUNT

It waits for a line before each of its allocations and before it forks. It prints a ledger before it forks, and its last
child prints one. The other children exit with it.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402


def of_parent():
    leak(4096)


def of_child():
    leak(8192)


leak_ledger.wait()
of_parent()
leak_ledger.wait()
of_parent()
leak_ledger.print_ledger()
until, running = os.pipe()
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        os.close(running)
        os.read(until, 1)
        os._exit(0)
if os.fork() == 0:
    leak_ledger.rows.clear()
    of_child()
    leak_ledger.print_ledger()
    os._exit(0)
os.wait()
