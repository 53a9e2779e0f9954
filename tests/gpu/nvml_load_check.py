"""Compares what the daemon reports about the parts of a GPU with programs that keep one part busy at a time, and everything that
NVML reports with nvidia-smi at the same moment.

    nvml_load_check.py GPUPROBE

Prints each comparison, then a table of what was seen, and `N passed, N failed` as the last line; exits 1 if any failed. It takes
less than a minute.

What must be so:

    idle       the multiprocessors are used less than 5%
    matmul     the multiprocessors and the tensor cores are used more than 50%
    device     the bandwidth of the memory is used more than 50%, the tensor cores less than 5%
    host       the traffic from the host is within 20% of the bytes that the program copies

Counters and modes must equal those of nvidia-smi. The tolerances of other values are in `FIELDS` of nvml_check.py: the largest are
10 W and 10% for power, and 30 MHz and 2% for clocks.
"""

import json
import os
import re
import subprocess
import sys
import time
import traceback

from daemon_check import VERDICTS, Daemon, verdict
from nvml_check import Comparison, of, until_up

LOADS = ("idle", "matmul", "device", "host")
# a reading of GPM is about a second long, so after this time the last one has nothing of the load before
SETTLED = 2.5
TRIES = 2
PARTS = ("sm", "sm_occupancy", "tensor", "tensor_fp16", "fp16", "fp32", "dram")
NVLINK = re.compile(r"Link (\d+): (?:(<inactive>)|([\d.]+) GB/s)")
NVLINK_ERROR = re.compile(r"Link (\d+): (Replay|Recovery|CRC) Errors: (\d+)")


class Program:
    """A run of torch_load.py."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_load.py")
        self.process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self):
        return json.loads(self.process.stdout.readline())

    def tell(self, load):
        self.process.stdin.write(load + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Seen:
    """What the daemon reports about a GPU under one load."""

    def __init__(self, samples, uuid):
        self.shares = {part: of(samples, "gpuprobe_gpu_activity_ratio", uuid=uuid, part=part) for part in PARTS}
        traffic = lambda direction: of(
            samples, "gpuprobe_gpu_traffic_bytes_per_second", uuid=uuid, link="pcie", direction=direction
        )
        self.received, self.sent = traffic("rx"), traffic("tx")
        self.watts = of(samples, "gpuprobe_gpu_power_watts", uuid=uuid)
        self.hertz = of(samples, "gpuprobe_gpu_clock_hertz", uuid=uuid, clock="sm")
        self.joules = of(samples, "gpuprobe_gpu_energy_joules_total", uuid=uuid)
        # what the program did in a second
        self.rate = 0.0

    def share(self, part, low, high, load):
        share = self.shares[part]
        text = f"{load}: {part} {share}, between {low} and {high}"
        return verdict(share is not None and low <= share <= high, text)


def judged(load, seen):
    if load == "idle":
        seen.share("sm", 0, 0.05, load)
    elif load == "matmul":
        seen.share("sm", 0.5, 1.01, load)
        seen.share("tensor", 0.5, 1.01, load)
    elif load == "device":
        seen.share("dram", 0.5, 1.01, load)
        seen.share("tensor", 0, 0.05, load)
    else:
        text = f"{load}: {seen.received} bytes/s received by PCIe, the program copied {seen.rate:.0f}"
        verdict(seen.received is not None and abs(seen.received / seen.rate - 1) <= 0.2, text)


def loaded(daemon, comparison, program, uuid, load):
    """Compares everything while the program does one thing, until it gets the next line."""
    time.sleep(SETTLED)
    seen = Seen(daemon.samples(), uuid)
    begun = time.monotonic()
    comparison.run(load, TRIES)
    later = of(daemon.samples(), "gpuprobe_gpu_energy_joules_total", uuid=uuid)
    if seen.joules is not None and later is not None:
        seen.joules = (later - seen.joules) / (time.monotonic() - begun)
    return seen


def nvidia_smi(*arguments):
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30).stdout


def nvlinks(daemon, uuid):
    """The NVLinks of a GPU: which are up, at what speed, and their errors."""
    samples = daemon.samples()
    by_link = lambda name, **labels: {
        int(own["nvlink"]): value
        for n, own, value in samples
        if n == name and own.get("uuid") == uuid and all(own.get(key) == wanted for key, wanted in labels.items())
    }
    up = by_link("gpuprobe_gpu_nvlink_up")
    speeds = by_link("gpuprobe_gpu_nvlink_speed_bytes_per_second")
    listed = {int(number): speed for number, _, speed in NVLINK.findall(nvidia_smi("nvlink", "-s", "-i", uuid))}
    text = f"NVLinks: {len(listed)} in nvidia-smi, {sum(bool(speed) for speed in listed.values())} up; gpuprobe {len(up)}, {sum(up.values()):.0f} up"
    # without any link that is up, nvidia-smi may list none
    same = {number for number, speed in listed.items() if speed} == {number for number, is_up in up.items() if is_up}
    verdict(same and (not listed or set(listed) == set(up)), text)
    for number, speed in sorted(listed.items()):
        if speed:
            wrong = abs(speeds.get(number, 0) - float(speed) * 1e9)
            verdict(wrong <= 1e6, f"NVLink {number}: {speed} GB/s in nvidia-smi, gpuprobe {speeds.get(number)} bytes/s")
    for number, error, count in NVLINK_ERROR.findall(nvidia_smi("nvlink", "-e", "-i", uuid)):
        ours = by_link("gpuprobe_gpu_nvlink_errors_total", error=error.lower()).get(int(number))
        if listed.get(int(number)):
            verdict(ours == float(count), f"NVLink {number}: {error} errors {count}, gpuprobe {ours}")


def shown(value, scale=1.0, digits=3):
    return "-" if value is None else f"{value / scale:.{digits}f}"


def table(seen):
    print(f"\n| | {' | '.join(LOADS)} |")
    print("|---" * (1 + len(LOADS)) + "|")
    rows = {part: [shown(seen[load].shares[part]) for load in LOADS] for part in PARTS}
    rows["PCIe from the host, GB/s"] = [shown(seen[load].received, 1e9) for load in LOADS]
    rows["PCIe to the host, GB/s"] = [shown(seen[load].sent, 1e9) for load in LOADS]
    rows["power, W"] = [shown(seen[load].watts, digits=1) for load in LOADS]
    rows["energy by time, W"] = [shown(seen[load].joules, digits=1) for load in LOADS]
    rows["SM clock, MHz"] = [shown(seen[load].hertz, 1e6, 0) for load in LOADS]
    units = {"idle": lambda _: "", "matmul": lambda rate: f"{rate / 1e12:.0f} TFLOP/s"}
    copied = lambda rate: f"{rate / 1e9:.2f} GB/s"
    rows["the program"] = [units.get(load, copied)(seen[load].rate) for load in LOADS]
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


def checks(daemon, program):
    if not verdict(until_up(daemon), "NVML is up"):
        return
    comparison = Comparison(daemon, with_reasons=False)
    uuid = program.said()["uuid"]
    seen = {}
    for load in LOADS:
        program.tell(load)
        # the amount of the load before, which ends with this line
        if seen:
            did, before = program.said(), LOADS[len(seen) - 1]
            seen[before].rate = did["amount"] / did["seconds"]
        verdict(program.said() == {"at": load}, f"{load}: the program does it")
        seen[load] = loaded(daemon, comparison, program, uuid, load)
    program.tell("end")
    did = program.said()
    seen[LOADS[-1]].rate = did["amount"] / did["seconds"]
    for load in LOADS:
        judged(load, seen[load])
    nvlinks(daemon, uuid)
    table(seen)


def main():
    (probe,) = sys.argv[1:]
    begun = time.monotonic()
    program = Program()
    try:
        daemon = Daemon(probe, "--memleak")
        try:
            checks(daemon, program)
        finally:
            daemon.end()
    except Exception:
        traceback.print_exc()
        verdict(False, "the comparison could not be finished")
    finally:
        program.end()
    print(f"\n{time.monotonic() - begun:.0f} s")
    print(f"{VERDICTS[True]} passed, {VERDICTS[False]} failed")
    sys.exit(0 if VERDICTS[True] and not VERDICTS[False] else 1)


main()
