"""Functions whose names and files would harm a terminal, a table or a parser: hostile_names.py LIBCUDART

It waits for a line before its first call.
"""

import os
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402

# an escape sequence, line ends, NUL, a mark that reverses what follows, half a character, and a line of another file
BAD = 'evil\x1b]0;title\x07\x1b[2J\r\n\x00\u202e\ud800"\\ < f (train.py:1)'


def renamed(function, name, file):
    code = function.__code__.replace(co_name=name, co_filename=file)
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=name)
    function.__code__ = code
    return function


def first():
    leak(4096)


def second():
    leak(4096)


def third():
    leak(4096)


FUNCTIONS = [
    renamed(first, BAD, BAD),
    # nearly as long as a name may be, and longer
    renamed(second, BAD + "n" * 900, BAD + "f" * 3900),
    renamed(third, "n" * 5000, "f" * 50_000),
]
leak_ledger.wait()
for function in FUNCTIONS * 3:
    function()
# names are read while the process exists
time.sleep(3)
