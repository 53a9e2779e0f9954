"""Allocates in several interpreters of one process: several_interpreters.py LIBCUDART KIND

KIND is `shared` (the interpreters share a GIL) or `own` (each has its own, since 3.13). They call each other in one
thread, and run in threads at the same time. An interpreter that was made in the first thread also runs in another one.
Each allocation has a size of its own.
"""

import json
import os
import sys
import threading

FOLDER = os.path.dirname(os.path.abspath(__file__))
PATHS = [FOLDER, os.path.join(FOLDER, "site-packages")]
sys.path[:0] = PATHS
import leak_ledger  # noqa: E402
from leak_ledger import leak  # noqa: E402

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

UNIT = 256
KIND = sys.argv[2]
# the code object stays, so that its names can be read
KEEP = "import sys; kept = globals().setdefault('kept', []); kept.append(sys._getframe().f_code); "


def create():
    if sys.version_info >= (3, 13):
        made = interpreters.create("isolated" if KIND == "own" else "legacy")
    else:
        made = interpreters.create(isolated=False)
    run(made, f"sys.argv = {sys.argv!r}; sys.path[:0] = {PATHS!r}; import in_interpreter")
    return made


def run(interpreter, code):
    problem = interpreters.run_string(interpreter, KEEP + code)
    if problem is not None:
        raise RuntimeError(problem)


def nested(outer, inner, unit):
    """The outer interpreter calls the inner one."""
    code = KEEP + f"in_interpreter.own_function({unit + 2 * UNIT})"
    module = interpreters.__name__
    run(outer, f"import {module} as m; in_interpreter.calls_other({unit}, m.run_string, {int(inner)}, {code!r})")


def of_other_thread(interpreter, unit, tell, wait):
    """The interpreter was made in another thread."""
    leak(unit)
    run(interpreter, f"in_interpreter.meets({unit + UNIT}, {tell}, {wait})")
    leak(unit + 3 * UNIT)


def at_the_same_time(interpreter, unit):
    (heard, tell), (wait, answer) = os.pipe(), os.pipe()
    thread = threading.Thread(target=of_other_thread, args=(interpreter, unit, tell, wait))
    thread.start()
    os.read(heard, 1)
    # the other thread waits inside the interpreter
    leak(unit + 4 * UNIT)
    os.write(answer, b".")
    thread.join()
    leak(unit + 5 * UNIT)


def rows_of(interpreter):
    read, write = os.pipe()
    run(interpreter, f"in_interpreter.send_rows({write})")
    os.close(write)
    with os.fdopen(read) as file:
        return json.load(file)


def main():
    leak_ledger.wait()
    leak(UNIT * 1)
    interpreters.destroy(create())
    leak(UNIT * 2)
    older, newer = create(), create()
    leak(UNIT * 3)
    run(older, f"in_interpreter.own_function({UNIT * 10})")
    run(newer, f"in_interpreter.own_function({UNIT * 20})")
    run(newer, f"in_interpreter.own_thread({UNIT * 30})")
    nested(older, newer, UNIT * 40)
    nested(newer, older, UNIT * 50)
    at_the_same_time(older, UNIT * 60)
    at_the_same_time(newer, UNIT * 70)
    leak(UNIT * 4)
    leak_ledger.rows += rows_of(older) + rows_of(newer)
    leak_ledger.print_ledger()


main()
os._exit(0)
