"""Code objects that are freed after each call: freed_code.py LIBCUDART ROUNDS MILLISECONDS

The next one is often at the same address. Each is a cell of a notebook: it has another file than the one before, with a
name of the same length, and another line. It exists for some milliseconds after its call. Every tenth call comes from a
function that stays.
"""

import os
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402


def stays(size):
    leak(size)


def cell(number):
    text = "\n" * (number % 7) + "leak(size); rest()\n"
    names = {"leak": leak, "size": 256 * (number + 1), "rest": rest}
    exec(compile(text, "<cell %05d>" % number, "exec"), names)


def rest():
    time.sleep(int(sys.argv[3]) / 1000)


for number in range(int(sys.argv[2])):
    if number % 10:
        cell(number)
    else:
        stays(256 * (number + 1))
leak_ledger.print_ledger()
