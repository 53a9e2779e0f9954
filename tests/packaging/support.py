"""Checks the archive of `gpuprobe doctor --support`, next to a daemon and a process whose name must not be in it.

    support.py GPUPROBE FOLDER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "shared"))
from checks import PATIENCE, Checks

SECRET = "secret_job"
USER = "secret_user"
FILES = ["README.txt", "doctor.txt", "doctor.json", "versions.txt", "settings.toml", "daemon.txt", "kernel-log.txt", "processes.txt"]
# names itself, has a library of CUDA mapped, and waits
PROCESS = f"""
import ctypes, sys
ctypes.CDLL(sys.argv[1])
open("/proc/self/comm", "w").write("{SECRET}")
print("ready", flush=True)
sys.stdin.read()
"""


def main(gpuprobe, folder):
    checks = Checks()
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    library = folder / "home" / USER / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    subprocess.run(["cc", "-shared", "-x", "c", "-o", library, "/dev/null"], check=True)
    process = started([sys.executable, "-c", PROCESS, library])
    process.stdout.readline()
    daemon = started([gpuprobe, "daemon", "--metrics-addr", "127.0.0.1:0", "--display-interval", "0", "--nvml", "off", "-d", str(process.pid)])
    try:
        url = re.search(r"metrics on (\S+)/metrics", next(line for line in daemon.stderr if "metrics on" in line))[1]
        hashed = read(gpuprobe, folder / "hashed.tar.gz", "--connect", url)
        full = read(gpuprobe, folder / "full.tar.gz", "--connect", url, "--full")
        alone = read(gpuprobe, folder / "alone.tar.gz", "--connect", "127.0.0.1:1")
    finally:
        for program in (daemon, process):
            program.terminate()
            program.wait(PATIENCE)
    for name, texts in (("hashed", hashed), ("full", full)):
        checks.that(f"{name}: all files", list(texts) == FILES, list(texts))
    everything = "\n".join(hashed.values())
    checks.that("no name of a process", SECRET not in everything, lines_with(SECRET, everything))
    row = [line.split("\t") for line in hashed["processes.txt"].splitlines() if line.startswith(f"{process.pid}\t")]
    checks.that("its hash", len(row) == 1 and re.fullmatch("name-[0-9a-f]{8}", row[0][1]), row)
    checks.that("no name of a user", f"/home/{USER}" not in everything, lines_with(USER, everything))
    checks.that("--full has both", f"{process.pid}\t{SECRET}\t" in full["processes.txt"], full["processes.txt"])
    losses = [line for line in hashed["daemon.txt"].splitlines() if line.startswith("gpuprobe_events_lost_total{")]
    # programs of others on this host may lose something
    checks.that("losses of the daemon", len(losses) > 5 and all(re.search(r"} \d+$", line) for line in losses), losses[:3])
    checks.that("nothing about processes", "pid=" not in hashed["daemon.txt"], lines_with("pid=", hashed["daemon.txt"]))
    checks.that("no daemon", alone["daemon.txt"].startswith("no figures of a daemon: "), alone["daemon.txt"])
    version = subprocess.run([gpuprobe, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    checks.that("version", hashed["versions.txt"].startswith(version + " ("), hashed["versions.txt"].splitlines()[0])
    checks.that("its mode", (folder / "hashed.tar.gz").stat().st_mode & 0o777 == 0o600, oct((folder / "hashed.tar.gz").stat().st_mode))
    again = subprocess.run([gpuprobe, "doctor", "--support", "-o", folder / "full.tar.gz"], capture_output=True, text=True)
    refused = again.returncode == 1 and again.stderr.count("\n") == 1 and "name a new file with -o" in again.stderr
    checks.that("a file is not overwritten", refused, again.stderr)
    checks.end()


def started(command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read(gpuprobe, path, *options):
    """The files in an archive, by their names without the folder."""
    subprocess.run([gpuprobe, "doctor", "--support", "-o", path, *options], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    with tarfile.open(path) as tar:
        names = [os.path.split(member.name) for member in tar.getmembers()]
        assert {folder for folder, _ in names} == {"gpuprobe-support"}, names
        return {name: tar.extractfile(f"{folder}/{name}").read().decode() for folder, name in names}


def lines_with(word, text):
    return [line for line in text.splitlines() if word in line][:3]


main(*sys.argv[1:])
