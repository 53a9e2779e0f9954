"""Code objects that are freed after each call, so that others are at their addresses: freed_code.py LIBCUDART ROUNDS

The line of each call is another one, and the file too: its name is made of the same characters. Every tenth call comes
from a function that stays.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402


def stays(size):
    leak(size)


def compiled(number):
    text = "\n" * (number % 97) + "leak(size)\n"
    exec(compile(text, "<cell %05d>" % number, "exec"), {"leak": leak, "size": 256 * (number + 1)})


for number in range(int(sys.argv[2])):
    if number % 10:
        compiled(number)
    else:
        stays(256 * (number + 1))
leak_ledger.print_ledger()
