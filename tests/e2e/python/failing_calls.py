"""Waits for a line, and makes calls of which STANDIN_FAIL makes some fail: failing_calls.py LIBCUDART

Each row of the ledger says whether its call failed.
"""

import functools
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402


class Trainer:
    def step(self, number):
        failed = leak(4096 + number)
        leak_ledger.rows[-1]["failed"] = failed
        return failed


def epoch(trainer):
    return functools.reduce(lambda failed, number: failed + trainer.step(number), range(7), 0)


leak_ledger.wait()
epoch(Trainer())
sum(Trainer().step(number) for number in range(7, 14))
leak_ledger.print_ledger()
