"""Compares Python lines and tensors with what a PyTorch program says itself. Prints each difference, and exits 1 if any.

    python_check.py lines TRACE LEDGER          bytes allocated by each line of torch_lines.py
    python_check.py coverage TRACE KIND         at least 95% of the allocations (KIND `allocation`), or of the launches of a
                                                recording with --stack (`launch`), have a Python line
    python_check.py leaks GPUPROBE PROGRAM      the lines of torch_leaks.py that leak, and no others, in a running process
    python_check.py tensors GPUPROBE PROGRAM    live bytes of tensors at each pause of torch_tensors.py
    python_check.py oom TRACE LEDGER            the out-of-memory error of torch_oom.py
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter

from daemon_check import Daemon, sum_of, verdict

WANTED = 0.95
AUTOGRAD = "torch::autograd::Engine::thread_main"


def events(trace):
    with open(trace, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def is_python(frame):
    return re.search(r"\(Python|\.py:\d+\)$", frame) is not None


def stacks_of(lines):
    """The stack of each call site."""
    return {line["site"]: line["stack"] for line in lines if "stack" in line and "site" in line}


def lines(trace, ledger):
    calls = events(trace)
    stacks = stacks_of(calls)
    wanted = json.load(open(ledger, encoding="utf-8"))["lines"]
    seen = Counter()
    for call in calls:
        if call.get("name") == "cudaMalloc":
            frames = [frame for frame in stacks.get(call.get("site"), []) if is_python(frame)]
            own = [re.sub(r"\(.*/", "(", frame) for frame in frames if "site-packages" not in frame]
            seen[own[0] if own else "no Python line"] += call["args"]["size"]
    del seen[next((line for line in seen if line.startswith("<module>")), "")]
    return verdict(dict(seen) == wanted, f"bytes by line: {dict(seen)}, the program's own: {wanted}")


def coverage(trace, kind):
    calls = events(trace)
    stacks = stacks_of(calls)
    of_kind = {
        "allocation": lambda call: "site" in call and "alloc" in call.get("name", "").lower(),
        "launch": lambda call: call.get("type") == "launch" and not call.get("nested"),
    }[kind]
    counts = Counter()
    runs_autograd = lambda stack: any(frame.startswith(AUTOGRAD) for frame in stack)
    # a stack may be cut before the function that its thread began with
    autograd = {call["tid"] for call in calls if runs_autograd(stacks.get(call.get("site"), []))}
    for call in filter(of_kind, calls):
        stack = stacks.get(call.get("site"), [])
        if any(map(is_python, stack)):
            counts["Python"] += 1
        elif call["tid"] in autograd:
            counts["autograd thread"] += 1
        else:
            counts["neither" if stack else "no stack"] += 1
    eager = sum(counts.values()) - counts["autograd thread"]
    share = counts["Python"] / max(eager, 1)
    return verdict(eager > 0 and share >= WANTED, f"{kind}: {dict(counts)}: {share:.1%} of eager code with a Python line")


def started(program, *arguments):
    command = ["python3", program, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return child, json.loads(child.stdout.readline())


def leaks(probe, program):
    child, said = started(program, "70")
    command = [probe, "memory", "--tensors", "--json", "-d", str(said["pid"]), "--duration", "55"]
    report = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
    child.wait()
    processes = json.loads(report)["tensors"]["processes"]
    sites = [site for process in processes if process["pid"] == said["pid"] for site in process["call_sites"]]
    for site in sites:
        print(f"{site['verdict']:14} {site['call_site']}: {site['reason']}")
    suspects = {site["call_site"] for site in sites if site["verdict"] == "leak_suspect"}
    return verdict(suspects == set(said["leaks"]), f"lines that leak: {sorted(suspects)}")


def tensors(probe, program):
    daemon = Daemon(probe, "--tensors")
    good, pauses = True, 0
    try:
        command = ["python3", program]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            said = json.loads(line)
            samples, lost = daemon.metrics(said["pid"])
            live = sum_of(samples, "gpuprobe_tensor_live_bytes")
            reserved = sum_of(samples, "gpuprobe_tensor_reserved_bytes")
            good &= verdict(live == said["allocated"], f"live {live:.0f}, memory_allocated {said['allocated']}, {lost:.0f} lost")
            print(f"      reserved {reserved:.0f}, memory_reserved {said['reserved']}")
            pauses += 1
            child.stdin.write("\n")
            child.stdin.flush()
        good &= verdict(child.wait(60) == 0 and pauses == 20, f"{pauses} pauses")
    finally:
        daemon.end()
    return good


def oom(trace, ledger):
    said = json.load(open(ledger, encoding="utf-8"))
    found = [event for event in events(trace) if event.get("type") == "out_of_memory"]
    print(said["text"])
    for event in found:
        print(json.dumps(event))
    good = verdict(len(found) == 1, f"{len(found)} events")
    for name in ("requested", "allocated", "reserved"):
        seen = found[0].get(name) if found else None
        good &= verdict(seen == said[name], f"{name}: {seen}, the program's own {said[name]}")
    return good


def main():
    check, *arguments = sys.argv[1:]
    checks = {"lines": lines, "coverage": coverage, "leaks": leaks, "tensors": tensors, "oom": oom}
    sys.exit(0 if checks[check](*arguments) else 1)


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main()
