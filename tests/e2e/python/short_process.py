"""Waits for a line, allocates from a function and exits at once: short_process.py LIBCUDART HOW

HOW is `exit`, `fork` (a child allocates as well, at once) or `exec` (this program is executed again, and only then
allocates). Each process prints its ledger; only with `exit` it does not wait for a line then.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402


def last_call(size):
    leak(size)


how = sys.argv[2]
if how != "executed":
    leak_ledger.wait()
if how == "exec":
    arguments = [sys.executable, "-I", "-B", __file__, sys.argv[1], "executed"]
    os.execv(sys.executable, arguments)
for number in range(3):
    last_call(4096 + 256 * number)
if how == "fork":
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    else:
        leak_ledger.rows.clear()
        last_call(8192)
if how == "exit":
    sys.stdin.close()
    sys.stdin = open(os.devnull)
leak_ledger.print_ledger()
os._exit(0)
