#!/usr/bin/env python3
"""Measures the resource use of gpuprobe and checks that it loses no calls: benches/run calls this.

    load.py GPUPROBE STANDINS [--seconds N] [--growth] [--threads]

Prints tables. Exits 1 if a count is wrong: times depend on the machine, counts do not.
"""

import argparse
import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")
CALL = "cuMemcpyHtoD_v2"
wrong = []


def line(what, figure, aim="", met=None):
    verdict = "" if met is None else ("met" if met else "missed")
    print(f"{what:<52}{figure:>16}  {aim:<16}{verdict}", flush=True)


def expect(what, found, wanted):
    if found != wanted:
        wrong.append(f"{what}: {found}, not {wanted}")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024


class Paced:
    """The calling program, which waits for a line on stdin."""

    def __init__(self, folder, *words, environment=None):
        command = [f"{folder}/paced", *map(str, words)]
        environment = {"LD_LIBRARY_PATH": folder, **(environment or {})}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.pid = json.loads(self.process.stdout.readline())["pid"]

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ledger(self):
        printed = json.loads(self.process.stdout.readline())
        self.process.wait()
        return printed

    def end(self):
        self.process.kill()
        self.process.wait()


class Ledger:
    """A program that has made many kinds of calls and has live memory while it waits."""

    def __init__(self, folder):
        command = [f"{folder}/ledger", "--threads", "1", "--calls", "1000", "--pauses", "1"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"LD_LIBRARY_PATH": folder}
        )
        self.process.stdout.readline()

    def end(self):
        self.process.kill()
        self.process.wait()


class Daemon:
    def __init__(self, probe, library, *options):
        self.started = time.monotonic()
        command = [probe, "daemon", "--metrics-addr", "127.0.0.1:0", "--display-interval", "0", "-p", library, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        # it must not keep observing the host after an error here
        atexit.register(self.process.terminate)
        for said in self.process.stderr:
            found = re.search(r"metrics on (http://\S+)", said)
            if found:
                self.url = found[1].removesuffix("/metrics")
                break
        else:
            sys.exit("load.py: the daemon did not start")
        while not self.is_ready():
            time.sleep(0.002)
        self.start_seconds = time.monotonic() - self.started

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/readyz") as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False

    def calls(self, pid):
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        found = re.search(rf'gpuprobe_calls_total{{[^}}]*pid="{pid}"[^}}]*function="{CALL}"[^}}]*}} (\d+)', text)
        return int(found[1]) if found else 0

    def calls_when_read(self, pid, wanted):
        """Counters are read once a second."""
        for _ in range(50):
            if self.calls(pid) == wanted:
                break
            time.sleep(0.1)
        return self.calls(pid)

    def stop(self):
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        return time.monotonic() - begun


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


def growth_by_processes(probe, folder):
    print("\nThe daemon by number of processes: started with as many that use CUDA, then with as many that wait after 1,000 calls")
    print(f"{'processes':>10}{'ready ms':>12}{'RSS MiB':>12}{'% of a core':>14}{'scrape kB':>12}")
    for many in (1, 10, 100, 1000):
        programs = [Paced(folder, 1) for _ in range(many)]
        daemon = Daemon(probe, f"{folder}/libcuda.so.1")
        for program in programs:
            program.end()
        programs = [Ledger(folder) for _ in range(many)]
        time.sleep(3)
        before, begun = cpu_seconds(daemon.process.pid), time.monotonic()
        time.sleep(5)
        share = 100 * (cpu_seconds(daemon.process.pid) - before) / (time.monotonic() - begun)
        with urllib.request.urlopen(f"{daemon.url}/metrics") as answer:
            scrape = len(answer.read()) / 1000
        ready, resident = 1000 * daemon.start_seconds, resident_mib(daemon.process.pid)
        print(f"{many:>10}{ready:>12.0f}{resident:>12.1f}{share:>14.2f}{scrape:>12.0f}", flush=True)
        daemon.stop()
        for program in programs:
            program.end()


def growth_by_threads(probe, folder):
    print(f"\nA counted call by threads, all at full speed on {os.cpu_count()} CPUs, in CPU time of its program")
    print(f"{'threads':>10}{'calls/s':>14}{'ns a call':>12}")
    daemon = Daemon(probe, f"{folder}/libcuda.so.1")
    for threads in (2**power for power in range((4 * os.cpu_count()).bit_length())):
        calls = 200_000 * max(4, threads)
        program = Paced(folder, calls, 0, threads)
        program.go()
        ledger = json.loads(program.process.stdout.readline())
        _, _, usage = os.wait4(program.process.pid, 0)
        spent = (usage.ru_utime + usage.ru_stime) / calls * 1e9
        print(f"{threads:>10}{calls / ledger['seconds']:>14,.0f}{spent:>12.0f}", flush=True)
        program.process.returncode = 0
    daemon.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("standins")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--growth", action="store_true", help="also measure how cost grows with processes and threads")
    parser.add_argument("--threads", action="store_true", help="only measure how it grows with threads")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("libcuda.so.1", "libcudart.so.12", "paced", "ledger"):
            shutil.copy(f"{args.standins}/{name}", folder)
        if not args.threads:
            user_side(args.probe, folder, args.seconds)
            starts(args.probe, folder)
            counted_whole(args.probe, folder, args.seconds)
            streams(args.probe, folder, args.seconds)
            sampled(args.probe, folder)
        if args.growth:
            growth_by_processes(args.probe, folder)
        if args.growth or args.threads:
            growth_by_threads(args.probe, folder)
    for what in wrong:
        print(f"WRONG {what}")
    sys.exit(1 if wrong else 0)


main()
