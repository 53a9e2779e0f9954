"""Looks at programs that hang, 10 s after the hang began: hang_check.py GPUPROBE HANG_PROGRAM FOLDER

Each must be shown with its call, the line that made it, the verdict `stuck`, and the state of the GPU. The outputs are
written to the folder.
"""

import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "shared"))
from checks import Checks

SECONDS = "30"
WAITS = 10

probe, hang, folder = sys.argv[1:4]
check = Checks()


def look(name, command):
    """The process as `gpuprobe stacks --json` shows it; the text is kept for people."""
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        pid = json.loads(program.stdout.readline())["pid"]
        time.sleep(WAITS)
        arguments = [probe, "stacks", "-d", str(pid)]
        begin = time.monotonic()
        found = subprocess.run(arguments + ["--json"], capture_output=True, text=True, timeout=60)
        seconds = time.monotonic() - begin
        text = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        with open(os.path.join(folder, f"stacks-{name}.txt"), "w") as file:
            file.write(text.stdout + text.stderr)
        print(f"{name}: {seconds:.1f} s")
        with open(f"/proc/{pid}/status") as file:
            tracer = next(line for line in file if line.startswith("TracerPid")).split()[1]
        check.that(f"{name}, no tracer", tracer == "0", tracer)
        return json.loads(found.stdout)["processes"][0]
    finally:
        program.kill()
        program.wait()


def groups_in(process, function):
    return [group for group in process["groups"] if group["function"] == function]


def places(group):
    return [(frame["function"], os.path.basename(frame["file"] or ""), frame["line"]) for frame in group["stack"]]


def line_of(script, text):
    with open(os.path.join(HERE, script)) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def busy(process):
    return [gpu["busy_percent"] for gpu in process["gpus"]]


def stuck(name, process, functions, is_place):
    found = [group for function in functions for group in groups_in(process, function)]
    check.that(f"{name}, in {functions}", bool(found), [group["function"] for group in process["groups"]])
    for group in found[:1]:
        check.that(f"{name}, verdict", group["verdict"] == "stuck", group["verdict"])
        check.that(f"{name}, line", any(map(is_place, places(group))), places(group)[:12])


process = look("kernel", [hang, SECONDS])
stuck("kernel", process, ["cudaStreamSynchronize"], lambda place: "wait_for_gpu" in (place[0] or ""))
check.that("kernel, GPU busy", 100 in busy(process), busy(process))

process = look("item", [sys.executable, os.path.join(HERE, "torch_item.py"), SECONDS])
wanted = ("report", "torch_item.py", line_of("torch_item.py", "loss.item()"))
functions = ["cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMemcpy", "cudaEventSynchronize"]
stuck("item", process, functions, lambda place: place == wanted)
check.that("item, GPU busy", 100 in busy(process), busy(process))

process = look("nccl", [sys.executable, os.path.join(HERE, "nccl_deadlock.py"), SECONDS])
wanted = ("join", "nccl_deadlock.py", line_of("nccl_deadlock.py", "nccl.ncclCommInitRank(ctypes"))
stuck("nccl", process, ["ncclCommInitRank"], lambda place: place == wanted)
threads = sum(group["threads"] for group in groups_in(process, "ncclCommInitRank"))
check.that("nccl, both threads", threads == 2, threads)

check.end()
