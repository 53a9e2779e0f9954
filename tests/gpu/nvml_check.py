"""Compares the daemon's metrics for GPUs and processes with nvidia-smi at the same moment. Exits 1 if they differ.

    nvml_check.py GPUPROBE torch_live.py DISPLAY     DISPLAY is a file for the daemon's display

Both read NVML, but not at the same instant, and most values change. So the daemon is queried before and after nvidia-smi. A
value matches if it is between the two answers or within the tolerance below. There are up to ten attempts, a second apart. If
nvidia-smi has no value ([N/A]), the daemon must not have one either.

Unexplained memory is checked with two programs that have 1 GiB of live memory each: for the one that started before the daemon
all of it is unexplained, for the other only the context and the code of kernels.
"""

import json
import subprocess
import sys
import time

from daemon_check import Daemon, verdict

MIB = 1 << 20
GIB = 1 << 30
TRIES = 10
# the kinds of memory that stay on the GPU; managed memory is excluded, because only the kernel module knows where it is
ON_GPU = ("device", "pool", "vmm", "array")

# field of nvidia-smi, metric, labels, factor from the field's unit to the metric's, tolerance in the metric's unit, and as a
# share. nvidia-smi rounds memory down to MiB.
FIELDS = [
    ("memory.total", "memory_total_bytes", {}, MIB, MIB, 0),
    ("memory.used", "memory_used_bytes", {}, MIB, 2 * MIB, 0),
    ("memory.free", "memory_free_bytes", {}, MIB, 2 * MIB, 0),
    ("memory.reserved", "memory_reserved_bytes", {}, MIB, 2 * MIB, 0),
    ("utilization.gpu", "utilization_ratio", {}, 0.01, 0.1, 0),
    ("utilization.memory", "memory_utilization_ratio", {}, 0.01, 0.1, 0),
    ("temperature.gpu", "temperature_celsius", {}, 1, 2, 0),
    ("temperature.memory", "memory_temperature_celsius", {}, 1, 2, 0),
    ("power.draw", "power_watts", {}, 1, 10, 0.1),
    ("enforced.power.limit", "power_limit_watts", {}, 1, 0.01, 0),
    ("clocks.gr", "clock_hertz", {"clock": "graphics"}, 1e6, 30e6, 0.02),
    ("clocks.sm", "clock_hertz", {"clock": "sm"}, 1e6, 30e6, 0.02),
    ("clocks.mem", "clock_hertz", {"clock": "memory"}, 1e6, 30e6, 0.02),
    ("clocks.video", "clock_hertz", {"clock": "video"}, 1e6, 30e6, 0.02),
    ("pcie.link.gen.current", "pcie_link_generation", {}, 1, 0, 0),
    ("pcie.link.width.current", "pcie_link_width", {}, 1, 0, 0),
    ("fan.speed", "fan_ratio", {}, 0.01, 0.05, 0),
    ("pstate", "performance_state", {}, 1, 0, 0),
    ("ecc.errors.corrected.volatile.total", "ecc_errors_total", {"severity": "corrected"}, 1, 0, 0),
    ("ecc.errors.uncorrected.volatile.total", "ecc_errors_total", {"severity": "uncorrected"}, 1, 0, 0),
    ("ecc.errors.corrected.aggregate.total", "ecc_lifetime_errors_total", {"severity": "corrected"}, 1, 0, 0),
    ("ecc.errors.uncorrected.aggregate.total", "ecc_lifetime_errors_total", {"severity": "uncorrected"}, 1, 0, 0),
    ("utilization.encoder", "video_utilization_ratio", {"engine": "encoder"}, 0.01, 0.1, 0),
    ("utilization.decoder", "video_utilization_ratio", {"engine": "decoder"}, 0.01, 0.1, 0),
    ("utilization.jpeg", "video_utilization_ratio", {"engine": "jpeg"}, 0.01, 0.1, 0),
    ("utilization.ofa", "video_utilization_ratio", {"engine": "optical_flow"}, 0.01, 0.1, 0),
    ("encoder.stats.sessionCount", "encoder_sessions", {}, 1, 0, 0),
    ("mig.mode.current", "mig_enabled", {}, 1, 0, 0),
    ("mig.mode.pending", "mig_enabled_after_reset", {}, 1, 0, 0),
    ("retired_pages.single_bit_ecc.count", "retired_pages_total", {"severity": "corrected"}, 1, 0, 0),
    ("retired_pages.double_bit.count", "retired_pages_total", {"severity": "uncorrected"}, 1, 0, 0),
    ("retired_pages.pending", "page_retirement_pending", {}, 1, 0, 0),
]
# the same for what nvidia-smi lists in a table of its own
ROWS = [
    ("remapped_rows.correctable", "remapped_rows_total", {"severity": "corrected"}, 1, 0, 0),
    ("remapped_rows.uncorrectable", "remapped_rows_total", {"severity": "uncorrected"}, 1, 0, 0),
    ("remapped_rows.pending", "row_remap_pending", {}, 1, 0, 0),
    ("remapped_rows.failure", "row_remap_failed", {}, 1, 0, 0),
]
# words of nvidia-smi
WORDS = {"Yes": 1.0, "No": 0.0, "Enabled": 1.0, "Disabled": 0.0}
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}


def smi(what, fields):
    """Rows of nvidia-smi; None if it does not know a field."""
    command = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return None
    return [[cell.strip() for cell in line.split(", ")] for line in done.stdout.splitlines() if line.strip()]


def number(cell):
    """A cell as a number; None if nvidia-smi has none."""
    if cell in WORDS:
        return WORDS[cell]
    cell = cell.strip("P") if cell[:1] == "P" else cell
    try:
        return float(int(cell, 16) if cell.startswith("0x") else cell)
    except ValueError:
        return None


def of(samples, name, **labels):
    """The value of a series; None if there is none."""
    fits = lambda own: all(own.get(key) == value for key, value in labels.items())
    found = [value for n, own, value in samples if n == name and fits(own)]
    assert len(found) < 2, f"{name} {labels}: {len(found)} series"
    return found[0] if found else None


def fits(expected, before, after, tolerance, share):
    if expected is None or before is None or after is None:
        return expected is None and before is None and after is None
    room = tolerance + share * abs(expected)
    return min(before, after) - room <= expected <= max(before, after) + room


def throttled(samples, uuid):
    """The throttle reasons of a GPU as the bits of nvidia-smi; None if it has none."""
    active = {reason: of(samples, "gpuprobe_gpu_throttled", uuid=uuid, reason=reason) for reason in REASONS}
    return None if None in active.values() else sum(REASONS[reason] for reason, is_so in active.items() if is_so)


def known(what, rows):
    """Those rows whose fields nvidia-smi knows: one that it does not know makes the whole query fail."""
    if not rows or smi(what, [row[0] for row in rows]) is not None:
        return rows
    if len(rows) == 1:
        print(f"      nvidia-smi does not know {rows[0][0]}")
        return []
    half = len(rows) // 2
    return known(what, rows[:half]) + known(what, rows[half:])


class Comparison:
    """Compares every field of every GPU until it has matched once."""

    def __init__(self, daemon, with_reasons=True):
        self.daemon = daemon
        self.queries = [("gpu", "uuid", known("gpu", FIELDS)), ("remapped-rows", "gpu_uuid", known("remapped-rows", ROWS))]
        names = ("clocks_event_reasons.active", "clocks_throttle_reasons.active") if with_reasons else ()
        self.reasons = next((name for name in names if smi("gpu", [name]) is not None), None)

    def gpu(self, before, after, fields, row, said):
        uuid, cells = row[0], row[1:]
        for (field, metric, labels, factor, tolerance, share), cell in zip(fields, cells):
            expected = number(cell)
            expected = None if expected is None else expected * factor
            ours = [of(samples, f"gpuprobe_gpu_{metric}", uuid=uuid, **labels) for samples in (before, after)]
            good = fits(expected, *ours, tolerance, share)
            said[(uuid, field)] = (good, f"{field}: {expected}, gpuprobe {ours[0]} and {ours[1]}")

    def throttled(self, before, after, row, said):
        uuid, expected = row[0], number(row[1])
        expected = None if expected is None else int(expected) & sum(REASONS.values())
        bits = [throttled(samples, uuid) for samples in (before, after)]
        good = expected in bits
        said[(uuid, self.reasons)] = (good, f"{self.reasons}: {expected}, gpuprobe {bits[0]} and {bits[1]}")

    def attempt(self):
        """What was compared, and how many GPUs nvidia-smi has."""
        before = self.daemon.samples()
        answers = [(fields, smi(what, [uuid] + [row[0] for row in fields])) for what, uuid, fields in self.queries if fields]
        reasons = smi("gpu", ["uuid", self.reasons]) if self.reasons else None
        # a reading is at most a second old, so the values of nvidia-smi are between this reading and the last
        time.sleep(1.5)
        after, said = self.daemon.samples(), {}
        for fields, rows in answers:
            for row in rows or []:
                self.gpu(before, after, fields, row, said)
        for row in reasons or []:
            self.throttled(before, after, row, said)
        return said, len(answers[0][1] or [])

    def run(self, when, tries=TRIES):
        fitted, last, gpus = {}, {}, 0
        for _ in range(tries):
            last, gpus = self.attempt()
            fitted.update({key: text for key, (good, text) in last.items() if good and key not in fitted})
            if last and all(key in fitted for key in last):
                break
        good = verdict(bool(last), f"{when}: {gpus} GPUs in nvidia-smi")
        for key, (_, text) in sorted(last.items()):
            good &= verdict(key in fitted, f"{when}: {fitted.get(key, text)}")
        return good


def processes(daemon, children, when):
    """Compares the memory of each process with nvidia-smi; a reading is at most a second old."""
    rows = []
    for _ in range(TRIES):
        time.sleep(1.5)
        samples = daemon.samples()
        index = {row[1]: row[0] for row in smi("gpu", ["index", "uuid"]) or []}
        rows = smi("compute-apps", ["pid", "gpu_uuid", "used_memory"]) or []
        listed_memory = {(pid, index.get(uuid)): number(memory) for pid, uuid, memory in rows}
        name = "gpuprobe_gpu_process_memory_bytes"
        ours = {(own["pid"], own["gpu"]): value for n, own, value in samples if n == name}
        wrong = [key for key, mib in listed_memory.items() if mib is not None and abs(ours.get(key, -MIB) / MIB - mib) > 1]
        if listed_memory and not wrong and all(any(pid == str(c["pid"]) for pid, _ in listed_memory) for c in children):
            break
    good = True
    for child in children:
        listed = [key for key in listed_memory if key[0] == str(child["pid"])]
        good &= verdict(bool(listed), f"{when}: nvidia-smi lists process {child['pid']}")
    for key, mib in sorted(listed_memory.items()):
        bytes_ = ours.get(key)
        text = f"{when}: process {key[0]} on GPU {key[1]}: {mib} MiB, gpuprobe {bytes_ and bytes_ / MIB} MiB"
        good &= verdict(key not in wrong, text)
    return good


def unexplained(daemon, child, began_before):
    """Unexplained memory is NVML's figure minus live bytes, and has a plausible size."""
    time.sleep(2.5)
    pid = str(child["pid"])
    samples = daemon.samples()
    memory = of(samples, "gpuprobe_gpu_process_memory_bytes", pid=pid)
    rest = of(samples, "gpuprobe_memory_unexplained_bytes", pid=pid)
    above = of(samples, "gpuprobe_memory_seen_above_nvml_bytes", pid=pid)
    seen = sum(
        value
        for name, own, value in samples
        if name == "gpuprobe_memory_live_bytes" and own.get("pid") == pid and own["kind"] in ON_GPU
    )
    who = f"process {pid}, which began {'before' if began_before else 'after'} the daemon"
    if memory is None or rest is None:
        return verdict(False, f"{who}: memory {memory}, unexplained {rest}: no figure of NVML")
    text = f"{who}: {memory / MIB:.1f} MiB, seen {seen / MIB:.1f}, unexplained {rest / MIB:.1f}, above {above}"
    good = verdict(rest == max(memory - seen, 0) and above == max(seen - memory, 0), text)
    if began_before:
        return good & verdict(seen < GIB <= rest, f"{who}: all its earlier memory is unexplained")
    # libraries such as cuBLAS allocate some memory without PyTorch
    own = seen - child["reserved"]
    good &= verdict(0 <= own < 256 * MIB, f"{who}: {seen:.0f} bytes seen, {own:.0f} more than PyTorch's {child['reserved']}")
    return good & verdict(64 * MIB < rest < 2 * GIB, f"{who}: the rest is its context and the code of kernels")


class Child:
    def __init__(self, program):
        self.process = subprocess.Popen(["python3", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.process.stdout.readline())

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def until_up(daemon):
    for _ in range(60):
        if of(daemon.samples(), "gpuprobe_nvml_up") == 1:
            return True
        time.sleep(0.5)
    return False


def checks(daemon, first, program):
    if not verdict(until_up(daemon), "NVML is up"):
        return False
    second = Child(program)
    try:
        comparison = Comparison(daemon)
        children = [first.said, second.said]
        good = comparison.run("at rest")
        good &= processes(daemon, children, "at rest")
        good &= unexplained(daemon, first.said, True)
        good &= unexplained(daemon, second.said, False)
        second.go_on()
        time.sleep(3)
        good &= comparison.run("at work")
        busy = [
            (own, value)
            for name, own, value in daemon.samples()
            if name == "gpuprobe_gpu_process_utilization_ratio" and own["engine"] == "sm" and own["pid"] == str(second.said["pid"])
        ]
        good &= verdict(bool(busy) and busy[0][1] > 0.5, f"at work: utilization by its process: {busy}")
        at_rest = second.go_on()
        good &= unexplained(daemon, {**second.said, "reserved": at_rest["reserved"]}, False)
        return good
    finally:
        second.end()


def shown(path):
    """Prints the last displayed section of GPUs with processes."""
    lines = open(path, encoding="utf-8").read().splitlines()
    begins = [i for i, line in enumerate(lines) if line == "GPUs:"]
    for begin in reversed(begins):
        end = lines.index("", begin) if "" in lines[begin:] else len(lines)
        section = lines[begin:end]
        if any("unexplained" in line for line in section):
            print("\n".join(section))
            return verdict(True, "the display has a section of GPUs with unexplained memory")
    return verdict(False, f"no section of GPUs with processes in {path}")


def main():
    probe, program, display = sys.argv[1:]
    first = Child(program)
    good = False
    try:
        with open(display, "w", encoding="utf-8") as file:
            daemon = Daemon(probe, "--memleak", display=file)
            try:
                good = checks(daemon, first, program)
            finally:
                daemon.end()
    finally:
        first.end()
    good &= shown(display)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
