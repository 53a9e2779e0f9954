"""How the cost of the daemon grows: with processes that run, with processes that have exited, and with threads."""

import json
import os
import shutil
import statistics
import subprocess
import threading
import time

from programs import Daemon, Ledger, Paced, cpu_seconds, expect, peak_mib, resident_mib

# 1,000 processes with thirty functions each need more rows than there are by default
ROWS = ("--max-counters", "65536")
# under a name that no other program on the host has
EXITS = "bench_exits"
EXITING = ("--threads", "1", "--calls", "300")
# as Prometheus scrapes, but more often; what is not scraped regularly has other series
SCRAPED_EVERY = 6
COLUMNS = "{:>22}{:>10}{:>14}{:>10}{:>12}{:>14}{:>12}"


def print_row(what, daemon, share):
    scrapes = [daemon.scrape() for _ in range(5)]
    pid, last = daemon.process.pid, scrapes[-1]
    took = statistics.median(scrape.seconds for scrape in scrapes)
    figures = (len(last.samples), f"{last.size / 1000:.0f}", f"{last.compressed / 1000:.0f}", f"{1000 * took:.0f}")
    memory = f"{resident_mib(pid):.1f} {peak_mib(pid):.1f}"
    print(COLUMNS.format(what, *figures, memory, f"{share:.2f}"), flush=True)
    lost = {cause: n for cause, n in last.sums("gpuprobe_events_lost_total", "cause").items() if n}
    if lost:
        print(f"{'':>22} losses: {lost}", flush=True)
    return last


def by_processes(probe, folder, most=1000):
    print("\nThe daemon by number of processes, each with 30 functions: medians of 5 scrapes, resident memory and its peak")
    print(COLUMNS.format("processes", "series", "scrape kB", "gzip kB", "scrape ms", "RSS, peak MiB", "% of a core"))
    for many in (n for n in (1, 10, 100, 1000) if n <= most):
        daemon = Daemon(probe, f"{folder}/libcuda.so.1", *ROWS)
        programs = [Ledger(folder) for _ in range(many)]
        time.sleep(3)
        before, begun = cpu_seconds(daemon.process.pid), time.monotonic()
        time.sleep(5)
        share = 100 * (cpu_seconds(daemon.process.pid) - before) / (time.monotonic() - begun)
        print_row(f"{many} running", daemon, share)
        daemon.stop()
        for program in programs:
            program.end()


def starts_by_processes(probe, folder):
    print(f"\nIts start with processes that use CUDA\n{'processes':>10}{'ready ms':>12}")
    for many in (1, 10, 100, 1000):
        programs = [Paced(folder, 1) for _ in range(many)]
        daemon = Daemon(probe, f"{folder}/libcuda.so.1")
        print(f"{many:>10}{1000 * daemon.start_seconds:>12.0f}", flush=True)
        daemon.stop()
        for program in programs:
            program.end()


def run_many(program, many, environment):
    """Runs it so many times, one per CPU at a time."""
    lines = "run\n" * many
    command = ["xargs", "-P", str(os.cpu_count()), "-I{}", program, *EXITING]
    subprocess.run(command, input=lines, text=True, stdout=subprocess.DEVNULL, env=environment, check=True)


def scrape_until(daemon, is_over):
    while not is_over.wait(SCRAPED_EVERY):
        daemon.scrape()


def by_exited(probe, folder, many=10_000):
    """Processes that come and go, and what they leave behind. All their calls must be in the sums."""
    print(f"\nThe same after {many:,} processes, which exited")
    program, environment = f"{folder}/{EXITS}", {**os.environ, "LD_LIBRARY_PATH": folder}
    shutil.copy(f"{folder}/ledger", program)
    daemon, is_over = Daemon(probe, f"{folder}/libcuda.so.1", *ROWS), threading.Event()
    scraper = threading.Thread(target=scrape_until, args=(daemon, is_over), daemon=True)
    scraper.start()
    # the same calls each time, by its seed
    ledger = json.loads(subprocess.run([program, *EXITING], capture_output=True, text=True, env=environment).stdout)
    before, begun = cpu_seconds(daemon.process.pid), time.monotonic()
    run_many(program, many - 1, environment)
    took = time.monotonic() - begun
    share = 100 * (cpu_seconds(daemon.process.pid) - before) / took
    time.sleep(3)
    is_over.set()
    scraper.join()
    print(f"{many - 1:,} were started in {took:.0f} s, {many / took:.0f} a second")
    last = print_row(f"{many} exited", daemon, share)
    # other programs of the host are in the same scrape
    counted = last.sums("gpuprobe_calls_total", "function", f'process="{EXITS}"')
    for function in set(counted) & set(ledger["driver_calls"]):
        expect(f"calls of {function} by {many} processes", counted[function], many * ledger["driver_calls"][function])
    expect("functions of processes that exited", len(counted) > 20, True)
    daemon.stop()


def by_threads(probe, folder):
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
