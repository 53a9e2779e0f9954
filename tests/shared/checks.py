"""Counts checks that hold and that do not."""

import sys
import time

# seconds: longer than anything takes on a busy machine
PATIENCE = 60


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, what, run, *words):
        """Calls `run`, which fails with an AssertionError."""
        try:
            run(*words)
        except AssertionError as error:
            self.fail(f"{what}: {error}")
        else:
            self.passed += 1
            print(f"ok: {what}", flush=True)

    def that(self, what, is_right, seen):
        """Checks a condition, and prints what was seen in either case."""
        if is_right:
            self.passed += 1
            print(f"ok: {what}: {seen}", flush=True)
        else:
            self.fail(f"{what}: {seen}")
        return is_right

    def fail(self, problem):
        self.failed += 1
        print(f"FAILED: {problem}", flush=True)

    def end(self):
        """Prints the last line of a test, and exits."""
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(int(self.failed > 0))


def eventually(compare, *words, patience=30):
    """Retries: daemons read their tables periodically, and what reads them does that later."""
    until("not the same", lambda: compare(*words) or True, patience)


def until(what, look, patience=PATIENCE):
    """Calls `look` until it returns something; fails with its last error."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if found := look():
                return found
            problem = "it did not happen"
        except (AssertionError, OSError) as error:
            problem = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}, within {patience} s: {problem}")
        time.sleep(0.2)
