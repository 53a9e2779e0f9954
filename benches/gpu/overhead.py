#!/usr/bin/env python3
"""How much slower a PyTorch training loop is under gpuprobe, beside what others take for less.

    overhead.py GPUPROBE PEER_FOLDER [--rounds N] [--pairs N] [--only MODES] [--json FILE]

Two programs train the same model and take turns of some steps: one that is watched, and a twin that nothing watches, for
it has copies of the CUDA libraries, and probes lie in files. Each turn is compared with the twin's just before and just
after it, some hundredths of a second away. In each round every mode has its turns, and before and after them there are as
many turns with nothing: what the two programs differ by then is taken out. Both keep to the same two CPUs. torch.profiler
has a program of its own: what it brings into a process stays there and goes on costing.
PEER_FOLDER is what benches/gpu/build made. Exits 1 where the daemon costs more than 2 %.
"""

import argparse
import atexit
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 1.02
STEPS = 20
SETTLED_AFTER = 0.5
# a budget is held by what was measured before
BUDGET_SETTLED_AFTER = 8
# what is measured of a mode begins after so many turns
WARM_UP = 3
# what a step calls of the driver's functions that the daemon counts
COUNTED = ["cuLaunchKernel", "cuLaunchKernelEx", "cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"]


class Loop:
    def __init__(self, preload=()):
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen(
            [sys.executable, f"{here}/steps.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": ":".join(preload)},
        )
        for line in self.process.stdout:
            if line.startswith("ready "):
                _, self.runtime, self.driver = line.split()
                return
        sys.exit("overhead.py: steps.py did not start: it needs PyTorch and a GPU")

    def ask(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def part(self):
        """Microseconds a step, by the clock and of CPU time."""
        return [float(us) for us in self.ask(f"part {STEPS}")]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Beside:
    """A program that runs while steps are made, started when it says a word on stderr."""

    def __init__(self, command, word, folder, settled_after):
        self.said = open(f"{folder}/said", "w+")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.said)
        # whatever happens here, it must not go on watching
        atexit.register(self.process.terminate)
        for _ in range(3000):
            if word in open(f"{folder}/said").read():
                break
            if self.process.poll() is not None:
                sys.exit(f"overhead.py: {command[0]} ended: {open(f'{folder}/said').read()}")
            time.sleep(0.01)
        else:
            sys.exit(f"overhead.py: {command[0]} did not begin within 30 s: {open(f'{folder}/said').read()}")
        # what it does right after its start is not what it costs
        time.sleep(settled_after)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.said.close()


def modes(args, loop, folder):
    """By name: what it is, its command, and what that says when it has begun."""
    probe, peer, pid = args.probe, args.peer, str(loop.process.pid)
    daemon = [probe, "daemon", "-d", pid, "--metrics-addr", "127.0.0.1:0", "--display-interval", "0"]
    record = [probe, "record", "-d", pid, "-o", f"{folder}/trace.jsonl", "-v"]
    two = [f"{peer}/two_events", f"{peer}/two_events.bpf.o"]
    return {
        "entry": ("empty probes on the entry of what the daemon counts", [*two, loop.driver, "entry", *COUNTED], "ready"),
        "empty": ("the same on entry and return: the floor", [*two, loop.driver, "both", *COUNTED], "ready"),
        "memory": ("gpuprobe daemon --memleak", [*daemon, "--memleak"], "metrics on"),
        "daemon": ("gpuprobe daemon, all that it counts by default", daemon, "metrics on"),
        "budget": ("gpuprobe daemon --budget 2%", [*daemon, "--budget", "2%"], "metrics on"),
        "record": ("gpuprobe record to a file, all telling calls of both layers", record, "functions in"),
        "two_events": ("11 functions of the runtime, two events a call", [*two, loop.runtime], "ready"),
        "profiler": ("torch.profiler, CPU and CUDA", None, None),
    }


def turns(loop, twin, pairs):
    """A loop's turns by the twin's around them: by the clock, of CPU time; and the microseconds of a step of each."""
    found = []
    before = twin.part()
    for turn in range(WARM_UP + pairs):
        took = loop.part()
        after = twin.part()
        if turn >= WARM_UP:
            found.append([2 * mine / (a + b) for mine, a, b in zip(took, before, after)] + [took[0], after[0]])
        before = after
    return [statistics.median(column) for column in zip(*found)]


def measure(args, loops, twin, chosen, folder):
    """For each mode, what turns() found in each round: before it, with it, and after it."""
    measured = {name: [] for name in chosen}
    last = {}
    for round in range(args.rounds):
        # none of them is always the one after the same other
        order = list(chosen)
        order = order[round % len(order) :] + order[: round % len(order)]
        for name in order:
            _, command, word = chosen[name]
            loop = loops[0] if command else loops[1]
            before = last.get(loop) or turns(loop, twin, args.pairs)
            if command:
                beside = Beside(command, word, folder, BUDGET_SETTLED_AFTER if name == "budget" else SETTLED_AFTER)
            else:
                loop.ask("profile")
            took = turns(loop, twin, args.pairs)
            if command:
                beside.end()
            else:
                loop.ask("end")
            last = {loop: turns(loop, twin, args.pairs)}
            measured[name].append([before, took, last[loop]])
    return measured


def tell(args, chosen, measured):
    print(f"{args.rounds} rounds of {args.pairs} turns of {STEPS} steps in each mode; medians of rounds\n")
    print(f"{'us a step':<64}{'without':>8}{'with':>8}{'ratio':>8}   half of all rounds   of CPU time")
    told = {}
    for name, (what, _, _) in chosen.items():
        clock, cpu = (
            [2 * took[which] / (before[which] + after[which]) for before, took, after in measured[name]]
            for which in (0, 1)
        )
        told[name] = statistics.median(clock)
        low, _, high = statistics.quantiles(clock, n=4)
        bare, us = (statistics.median(round[which][2] for round in measured[name]) for which in (0, 1))
        half = f"{low:.3f} to {high:.3f}"
        print(f"{what:<64}{bare:>8.0f}{us:>8.0f}{told[name]:>8.3f}   {half:<18}{statistics.median(cpu):>14.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(measured, file)
    met = told["daemon"] <= LIMIT
    print(f"\nthe default daemon: {told['daemon']:.3f}, at most {LIMIT}: {'met' if met else 'missed'}")
    return 0 if met else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("peer")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--only", help="of the modes, the daemon and these, by name, with commas between them")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: at least 2")
    with tempfile.TemporaryDirectory() as folder:
        watched, profiled = Loop(), Loop()
        copies = [shutil.copy(library, f"{folder}/{name}") for library, name in
                  ((watched.driver, "twin.cuda.so"), (watched.runtime, "twin.cudart.so"))]
        twin = Loop(copies)
        assert twin.driver in copies and twin.runtime in copies, f"the twin uses {twin.driver} and {twin.runtime}"
        chosen = modes(args, watched, folder)
        if args.only:
            unknown = set(args.only.split(",")) - set(chosen)
            if unknown:
                parser.error(f"--only: {', '.join(unknown)}: it knows {', '.join(chosen)}")
            chosen = {name: chosen[name] for name in ["daemon", *args.only.split(",")]}
        measured = measure(args, (watched, profiled), twin, chosen, folder)
        for each in (watched, profiled, twin):
            each.end()
    sys.exit(tell(args, chosen, measured))


main()
