#!/usr/bin/env python3
"""Measures the resource use of gpuprobe and checks that it loses no calls: benches/run calls this.

    load.py GPUPROBE STANDINS [--seconds N] [--growth] [--only-growth] [--threads]

Prints tables. Exits 1 if a count is wrong: times depend on the machine, counts do not.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time

import growth
from programs import CALL, Daemon, Paced, cpu_seconds, expect, line, resident_mib, wrong


def user_side(probe, folder, seconds):
    print(f"\nThe daemon with 50,000 counted calls a second, for {seconds} s")
    daemon = Daemon(probe, f"{folder}/libcuda.so.1")
    program = Paced(folder, 50_000 * seconds, 50_000)
    before, begun = cpu_seconds(daemon.process.pid), time.monotonic()
    program.go()
    ledger = program.ledger()
    spent, took = cpu_seconds(daemon.process.pid) - before, time.monotonic() - begun
    share, resident = 100 * spent / took, resident_mib(daemon.process.pid)
    line("calls a second", f"{ledger['calls'][CALL] / took:,.0f}")
    line("of one core", f"{share:.2f} %", "below 1 %", share < 1)
    line("resident memory", f"{resident:.1f} MiB", "below 40 MiB", resident < 40)
    counted = daemon.calls_when_read(program.pid, ledger["calls"][CALL])
    expect("counted at 50,000 calls a second", counted, ledger["calls"][CALL])
    daemon.stop()


def starts(probe, folder):
    print("\nIts start with 100 processes that use CUDA, and its end")
    programs = [Paced(folder, 1) for _ in range(100)]
    for tier in ("session", "multi"):
        starts, stops = [], []
        for _ in range(5):
            daemon = Daemon(probe, f"{folder}/libcuda.so.1", "--attach", tier)
            starts.append(1000 * daemon.start_seconds)
            stops.append(1000 * daemon.stop())
        start, stop = sorted(starts)[2], sorted(stops)[2]
        line(f"{tier}: from its start to ready, median of 5", f"{start:.0f} ms", "below 300 ms", start < 300)
        line(f"{tier}: from SIGTERM to its end", f"{stop:.0f} ms", "below 200 ms", stop < 200)
    for program in programs:
        program.end()


def counted_whole(probe, folder, seconds):
    print(f"\n4 threads at full speed for about {seconds} s, counted")
    daemon = Daemon(probe, f"{folder}/libcuda.so.1")
    trial = Paced(folder, 400_000, 0, 4)
    trial.go()
    calls = int(400_000 / trial.ledger()["seconds"] * seconds) // 4 * 4
    program = Paced(folder, calls, 0, 4)
    program.go()
    ledger = program.ledger()
    counted = daemon.calls_when_read(program.pid, calls)
    line("made, in how long", f"{calls:,}", f"{ledger['seconds']:.1f} s")
    line("counted", f"{counted:,}", "as many", counted == calls)
    expect("counted at full speed", counted, calls)
    daemon.stop()


def streamed(probe, folder, calls, rate, threads, *options):
    """Received and lost calls, and calls per second."""
    with tempfile.TemporaryDirectory() as output:
        trace = f"{output}/trace.jsonl"
        program = Paced(folder, calls, rate, threads)
        command = [probe, "record", "-d", str(program.pid), "-o", trace, "-e", CALL, "-q", "--max-size", "none", *options]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(1.5)
        program.go()
        ledger = program.ledger()
        recorder.stderr.read()
        recorder.wait()
        received, lost = 0, 0
        with open(trace) as lines:
            for text in lines:
                if f'"{CALL}"' in text:
                    received += 1
                elif '"lost"' in text:
                    lost = sum(json.loads(text).get("lost", {}).values())
    return received, lost, calls / ledger["seconds"]


def streams(probe, folder, seconds):
    print(f"\nRecorded to a file, for about {seconds} s")
    kinds = (
        ("300,000 a second of 2 threads", 300_000, 2, 100, ()),
        ("4 threads at full speed", 0, 4, 95, ()),
        ("4 threads at full speed, --lossless", 0, 4, 100, ("--lossless",)),
    )
    for what, rate, threads, wanted, options in kinds:
        calls = (rate or 600_000) * seconds // 4 * 4
        received, lost, pace = streamed(probe, folder, calls, rate, threads, *options)
        share = 100 * received / calls
        line(f"{what}: made", f"{calls:,}", f"{pace:,.0f} a second")
        line("  received", f"{share:.2f} %", f"{wanted} %", share >= wanted)
        line("  lost", f"{lost:,}")
        expect(f"{what}: received and lost", received + lost, calls)
        if options:
            expect(f"{what}: lost", lost, 0)


def spinning_seconds(probe, folder, calls, is_sampled):
    """How long a program takes for calls that each spin for 20 us by the clock, alone or while it is sampled."""
    program = Paced(folder, calls, 0, environment={"STANDIN_SPIN": "cuMemcpyHtoD_v2:20"})
    if is_sampled:
        command = [probe, "stacks", "--json", "-d", str(program.pid), "--samples", "1000"]
        sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(0.4)
    program.go()
    took = program.ledger()["seconds"]
    if is_sampled:
        expect("the sampler runs", sampler.poll(), None)
        sampler.kill()
        sampler.wait()
    return took


def sampled(probe, folder):
    print("\nA program whose calls spin for 20 us by the clock, while `stacks` samples it all the time")
    # the clock does not depend on the speed of the processor, which differs by half between two runs on a shared machine
    pairs = [[spinning_seconds(probe, folder, 25_000, is_sampled) for is_sampled in (False, True)] for _ in range(5)]
    alone, while_sampled = (sorted(times)[2] for times in zip(*pairs))
    ratio = while_sampled / alone
    line("time of a call, relative to alone, medians of 5", f"{ratio:.3f}", "below 1.02", ratio < 1.02)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("standins")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--growth", action="store_true", help="also measure how cost grows with processes and threads")
    parser.add_argument("--only-growth", action="store_true", help="only measure how it grows with processes")
    parser.add_argument("--threads", action="store_true", help="only measure how it grows with threads")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("libcuda.so.1", "libcudart.so.12", "paced", "ledger"):
            shutil.copy(f"{args.standins}/{name}", folder)
        if not args.threads and not args.only_growth:
            user_side(args.probe, folder, args.seconds)
            starts(args.probe, folder)
            counted_whole(args.probe, folder, args.seconds)
            streams(args.probe, folder, args.seconds)
            sampled(args.probe, folder)
        if args.growth or args.only_growth:
            growth.starts_by_processes(args.probe, folder)
            growth.by_processes(args.probe, folder)
            growth.by_exited(args.probe, folder)
        if args.growth or args.threads:
            growth.by_threads(args.probe, folder)
    for what in wrong:
        print(f"WRONG {what}")
    sys.exit(1 if wrong else 0)


main()
