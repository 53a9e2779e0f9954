"""Shows a training job next to a decoder in `gpuprobe top`, and compares its figures with those of the programs.

    top_check.py GPUPROBE FOLDER     FOLDER gets the frames that were shown

Both programs count their steps, and torch.profiler says how many CUDA kernels a step launches. So the launches per second
of the view must be steps per second times kernels per step.
"""

import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "shared"))
from checks import Checks

SECONDS = 40
INTERVAL = 4
# a step may be counted at the end of one interval by the program, and of the next by the view
TOLERANCE = 0.05


class Program:
    """A run of torch_steps.py, and its steps at each time."""

    def __init__(self, workload):
        script = os.path.join(HERE, "torch_steps.py")
        command = [sys.executable, script, workload, str(SECONDS)]
        self.workload, self.ledger = workload, []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.kernels = json.loads(self.process.stdout.readline())["kernels"]
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.ledger.append(json.loads(line))

    def launches_per_second(self, begun, ended):
        rows = [row for row in self.ledger if begun <= row["unix"] <= ended]
        steps, seconds = rows[-1]["steps"] - rows[0]["steps"], rows[-1]["unix"] - rows[0]["unix"]
        return self.kernels * steps / seconds


def top(probe, *options, columns=120):
    command = [probe, "top", "--interval", f"{INTERVAL}s", *options]
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "40"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)


def launches(reading, pid):
    return sum(row["launches"] for row in reading["processes"] if row["id"]["pid"] == pid)


def main():
    probe, folder = sys.argv[1:]
    programs = [Program(workload) for workload in ("training", "decoder")]
    check = Checks()
    shown = top(probe, "--json", "-n", "3")
    frames = top(probe, "-b", "-n", "2")
    with open(f"{folder}/top.txt", "w") as file:
        file.write(frames.stdout + frames.stderr)
    with open(f"{folder}/top.json", "w") as file:
        file.write(shown.stdout + shown.stderr)
    print(frames.stdout)
    readings = [json.loads(line) for line in shown.stdout.splitlines()]
    first, last = readings[0], readings[-1]
    begun, ended = first["unix_seconds"], last["unix_seconds"]
    for program in programs:
        before, after = (launches(reading, program.process.pid) for reading in (first, last))
        # both in the same seconds, because the programs disturb each other and are not steady
        seen, expected = (after - before) / (ended - begun), program.launches_per_second(begun, ended)
        is_equal = abs(seen - expected) <= TOLERANCE * expected
        said = f"{program.kernels} CUDA kernels in a step, {expected:.0f} launches/s; top: {seen}"
        check.that(program.workload, is_equal, said)
    for program in programs:
        program.process.terminate()
        program.process.wait()
    check.end()


main()
