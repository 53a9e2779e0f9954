"""Scrapes of one real daemon, and from them what as many hosts as needed answer for as long as needed.

The daemon watches eight processes on the stand-in libraries, whose NVML has one GPU with all readings. So that a host has
eight GPUs, the series of that GPU are repeated, and each process is on a GPU of its own. After the last recorded scrape
it begins again: gauges as before, counters on top of what they have reached.
"""

import json
import os
import re
import shutil
import sys
import time

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/prometheus")
sys.path[:0] = [TESTS, os.path.join(TESTS, "../shared")]
from checks import until  # noqa: E402
from servers import Daemon, Server  # noqa: E402

GPUS = 8
SCRAPES, SCRAPED_EVERY = 40, 2
# of the stand-in of NVML
NVML_BYTES = 20 << 30
GPM = {2: 86.4, 5: 83, 10: 15.125, 20: 2048, 21: 1024, 60: 1.5, 61: 1.25}
# some 800 calls a second of each process
WORKLOAD = ("--threads", "1", "--calls", "4000000", "--pauses", "100000", "--hold", "0.05")
NAME = "fleet_train"
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")


def record(probe, standins, folder):
    """Runs the daemon and the processes. Returns the text of each scrape."""
    for name, own in (("libcuda.so.1",) * 2, ("libcudart.so.12",) * 2, ("libnvidia-ml.so.1",) * 2, ("ledger", NAME)):
        shutil.copy(f"{standins}/{name}", f"{folder}/{own}")
    nvml = f"{folder}/nvml"
    open(nvml, "w").close()
    options = ["-p", f"{folder}/libcuda.so.1", "--nvml", f"{folder}/libnvidia-ml.so.1", "--driver-folder", folder]
    daemon = Daemon(f"{folder}/daemon.log", probe, options, STANDIN_NVML=nvml)
    programs = []
    try:
        for n in range(GPUS):
            command = [f"{folder}/{NAME}", *WORKLOAD, "--seed", str(n)]
            programs.append(Server(os.devnull, command, LD_LIBRARY_PATH=folder))
        pids = [program.process.pid for program in programs]
        with open(nvml, "a") as file:
            file.writelines(f"process 0 compute {pid} {NVML_BYTES}\nbusy 0 {pid} 30 5 0 0\n" for pid in pids)
            file.writelines(f"gpm 0 {metric} {value}\n" for metric, value in GPM.items())
        until("all calls are counted", lambda: all(f'pid="{pid}"' in daemon.scrape() for pid in pids))
        # a series that begins later is left out
        time.sleep(10)
        scrapes = []
        for _ in range(SCRAPES):
            scrapes.append(daemon.scrape())
            time.sleep(SCRAPED_EVERY)
        return scrapes
    finally:
        for process in (*programs, daemon):
            process.end()


def parse(text):
    """(values by series, types by family)."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family, kind = line.split()[2:4]
            types[family] = kind
        elif not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            values[name, labels or ""] = float(value)
    return values, types


def is_rising(name, types):
    kind = types.get(name) or types.get(re.sub(r"_(bucket|sum|count)$", "", name))
    return kind in ("counter", "histogram")


def number(value):
    return str(int(value)) if value.is_integer() else repr(value)


class Series:
    """One series of a host: its values over the recorded scrapes."""

    def __init__(self, key, text, values, is_rising):
        self.family, self.text, self.values = key[0], text, values
        # the next round goes on as the last step did
        self.per_round = values[-1] - values[0] + (values[-1] - values[-2]) if is_rising else 0

    def at(self, n):
        rounds, step = divmod(n, len(self.values))
        return self.values[step] + rounds * self.per_round


class Host:
    """All series of a host with eight GPUs."""

    def __init__(self, scrapes):
        recorded = [parse(text) for text in scrapes]
        self.types = recorded[0][1]
        self.headers = {line.split()[2]: line for line in scrapes[0].splitlines() if line.startswith("# TYPE ")}
        pids = sorted(set(re.findall(rf'\bpid="(\d+)",process="{NAME}"', scrapes[0])), key=int)
        self.gpu_of_pid = {pid: n % GPUS for n, pid in enumerate(pids)}
        self.series = []
        for key in recorded[0][0]:
            if all(key in values for values, _ in recorded):
                values = [values[key] for values, _ in recorded]
                rising = is_rising(key[0], self.types)
                self.series += [Series(key, text, values, rising) for text in self.texts_of(*key)]

    def texts_of(self, name, labels):
        """The series of a host that stand for one of the recording."""
        # the daemon has seen the whole host, where other programs may run
        if 'process="' in labels and f'process="{NAME}"' not in labels:
            return []
        pid = re.search(r'\bpid="(\d+)"', labels)
        gpu = re.search(r'\bgpu="(\d+)"', labels)
        if not gpu:
            return [name + labels]
        if pid:
            return [name + self.on_gpu(labels, self.gpu_of_pid[pid[1]])]
        # the second GPU of the stand-in reads nearly nothing
        return [name + self.on_gpu(labels, n) for n in range(GPUS)] if gpu[1] == "0" else []

    def on_gpu(self, labels, n):
        labels = re.sub(r'\bgpu="\d+"', f'gpu="{n}"', labels)
        labels = re.sub(r'uuid="(GPU-)?([^"]*?).?"', rf'uuid="\g<1>\g<2>{n}"', labels)
        return re.sub(r'pci="([^"]*?)..\.(\d)"', rf'pci="\g<1>{n:02x}.\g<2>"', labels)

    def text(self, n):
        """The answer to the scrape with this number."""
        lines, family = [], None
        for series in self.series:
            if series.family in self.headers and series.family != family:
                family = series.family
                lines.append(self.headers[family])
            lines.append(f"{series.text} {number(series.at(n))}")
        return "\n".join(lines) + "\n"

    def open_metrics(self, hosts, start, interval, scrapes):
        """The samples of some hosts over time, for `promtool tsdb create-blocks-from openmetrics`, series by series."""
        for host in range(hosts):
            for series in self.series:
                name, brace, labels = series.text.partition("{")
                text = f'{name}{{instance="host-{host:05}",job="gpuprobe"' + ("," + labels if brace else "}")
                for n in range(scrapes):
                    yield f"{text} {number(series.at(n + 7 * host))} {start + n * interval}\n"
        yield "# EOF\n"


def load(path):
    with open(path) as file:
        return Host(json.load(file))
