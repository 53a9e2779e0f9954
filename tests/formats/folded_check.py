"""Compares folded stacks with the trace they were made from: folded_check.py TRACE FILE"""

import re
import sys

from trace import Trace

trace = Trace(sys.argv[1])
total_ns = sum(call.end - call.start for call in trace.calls if call.depth == 0)
rows, sum_us = 0, 0
with open(sys.argv[2], encoding="utf-8") as file:
    for line in file:
        found = re.fullmatch(r"([^\x00-\x1f]+) ([0-9]+)\n", line)
        assert found, f"not a stack with a time: {line!r}"
        stack = found[1].split(";")
        assert len(stack) >= 3 and all(stack), f"not process, thread and calls: {line!r}"
        assert re.fullmatch(r"main thread|thread [0-9]+", stack[1]), line
        rows, sum_us = rows + 1, sum_us + int(found[2])
# each row is rounded, but never to 0
assert rows and abs(sum_us - total_ns / 1000) <= rows, f"{sum_us} us in {rows} rows, not {total_ns / 1000} us"
