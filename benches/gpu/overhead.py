#!/usr/bin/env python3
"""Measures how much slower PyTorch programs are under gpuprobe, compared with other tools.

    overhead.py GPUPROBE PEER_FOLDER [--workload training|decoder|graph] [--rounds N] [--pairs N] [--only MODES] [--json FILE]

Two programs have the same workload (see steps.py) and alternate turns of some steps: one that is observed, and a twin that is not,
because it uses copies of the CUDA libraries and probes are attached to files. Each turn is compared with the twin's
turns just before and just after it, some hundredths of a second away. In each round every mode runs for some turns,
and as many turns without it run before and after: the difference between the two programs in those turns is
divided out. Both use the same two CPUs. torch.profiler runs in its own program: what it loads into a process stays
there and keeps costing time. So does CUPTI, which gpuprobe's agent uses: the programs with the agent are others too.
A budget is a share of all time, but each program runs only half of the time. So half of the budget is given, which costs
the turns as much as the whole budget costs a program that always runs.
PEER_FOLDER is the output of benches/gpu/build. Exits 1 if a mode costs more than its target. SIGTERM ends it early, with the
result of the rounds so far.
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
import tomllib

# what a mode may cost at most, by workload
EAGER = {"daemon": 1.05, "packaged": 1.02, "record": 1.10}
LIMITS = {"training": EAGER, "decoder": EAGER, "graph": {"daemon": 1.005, "packaged": 1.005, "record": 1.005}}
# the settings of the package, with a budget, of which half is given
PACKAGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../packaging/gpuprobe.toml")
# steps of a turn, which takes some 30 ms
STEPS = {"training": 20, "decoder": 10, "graph": 100}
SETTLED_AFTER = 0.5
# for so long the programs run before a mode with a budget is measured, because it acts on the calls of the past seconds
BUDGET_SETTLED_AFTER = 5
# turns of a mode that are not measured
WARM_UP = 3
# the functions of the CUDA driver that a step calls and the daemon counts
COUNTED = ["cuLaunchKernel", "cuLaunchKernelEx", "cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"]


class Loop:
    def __init__(self, workload, preload=(), agent=None):
        self.steps = STEPS[workload]
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen(
            [sys.executable, f"{here}/steps.py", workload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": ":".join(preload), **({"CUDA_INJECTION64_PATH": agent} if agent else {})},
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
        """Microseconds per step: wall time and CPU time."""
        return [float(us) for us in self.ask(f"part {self.steps}")]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Background:
    """A program that runs during the steps. It has started when it prints a given word on stderr."""

    def __init__(self, command, word, folder):
        self.said = open(f"{folder}/said", "w+")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.said)
        # it must not keep running after an error here
        atexit.register(self.process.terminate)
        for _ in range(3000):
            if word in open(f"{folder}/said").read():
                break
            if self.process.poll() is not None:
                sys.exit(f"overhead.py: {command[0]} ended: {open(f'{folder}/said').read()}")
            time.sleep(0.01)
        else:
            sys.exit(f"overhead.py: {command[0]} did not begin within 30 s: {open(f'{folder}/said').read()}")
        # its start-up work must not be measured
        time.sleep(SETTLED_AFTER)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.said.close()


class Mode:
    """What is measured in the loop with this name: a command for the loop that says a word when it has started,
    torch.profiler, or the loop itself, compared with another one. One that samples costs something in some turns only, so
    that their mean counts, not their median."""

    def __init__(self, what, loop, command=None, word=None, other=None, samples=False):
        self.what, self.loop, self.command, self.word, self.other = what, loop, command, word, other
        self.samples = samples

    def average(self):
        return statistics.fmean if self.samples else statistics.median

    def is_profiler(self):
        return not self.command and not self.other


def modes(args, folder):
    probe, peer = args.probe, args.peer

    def daemon(*flags):
        flags = ["--metrics-addr", "127.0.0.1:0", "--display-interval", "0", *flags]
        return lambda loop: [probe, "daemon", "-d", str(loop.process.pid), *flags]

    def packaged():
        with open(PACKAGED, "rb") as file:
            budget = float(tomllib.load(file)["budget"].removesuffix("%"))
        return daemon("--config", PACKAGED, "--budget", f"{budget / 2}%")

    def record(*flags):
        return lambda loop: [probe, "record", "-d", str(loop.process.pid), "-o", f"{folder}/trace.jsonl", "-v", *flags]

    def empty(ends):
        return lambda loop: [f"{peer}/two_events", f"{peer}/two_events.bpf.o", loop.driver, ends, *COUNTED]

    def two_events(loop):
        return [f"{peer}/two_events", f"{peer}/two_events.bpf.o", loop.runtime]

    return {
        "entry": Mode("empty probes on the entry of what the daemon counts", "watched", empty("entry"), "ready"),
        "empty": Mode("the same on entry and return: the floor", "watched", empty("both"), "ready"),
        "switched": Mode("the same on entry, attached for a millisecond three times a second", "watched", empty("switched"), "ready"),
        "memory": Mode("gpuprobe daemon --memleak", "watched", daemon("--memleak"), "metrics on"),
        "daemon": Mode("gpuprobe daemon, all that it counts by default", "watched", daemon(), "metrics on"),
        "returns": Mode("gpuprobe daemon --all-launch-returns", "watched", daemon("--all-launch-returns"), "metrics on"),
        "packaged": Mode("gpuprobe daemon, packaged settings", "watched", packaged(), "metrics on", samples=True),
        "record": Mode("gpuprobe record to a file", "watched", record(), "functions in"),
        "record-driver": Mode("gpuprobe record --layer driver", "watched", record("--layer", "driver"), "functions in"),
        "record-returns": Mode("gpuprobe record --all-launch-returns", "watched", record("--all-launch-returns"), "functions in"),
        "two_events": Mode("11 functions of the runtime, two events a call", "watched", two_events, "ready"),
        "profiler": Mode("torch.profiler, CPU and CUDA", "profiled"),
        "agent": Mode("gpuprobe's agent loaded, nothing attached", "inert", other="watched"),
        "gpu-time": Mode("gpuprobe record --gpu-time (CUPTI)", "collecting", record("--gpu-time"), "functions in"),
        "after": Mode("gpuprobe's agent after it has collected", "collecting", other="watched"),
    }


def turns(loop, twin, pairs, average):
    """Ratios of a loop's turns to the twin's around them, in wall and CPU time, and the microseconds per step of both: the
    averages of them all."""
    found = []
    before = twin.part()
    for turn in range(WARM_UP + pairs):
        took = loop.part()
        after = twin.part()
        if turn >= WARM_UP:
            found.append([2 * mine / (a + b) for mine, a, b in zip(took, before, after)] + [took[0], after[0]])
        before = after
    return [average(column) for column in zip(*found)]


def settle(loop, twin):
    """Runs both in turn until a budget has decided what it samples."""
    until = time.monotonic() + BUDGET_SETTLED_AFTER
    while time.monotonic() < until:
        loop.part()
        twin.part()


class Stopped(Exception):
    """SIGTERM has come."""


def stop(*_):
    raise Stopped


def measure(args, loops, chosen, folder):
    """For each mode, the result of turns() in each round: before, with, and after it."""
    measured = {name: [] for name in chosen}
    try:
        for round in range(args.rounds):
            measure_round(args, loops, chosen, folder, round, measured)
    except Stopped:
        if any(len(rounds) < 2 for rounds in measured.values()):
            sys.exit("overhead.py: stopped before the second round ended")
    return measured


def measure_round(args, loops, chosen, folder, round, measured):
    twin, last = loops["twin"], {}
    # rotate, so that no mode always follows the same other mode
    order = list(chosen)
    order = order[round % len(order) :] + order[: round % len(order)]
    for name in order:
        mode = chosen[name]
        loop, without = loops[mode.loop], loops[mode.other or mode.loop]
        average = mode.average()
        before = last.get((without, average)) or turns(without, twin, args.pairs, average)
        if mode.command:
            background = Background(mode.command(loop), mode.word, folder)
        elif mode.is_profiler():
            loop.ask("profile")
        if mode.samples:
            settle(loop, twin)
        took = turns(loop, twin, args.pairs, average)
        if mode.command:
            background.end()
        elif mode.is_profiler():
            loop.ask("end")
        after = turns(without, twin, args.pairs, average)
        last = {(without, average): after}
        measured[name].append([before, took, after])


def report(args, chosen, measured):
    steps = STEPS[args.workload]
    rounds = min(len(rounds) for rounds in measured.values())
    print(f"{args.workload}: {rounds} rounds of {args.pairs} turns of {steps} steps in each mode; medians of rounds\n")
    print(f"{'us a step':<64}{'without':>8}{'with':>8}{'ratio':>8}   half of all rounds   of CPU time")
    ratios = {}
    for name, mode in chosen.items():
        clock, cpu = (
            [2 * took[which] / (before[which] + after[which]) for before, took, after in measured[name]]
            for which in (0, 1)
        )
        ratios[name] = statistics.median(clock)
        low, _, high = statistics.quantiles(clock, n=4)
        bare, us = (statistics.median(round[which][2] for round in measured[name]) for which in (0, 1))
        half = f"{low:.3f} to {high:.3f}"
        print(f"{mode.what:<64}{bare:>8.0f}{us:>8.0f}{ratios[name]:>8.3f}   {half:<18}{statistics.median(cpu):>14.3f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(measured, file)
    limits = {name: limit for name, limit in LIMITS[args.workload].items() if name in ratios}
    for name, limit in limits.items():
        print(f"{chosen[name].what}: {ratios[name]:.3f}, at most {limit}: {'met' if ratios[name] <= limit else 'missed'}")
    return any(ratios[name] > limit for name, limit in limits.items())


def start(args, chosen, folder):
    """The programs that the modes need, by name, and the twin of them all."""
    agent = os.path.join(os.path.dirname(os.path.abspath(args.probe)), "libgpuprobe_agent.so")
    needed = {"watched"} | {mode.loop for mode in chosen.values()}
    loops = {name: Loop(args.workload, agent=agent if name in ("inert", "collecting") else None) for name in needed}
    watched = loops["watched"]
    copies = [shutil.copy(library, f"{folder}/{name}") for library, name in
              ((watched.driver, "twin.cuda.so"), (watched.runtime, "twin.cudart.so"))]
    twin = loops["twin"] = Loop(args.workload, copies)
    assert twin.driver in copies and twin.runtime in copies, f"the twin uses {twin.driver} and {twin.runtime}"
    return loops


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("peer")
    parser.add_argument("--workload", choices=list(STEPS), default="training")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--only", help="of the modes only these, by name, with commas between them")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: at least 2")
    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory() as folder:
        chosen = modes(args, folder)
        if args.only:
            unknown = set(args.only.split(",")) - set(chosen)
            if unknown:
                parser.error(f"--only: {', '.join(unknown)}: it knows {', '.join(chosen)}")
            chosen = {name: chosen[name] for name in args.only.split(",")}
        loops = start(args, chosen, folder)
        measured = measure(args, loops, chosen, folder)
        # the programs may take seconds to end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for each in loops.values():
            each.end()
    sys.exit(report(args, chosen, measured))


main()
