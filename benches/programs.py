"""The daemon and the programs that benches/load.py and benches/growth.py measure. All of them end with the bench."""

import atexit
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
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


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) / 1024


class Scrape:
    """An answer of /metrics, how long it took, and how large it is when it is compressed as Prometheus asks for it."""

    def __init__(self, url):
        begun = time.monotonic()
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read()
        self.seconds, self.size = time.monotonic() - begun, len(text)
        self.compressed = len(gzip.compress(text, 1))
        self.samples = [line for line in text.decode().splitlines() if not line.startswith("#")]

    def sums(self, metric, label, of=""):
        """The values of a metric by a label, over all series with these labels."""
        sums = {}
        for sample in self.samples:
            if not sample.startswith(f"{metric}{{") or of not in sample:
                continue
            if found := re.search(rf'[{{,]{label}="([^"]*)"', sample):
                sums[found[1]] = sums.get(found[1], 0) + float(sample.rsplit(" ", 1)[1])
        return sums


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

    def scrape(self):
        return Scrape(self.url)

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
