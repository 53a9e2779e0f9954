"""Runs the commands of the book and compares what they print with the pages.

    check.py GPUPROBE                     those that need neither root nor a GPU, on recordings of the repository
    check.py GPUPROBE live STANDINS       as root: those that attach probes, on programs on the stand-in libraries

A block may leave out lines (`...`). The other lines must be printed exactly. In live runs numbers with units, addresses,
clock times and large numbers may differ, and so may the order of lines. commands.py names commands that are not run, with the reason. Of all
invocations, also those that are not run, the options must exist.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "shared"))
from checks import PATIENCE, Checks

import blocks
from commands import DAEMON, LIVE, NOT_RUN

# seconds after which the probes of a command are attached
ATTACHED = 2.5
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def pages():
    paths = ["README.md", *glob.glob("docs/**/*.md", recursive=True, root_dir=ROOT)]
    return {path: open(f"{ROOT}/{path}", encoding="utf-8").read() for path in sorted(paths) if not path.startswith("docs/project/")}


def listed(block, rows, begins):
    return next((row for row in rows if begins(row)[0] == block.page and block.command.startswith(begins(row)[1])), None)


def shell(command, folder, **variables):
    """What a command prints, on both outputs, as on a terminal without colours."""
    path = f"{folder}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "LC_ALL": "C.UTF-8", **variables}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
    return done.stdout.decode().splitlines()


def write(path, text, mode=0o644):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def prepare(folder, probe, is_live):
    """The folder in which the commands run has the programs and files that the pages name."""
    os.makedirs(f"{folder}/bin")
    os.symlink(probe, f"{folder}/bin/gpuprobe")
    write(f"{folder}/bin/sudo", '#!/bin/sh\nexec "$@"\n', 0o755)
    os.symlink(f"{ROOT}/tests", f"{folder}/tests")
    demo = subprocess.run(["zstd", "-dcq", f"{ROOT}/tests/traces/demo.jsonl.zst"], check=True, capture_output=True, text=True).stdout
    write(f"{folder}/before.jsonl", demo)
    if not is_live:
        # what `demo -o` of the page writes
        write(f"{folder}/demo.jsonl", demo)
    write(f"{folder}/after.jsonl", without_launches(demo, "reduce_sum", 8))
    shutil.copy(f"{ROOT}/tests/traces/demo.jsonl.zst", f"{folder}/train.jsonl.zst")
    for node in range(1, 5):
        shutil.copy(f"{ROOT}/tests/traces/ranks/node{node}.jsonl", folder)


def without_launches(trace, kernel, count):
    """A trace without the first launches of a CUDA kernel, and without the calls inside of them."""
    removed, kept = set(), []
    for line in trace.splitlines():
        event = json.loads(line)
        if event.get("kernel") == kernel and "parent" not in event and len(removed) < count:
            removed.add(event["event_id"])
    for line in trace.splitlines():
        event = json.loads(line)
        if event.get("event_id") not in removed and event.get("parent") not in removed:
            kept.append(line)
    return "\n".join(kept) + "\n"


def compare(check, block, printed, wrong):
    if wrong is None:
        check.passed += 1
        print(f"ok: {block}", flush=True)
        return
    check.fail(f"{block}: not as printed:")
    print("\n".join(f"    page    | {line}" for line in wrong[:12]))
    print("\n".join(f"    printed | {line}" for line in printed[:60]), flush=True)


def run_replays(check, folder, every):
    served = [block for block in every if DAEMON in block.command]
    for block in every:
        if block not in served:
            printed = shell(block.command, folder)
            compare(check, block, printed, blocks.difference(block.expected, printed, may_vary=False))
    server = subprocess.Popen([sys.executable, f"{ROOT}/tools/pictures/serve.py"], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        for block in served:
            # the time, and figures that go on while it is read
            printed = shell(block.command.replace(DAEMON, address), folder, COLUMNS="110")
            compare(check, block, printed, blocks.difference(block.expected, printed, may_vary=True))
    finally:
        server.terminate()
        server.wait(PATIENCE)


def build_programs(folder, standins):
    """The stand-in libraries and programs, and the example that leaks."""
    for name in ("libcuda.so.1", "libcudart.so.12", "demo"):
        shutil.copy(f"{standins}/{name}", folder)
    compiler = [os.environ.get("CXX", "c++"), "-std=c++14", "-O2", "-g", "-I", f"{ROOT}/crates/gpuprobe-standin/c/include"]
    source = ["-x", "c++", f"{ROOT}/examples/leaky.cu", "-x", "none", f"{folder}/libcudart.so.12", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*compiler, *source, "-o", f"{folder}/leaky"], check=True)


def start(program, folder):
    return subprocess.Popen(program.split(), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def run_live(check, folder, every):
    for block, live in every:
        command = block.command
        for old, new in live.replaced:
            command = command.replace(old, new)
        before = live.before and start(live.before, folder)
        try:
            # its libraries are loaded, and it has begun to allocate
            time.sleep(0.5 if before else 0)
            later = threading.Timer(ATTACHED, start, [live.after, folder]) if live.after else None
            if later:
                later.start()
            printed = shell(command, folder, PID=str(before.pid) if before else "")
        finally:
            if before:
                before.kill()
                before.wait(PATIENCE)
        compare(check, block, printed, blocks.not_printed(block.expected, printed, live.varying))


def check_options(check, probe, texts):
    """The options of every invocation are in the help of its subcommand."""
    helps, count = {}, 0
    for page, text in texts.items():
        for place, words in blocks.invocations(page, text):
            command = "daemon" if not words or words[0].startswith("-") else words[0]
            if command not in helps:
                done = subprocess.run([probe, command, "--help"], capture_output=True, text=True)
                helps[command] = done.stdout if done.returncode == 0 else None
            count += 1
            if helps[command] is None:
                check.fail(f"{place}: there is no command {command}")
                continue
            for word in words[1:] if words and words[0] == command else words:
                option = re.match(r"--?[a-z][a-z-]*", word)
                if option and not re.search(rf"(?<![\w-]){re.escape(option[0])}(?![\w-])", helps[command]):
                    check.fail(f"{place}: gpuprobe {command} has no option {option[0]}")
    check.that("options of the book exist", count > 50, f"{count} invocations")


def main():
    probe, standins = os.path.abspath(sys.argv[1]), sys.argv[3] if sys.argv[2:3] == ["live"] else None
    check, texts = Checks(), pages()
    every = [block for page, text in texts.items() for block in blocks.commands(page, text)]
    not_run = {block: listed(block, NOT_RUN, lambda row: row[:2]) for block in every}
    live = {block: listed(block, LIVE, lambda row: (row.page, row.begins)) for block in every if not not_run[block]}
    replays = [block for block in every if not not_run[block] and not live[block]]
    used = [*not_run.values(), *live.values()]
    for row in [*NOT_RUN, *LIVE]:
        if row not in used:
            words = row[:2] if isinstance(row, tuple) else (row.page, row.begins)
            check.fail(f"commands.py: no page has {' '.join(words)}")
    with tempfile.TemporaryDirectory(prefix="gpuprobe-book-") as folder:
        prepare(folder, probe, bool(standins))
        if standins:
            build_programs(folder, standins)
            run_live(check, folder, [(block, row) for block, row in live.items() if row])
        else:
            run_replays(check, folder, replays)
            check_options(check, probe, texts)
    reasons = [row[2] for row in not_run.values() if row]
    print(f"commands: {len(replays)} on recordings, {sum(map(bool, live.values()))} with probes, {len(reasons)} not run:")
    for reason in sorted(set(reasons)):
        print(f"  {reasons.count(reason)}: {reason}")
    check.end()


main()
