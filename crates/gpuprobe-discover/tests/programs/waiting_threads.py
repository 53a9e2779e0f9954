"""Threads that wait in many kinds of Python functions, with the GIL released. Each prints its own stack."""

import asyncio
import contextlib
import functools
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import waiting_module  # noqa: E402

READY = threading.Semaphore(0)
LOCK = threading.Lock()


def report(frame):
    """Prints the stack from a frame on, the innermost first."""
    fields = [threading.current_thread().name, threading.get_native_id(), threading.get_ident()]
    while frame:
        code = frame.f_code
        fields += [getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno]
        frame = frame.f_back
    with LOCK:
        print(*fields, sep="\t", flush=True)
    READY.release()


def wait():
    report(sys._getframe()); time.sleep(3600)  # noqa: E702 (the reported line must be the one that waits)


class Model:
    def __init__(self, layers):
        self.layers = layers

    def forward(self, value):
        return self.block(
            value,
            scale=[
                layer * 2
                for layer in self.layers
            ],
        )

    def block(self, value, *, scale):
        apply = lambda x: waiting_module.call(wait, x)  # noqa: E731
        return apply(
            value
        ) + len(scale)

    @property
    def result(self):
        with contextlib.suppress(ValueError):
            return self.forward(1)

    @classmethod
    def run(cls):
        return cls(range(3)).result


def numbers():
    yield 1
    yield from more_numbers()


def more_numbers():
    # long line tables have jumps of many lines
    yield 2







































































































































    wait()
    yield 3


def generator():
    return sum(number for number in numbers())


def native():
    """Frames of C functions between those of Python."""

    class Key:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            return functools.reduce(lambda a, b: wait(), [self.value, other.value])

    return sorted([2, 1], key=functools.cmp_to_key(lambda a, b: Key(a) < Key(b)))


def recursion(depth=40):
    return wait() if depth == 0 else recursion(depth - 1)


class Größe:
    def messen_名前(self):
        𝜆 = lambda: wait()  # noqa: E731
        return [𝜆() for _ in range(1)]


async def outer():
    async with Context():
        await inner()


class Context:
    async def __aenter__(self):
        await asyncio.sleep(0)

    async def __aexit__(self, *error):
        pass


async def inner():
    await asyncio.sleep(0)
    wait()


def main():
    # compiled from a text: in no file
    exec(compile("def decorated():\n\n    wait()\n\ndecorated()\n", "<string>", "exec"), {"wait": wait})


THREADS = {
    "async": lambda: asyncio.run(outer()),
    "generator": generator,
    "method": Model.run,
    "native": native,
    "recursion": recursion,
    "unicode": lambda: Größe().messen_名前(),
}

threading.current_thread().name = "main"
for name, target in THREADS.items():
    threading.Thread(target=target, name=name, daemon=True).start()
for _ in THREADS:
    READY.acquire()


class Ready(threading.Thread):
    """Announces that all wait. The main thread is the last to do so."""

    def run(self):
        READY.acquire()
        with LOCK:
            print("ready", flush=True)


Ready(daemon=True).start()
main()
