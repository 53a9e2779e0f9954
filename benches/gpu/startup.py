#!/usr/bin/env python3
"""Measures how much longer a Python program takes to start under `gpuprobe run`.

    startup.py GPUPROBE [--rounds N] [--module NAME] [--json FILE] [--options='OPTIONS OF gpuprobe run']

Starts `import torch` (or the import of another module) with and without gpuprobe in alternation, as root. In every
second round the order is reversed. Prints, with quartiles,

- the time of the import, as the program itself measures it: what the program waits for, and what its probes cost;
- the CPU time of the import: probes, and waits that do not sleep;
- the time of the whole command: also the start and the end of gpuprobe, which do not depend on the program;
- the same for a command that does nothing.

A ratio is that of the medians. The quartiles are those of the ratios of single rounds.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

# nothing but the module is imported between the two looks at the clock
PROGRAM = """
import time
begin, cpu = time.monotonic(), time.process_time()
import {module}
print("startup.py", time.monotonic() - begin, time.process_time() - cpu)
"""


class Turn:
    """One start of a command."""

    def __init__(self, words, folder):
        begin = time.monotonic()
        done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.whole = time.monotonic() - begin
        if done.returncode:
            sys.exit(f"startup.py: {shlex.join(words)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("startup.py ")]
        self.wall, self.cpu = map(float, lines[-1][1:]) if lines else (None, None)


def measure(words, gpuprobe, rounds, folder):
    """Pairs of turns: without gpuprobe and with it."""
    pairs = []
    # the first round is not counted: files are read from the disk
    for number in range(rounds + 1):
        observed = [*gpuprobe, "--", *words]
        if number % 2:
            second, first = Turn(observed, folder), Turn(words, folder)
        else:
            first, second = Turn(words, folder), Turn(observed, folder)
        pairs.append((first, second))
    return pairs[1:]


def compared(pairs, quantity):
    """The figures of one quantity, in seconds."""
    without, observed = ([getattr(turn, quantity) for turn in turns] for turns in zip(*pairs))
    ratios = [b / a for a, b in zip(without, observed)]
    lower, _, upper = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    medians = statistics.median(without), statistics.median(observed)
    return {
        "without": medians[0],
        "observed": medians[1],
        "ratio": medians[1] / medians[0],
        "lower_quartile": lower,
        "upper_quartile": upper,
        "longer": statistics.median(b - a for a, b in zip(without, observed)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpuprobe", metavar="GPUPROBE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--module", default="torch")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--options", default="", help="further options of `gpuprobe run`")
    args = parser.parse_args()
    gpuprobe = [os.path.abspath(args.gpuprobe), "run", *shlex.split(args.options)]
    program = [sys.executable, "-c", PROGRAM.format(module=args.module)]
    with tempfile.TemporaryDirectory() as folder:
        starts = measure(program, gpuprobe, args.rounds, folder)
        nothing = measure(["/bin/true"], gpuprobe, args.rounds, folder)
    rows = {
        f"import {args.module}": compared(starts, "wall"),
        "its CPU time": compared(starts, "cpu"),
        "the whole command": compared(starts, "whole"),
        "a command that does nothing": compared(nothing, "whole"),
    }
    print(f"{args.rounds} rounds; seconds, medians")
    print(f"{'':30} {'without':>9} {'observed':>9} {'ratio':>7}  {'half of all':>14} {'longer':>10}")
    for name, row in rows.items():
        half = f"{row['lower_quartile']:.3f} to {row['upper_quartile']:.3f}"
        print(
            f"{name:30} {row['without']:9.4f} {row['observed']:9.4f} {row['ratio']:7.3f}  {half:>14}"
            f" {row['longer'] * 1000:7.1f} ms"
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
