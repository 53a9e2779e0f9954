"""A module that waiting_threads.py imports."""


def call(function, *arguments):
    def closure():
        return function()

    if arguments:
        return closure()
    return None
