#!/usr/bin/env python3
"""Prints what the agent's library costs while nothing probes it: agent.py AGENT STANDINS

A program calls one function at full speed, in turn without and with the library inside. The fastest of many turns
counts: everything else on the machine only adds time. Fails if the ratio is more than a tenth above 1.
"""

import json
import os
import subprocess
import sys

CALLS = 5_000_000
TURNS = 15
MOST = 1.1


def nanoseconds_per_call(program, agent):
    environment = dict(os.environ)
    environment.pop("CUDA_INJECTION64_PATH", None)
    if agent:
        environment["CUDA_INJECTION64_PATH"] = agent
    run = subprocess.run([program, str(CALLS)], input="\n", env=environment, capture_output=True, text=True, check=True)
    if run.stderr:
        sys.exit(f"agent.py: {run.stderr.strip()}")
    return json.loads(run.stdout.splitlines()[-1])["seconds"] / CALLS * 1e9


def main():
    agent, standins = sys.argv[1:]
    if not os.path.exists(agent):
        sys.exit(f"agent.py: {agent} does not exist; `make build` builds it")
    program = os.path.join(standins, "paced")
    without, inside = [], []
    for _ in range(TURNS):
        without.append(nanoseconds_per_call(program, None))
        inside.append(nanoseconds_per_call(program, agent))
    ratio = min(inside) / min(without)
    print(f"\nthe agent inside of a program, not probed\n  a call without it {min(without):8.2f} ns")
    print(f"  a call with it    {min(inside):8.2f} ns   {ratio:.2f} of that (target 1.00)")
    return 1 if ratio > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
