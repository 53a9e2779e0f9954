"""Runs a daemon next to programs on the stand-in libraries, and prints the address of its page. Ends with SIGTERM.

    daemon.py GPUPROBE STANDINS FOLDER    the folder is emptied first
"""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "shared"))
from servers import Daemon, Workload, stage

# names of programs, and the stand-ins that play them
PROGRAMS = {"train": "leaks", "serve": "demo"}


def main(probe, standins, folder):
    options = stage(standins, folder, PROGRAMS)
    daemon = Daemon(f"{folder}/daemon.log", probe, options, STANDIN_NVML=f"{folder}/nvml")
    started = [Workload(f"{folder}/train", "--wait", "--rounds", "5000", "--pace", "20")]
    print(f"http://{daemon.address}/", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while True:
            # a demo takes two seconds
            serve = Workload(f"{folder}/serve")
            started = [started[0], serve]
            serve.process.wait()
    finally:
        for one in (daemon, *started):
            one.end()


main(*sys.argv[1:])
