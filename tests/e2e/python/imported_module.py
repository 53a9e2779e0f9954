"""A module that allocates while it is imported, and in a function."""

from leak_ledger import leak

leak(256 * 101)


def call(function):
    def closure():
        return function()

    return [closure() for _ in range(2)]


def allocate():
    leak(256 * 102)
