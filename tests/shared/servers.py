"""The programs of the tests: daemons, and workloads that print ledgers. Only processes started here are ended."""

import json
import os
import re
import shutil
import subprocess
import urllib.request

from checks import PATIENCE, until

LIBRARIES = ("libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1")
# the errors that the ledger program provokes
ERRORS = {"1": "CUDA_ERROR_INVALID_VALUE", "2": "CUDA_ERROR_OUT_OF_MEMORY"}


def stage(standins, folder, programs):
    """Empties a folder and copies stand-ins there, programs under names of their own: copies are other files for the Linux
    kernel and for other daemons. Returns the options of a daemon for them, which reads what NVML reports from FOLDER/nvml."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for own, name in ({name: name for name in LIBRARIES} | programs).items():
        shutil.copy(f"{standins}/{name}", f"{folder}/{own}")
    open(f"{folder}/nvml", "w").close()
    # not the driver folder of this machine, so that its GPUs are not added to those of the NVML stand-in
    return ["-p", f"{folder}/libcuda.so.1", "--nvml", f"{folder}/libnvidia-ml.so.1", "--driver-folder", folder]


def failed_by(ledger):
    """The failures of a ledger program by their error."""
    failed = {}
    for code, n in (pair for codes in ledger["errors"].values() for pair in codes.items()):
        failed[ERRORS[code]] = failed.get(ERRORS[code], 0) + n
    return failed


class Server:
    """A process with a log file."""

    def __init__(self, log, command, **environment):
        self.log = log
        with open(log, "w") as file:
            files = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, **files)

    def output(self):
        with open(self.log) as file:
            return file.read()

    def runs(self):
        assert self.process.poll() is None, f"it exited with {self.process.returncode}: {self.output()}"

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        return self.process.returncode


class Daemon(Server):
    def __init__(self, log, probe, options, **environment):
        fixed = ["daemon", "--metrics-addr", "127.0.0.1:0", "--display-interval", "0", "--refresh", "0.5"]
        super().__init__(log, [probe, *fixed, *options], **environment)
        self.address = until("the daemon prints its address", self.printed_address)

    def printed_address(self):
        self.runs()
        found = re.search(r"http://(\S+)/metrics", self.output())
        return found and found[1]

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=PATIENCE) as answer:
            return answer.read().decode()


class Workload:
    """A program that prints its ledger in JSON, and continues when it receives a line."""

    def __init__(self, program, *words, **environment):
        self.name = os.path.basename(program)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([program, *words], env={**os.environ, **environment}, **pipes)
        self.pid = self.process.pid

    def ledger(self):
        line = self.process.stdout.readline()
        assert line, f"{self.name} exited with {self.process.wait()}"
        return json.loads(line)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
