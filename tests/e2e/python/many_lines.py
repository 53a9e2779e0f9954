"""Leaks from every kind of Python function, several times each: many_lines.py LIBCUDART

It waits for a line before its first call, and for another one before it exits.
"""

import asyncio
import contextlib
import ctypes
import functools
import os
import sys
import threading

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "site-packages")]
import leak_ledger  # noqa: E402
from leak_ledger import leak, leak_with_gil  # noqa: E402

ROUNDS = 3
UNIT = 256


def function():
    leak(UNIT * 1)


def two_lines():
    leak(UNIT * 2)
    leak(
        UNIT
        * 3
    )


def keeps_gil():
    leak_with_gil(UNIT * 4)


class Model:
    def method(self):
        leak(UNIT * 5)

    @classmethod
    def of_class(cls):
        cls.of_none()

    @staticmethod
    def of_none():
        leak(UNIT * 6)

    @property
    def value(self):
        return leak(UNIT * 7)

    def __call__(self):
        return self.value + leak(UNIT * 8)

    def __del__(self):
        leak(UNIT * 9)


def methods():
    Model().method()
    Model.of_class()
    Model()()


def numbers():
    yield leak(UNIT * 10)
    yield from more_numbers()


def more_numbers():
    yield leak(UNIT * 11)
    leak(UNIT * 12)


def generator():
    return sum(number for number in numbers())


def lambdas():
    allocate = lambda size: leak(UNIT * size)  # noqa: E731
    allocate(13); (lambda: leak(UNIT * 14))()  # noqa: E702
    return [[leak(UNIT * 15) for _ in range(2)], {leak(UNIT * 16) for _ in range(1)}]


def in_threads():
    def target(size):
        leak(UNIT * size)

    threads = [threading.Thread(target=target, args=(17 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


IMPORTED = []


def imports():
    sys.modules.pop("imported_module", None)
    import imported_module

    IMPORTED.append(imported_module)
    imported_module.allocate()
    imported_module.call(lambda: leak(UNIT * 21))


class Context:
    async def __aenter__(self):
        await asyncio.sleep(0)
        leak(UNIT * 22)

    async def __aexit__(self, *error):
        leak(UNIT * 23)


async def counted():
    yield leak(UNIT * 24)
    await asyncio.sleep(0)
    yield leak(UNIT * 25)


async def inner(size):
    await asyncio.sleep(0)
    leak(UNIT * size)


async def outer():
    async with Context():
        await inner(26)
    async for _ in counted():
        leak(UNIT * 27)
    await asyncio.gather(inner(28), inner(29))


def coroutines():
    asyncio.run(outer())


COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def native_between():
    """C functions that call Python functions."""
    functools.reduce(lambda a, b: leak(UNIT * 30), [1, 2, 3])
    sorted([2, 1], key=lambda number: leak(UNIT * 31))
    list(map(lambda number: leak(UNIT * 32), [1]))
    pair = (ctypes.c_int * 2)(2, 1)
    compare = COMPARE(lambda a, b: leak(UNIT * 33))
    ctypes.CDLL(None).qsort(pair, ctypes.c_size_t(2), ctypes.c_size_t(4), compare)


class Größe:
    def messen_名前(self):
        𝜆 = lambda: leak(UNIT * 35)  # noqa: E731
        return 𝜆()


def names():
    Größe().messen_名前()


# code that is freed after its calls may have no lines, so it is kept
COMPILED = [
    compile("def compiled():\n\n\n    leak(%d)\n\ncompiled()\n" % (UNIT * 36), "<string>", "exec"),
    compile("leak(%d)" % (UNIT * 37), "<string>", "eval"),
    compile("\n" * 70_000 + "leak(%d)" % (UNIT * 38), "generated.py", "exec"),
]


def without_file():
    for code in COMPILED:
        eval(code, {"leak": leak})


@contextlib.contextmanager
def managed():
    leak(UNIT * 39)
    try:
        yield
    finally:
        leak(UNIT * 40)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
def flow():
    with managed():
        leak(UNIT * 41)
    try:
        raise KeyError(leak(UNIT * 42))
    except KeyError:
        leak(UNIT * 43)
    finally:
        leak(UNIT * 44)


def recursion(depth=30):
    return recursion(depth - 1) if depth else leak(UNIT * 45)


CASES = [
    function,
    two_lines,
    keeps_gil,
    methods,
    generator,
    lambdas,
    in_threads,
    imports,
    coroutines,
    native_between,
    names,
    without_file,
    flow,
    recursion,
]


def main():
    for _ in range(ROUNDS):
        for case in CASES:
            case()


leak_ledger.wait()
main()
leak_ledger.print_ledger()
