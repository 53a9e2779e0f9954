"""`sum()`, `increase()` and `rate()` over one metric are the numbers of the ledgers, to the unit, while processes exit and
their series move to the sums of their name.

`increase` extrapolates to the ends of its range. It adds nothing if the first and the last sample are exactly there, so
ranges of series begin and end with a scrape, and ranges of sums with a step of the subquery. A series that ends within the
range is extrapolated by half a scrape interval, which `WITHOUT` takes back.
"""

import math
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "shared"))
from checks import until
from servers import Workload

PROCESSES = 3
FAMILIES = ("calls", "errors", "kernel_launches", "copy_bytes", "memory_allocated_bytes")
WITHOUT = "sum(increase({x}) * (count_over_time({x}) - 1) / (count_over_time({x}) - 0.5))"


class Exits:
    """Processes that count, exit, and lose their series. `totals` makes of a ledger what each family must have counted."""

    def __init__(self, program, name, totals):
        self.of, self.totals = f'{{process="{name}"}}', totals
        words = ["--threads", "1", "--calls", "6000", "--pauses", "1"]
        self.programs = [Workload(program, *words, "--seed", str(seed)) for seed in range(PROCESSES)]

    def end(self):
        for program in self.programs:
            program.end()

    def counted(self):
        """What all ledgers say together, from their next line."""
        rows = [self.totals(program.ledger()) for program in self.programs]
        return {family: sum(row[family] for row in rows) for family in FAMILIES}

    def series(self, family):
        return f"gpuprobe_{family}_total{self.of}"

    def sums(self, prometheus, moment):
        found = {f: prometheus.query(f"sum({self.series(f)})", time=moment) for f in FAMILIES}
        return {family: rows[0][1] if rows else 0 for family, rows in found.items()}

    def settled(self, prometheus, wanted):
        """(the time of a scrape, a full second) from which on the sums are these."""
        def look():
            found = self.sums(prometheus, time.time())
            assert found == wanted, f"Prometheus says {found}, the ledgers {wanted}"
            return True

        until("sums of processes", look)
        since = time.time()
        # later scrapes say the same; the older ones are not older than that
        until("another scrape", lambda: self.scrape_at(prometheus) > since + 1)
        return self.scrape_at(prometheus), math.floor(time.time())

    def scrape_at(self, prometheus):
        rows = prometheus.ask("query", query='up{job="gpuprobe"}[10s]')["result"]
        return float(rows[0]["values"][-1][0])

    def run(self, prometheus):
        """From the first ledger to the exit of all processes."""
        self.first = self.counted()
        self.begin = self.settled(prometheus, self.first)
        for program in self.programs:
            program.go_on()
        self.last = self.counted()
        self.exited = self.settled(prometheus, self.last)

    def have_moved(self, prometheus):
        ended = prometheus.query(f'gpuprobe_calls_total{self.of[:-1]}, ended!=""}}')
        own = prometheus.query(f'gpuprobe_calls_total{self.of[:-1]}, pid!=""}}')
        return ended and not own


def expect(what, found, wanted):
    close = {family: abs(found[family] - wanted[family]) < 1e-6 * max(1, wanted[family]) for family in wanted}
    # copied bytes have more digits than the calculation of an increase
    assert all(close.values()) and all(round(found[f]) == wanted[f] for f in found), f"{what}: {found}, the ledgers {wanted}"


def one(prometheus, query, moment):
    rows = prometheus.query(query, time=moment)
    assert len(rows) == 1, f"{len(rows)} answers: {query}"
    return rows[0][1]


def check_increases_of_series(prometheus, exits):
    """While the series of processes that have exited are still there."""
    start, end = exits.begin[0], exits.exited[0]
    span = round(1000 * (end - start))
    wanted = {family: exits.last[family] - exits.first[family] for family in FAMILIES}
    for shape, factor in (("sum(increase({x}))", 1), ("sum(rate({x}))", span / 1000)):
        ask = lambda family: factor * one(prometheus, shape.format(x=f"{exits.series(family)}[{span}ms]"), end)
        expect(shape, {family: ask(family) for family in FAMILIES}, wanted)


def check_moved(prometheus, exits):
    """After their values have moved to the sums over series that have ended."""
    until("the series have moved", lambda: exits.have_moved(prometheus))
    scrape, second = exits.settled(prometheus, exits.last)
    span, seconds = round(1000 * (scrape - exits.begin[0])), second - exits.begin[1]
    wanted = {family: exits.last[family] - exits.first[family] for family in FAMILIES}
    for shape, factor in (("increase((sum({x}))[{n}s:1s])", 1), ("rate((sum({x}))[{n}s:1s])", seconds)):
        ask = lambda family: factor * one(prometheus, shape.format(x=exits.series(family), n=seconds), second)
        expect(shape, {family: ask(family) for family in FAMILIES}, wanted)
    ask = lambda family: one(prometheus, WITHOUT.format(x=f"{exits.series(family)}[{span}ms]"), scrape)
    expect("increases of series", {family: ask(family) for family in FAMILIES}, wanted)


def sum_of_short(prometheus, name):
    """(a full second, the calls of all processes of this name until then)."""
    query = f'sum(gpuprobe_calls_total{{process="{name}"}})'
    until("a short process", lambda: prometheus.query(query, time=math.floor(time.time())))
    second = math.floor(time.time())
    return second, one(prometheus, query, second)


def check_sum_of_short(prometheus, name, earlier, calls):
    """The increase of the sum over processes that come and go all the time is what their ledgers have more than earlier."""
    (start, before), second = earlier, math.floor(time.time())
    query = f'increase((sum(gpuprobe_calls_total{{process="{name}"}}))[{second - start}s:1s])'
    found, wanted = one(prometheus, query, second), calls - before
    assert abs(found - wanted) < 1e-3, f"{found}, the ledgers {wanted}"
