"""What several_interpreters.py runs in an interpreter of its own: functions that allocate."""

import json
import os
import threading

import leak_ledger
from leak_ledger import leak, leak_with_gil


def own_function(unit):
    leak(unit)
    leak_with_gil(unit + 256)


def own_thread(unit):
    thread = threading.Thread(target=own_function, args=(unit,))
    thread.start()
    thread.join()


def calls_other(unit, call, interpreter, code):
    """Has another interpreter run code, between two allocations."""
    leak(unit)
    call(interpreter, code)
    leak(unit + 256)


def meets(unit, tell, wait):
    """Allocates, and allocates again when another thread has allocated as well."""
    leak(unit)
    os.write(tell, b".")
    os.read(wait, 1)
    leak_with_gil(unit + 256)


def send_rows(to):
    with os.fdopen(os.dup(to), "w") as file:
        print(json.dumps(leak_ledger.rows), file=file)
