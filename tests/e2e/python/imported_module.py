"""A module that allocates while it is imported, and in a function."""

import sys

from leak_ledger import leak

# it would be freed after the import
CODE = sys._getframe().f_code
leak(256 * 101)


def call(function):
    def closure():
        return function()

    return [closure() for _ in range(2)]


def allocate():
    leak(256 * 102)
