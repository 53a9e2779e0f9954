"""Runs the recipes of docs/guides/analyse.md on a trace and compares their results with the trace, or runs those of a document
that has what they print and compares that.

    recipes_check.py DOCUMENT TRACE FOLDER                 FOLDER has the packages duckdb, pandas and pyarrow
    recipes_check.py --printed DOCUMENT PROBE FOLDER

DuckDB's command line is not a package: the query of such a recipe is run with the library instead.
"""

import collections
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

is_printed = sys.argv[1] == "--printed"
document, subject, packages = sys.argv[1 + is_printed :]
recipes = re.findall(
    r"```(bash|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?", open(document, encoding="utf-8").read(), re.S
)
sys.path.insert(0, packages)


def shell(text):
    return subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True, capture_output=True, text=True).stdout


def duckdb(text):
    import duckdb as library

    query = re.fullmatch(r'duckdb -c "(.*)"\s*', text, re.S).group(1)
    return library.sql(query)


def python(text):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(text, {})
    return out.getvalue()


def check_printed():
    """Runs the recipes in a folder that has the tests, and returns whether they print what the document says."""
    good = bool(recipes)
    probe, tests = os.path.abspath(subject), os.path.abspath("tests")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.symlink(tests, "tests")
        os.symlink(probe, "gpuprobe")
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        for language, text, expected in recipes:
            if language == "python":
                found = python(text)
            else:
                found = str(duckdb(text)) if text.startswith("duckdb") else shell(text)
            lines = [[line.rstrip() for line in text.rstrip().splitlines()] for text in (found, expected)]
            if lines[0] != lines[1]:
                good = False
                print(f"WRONG: {text} prints\n{found}")
        os.chdir("/")
    return good


if is_printed:
    sys.exit(0 if check_printed() else 1)

trace = subject
lines = [json.loads(line) for line in open(trace, encoding="utf-8")]


def counted(text):
    """Parses the output of `uniq -c`."""
    rows = [line.split(maxsplit=1) for line in text.splitlines()]
    return {name.strip(): int(n) for n, name in rows}


calls = [line for line in lines if "duration_us" in line]
types = collections.Counter(line["type"] for line in lines)
names = collections.Counter(str(line.get("name", "null")) for line in lines)
allocated = sum(line.get("size", 0) for line in lines if line["type"] == "memory")
slowest = sorted((call["duration_us"] for call in calls), reverse=True)[:10]
starts = [line["ts"] for line in lines if line.get("name") == "cuLaunchKernel"]
gap = sum(b - a for a, b in zip(starts, starts[1:])) / (len(starts) - 1)
ran = [c for c in calls if c["type"] == "launch" and c["ret"] == 0 and "parent" not in c and not c.get("captured")]
kernels = collections.Counter(c.get("kernel", c["name"]) for c in ran)
by_name = collections.defaultdict(float)
for call in calls:
    by_name[call["name"]] = max(by_name[call["name"]], call["duration_us"])
slow_names = sorted(by_name.values(), reverse=True)[:10]


def close(found, expected):
    return abs(found - expected) <= 1e-6 * abs(expected)


def figures(text):
    """The last number of each line of a table."""
    return [float(line.split()[-1]) for line in text.splitlines()[1:]]


expected = [
    lambda text: counted(shell(text)) == types,
    lambda text: [call["duration_us"] for call in json.loads(shell(text))] == slowest,
    lambda text: int(shell(text)) == allocated,
    lambda text: counted(shell(text)) == names,
    lambda text: close(float(shell(text)), gap),
    lambda text: counted(shell(text)) == kernels,
    lambda text: duckdb(text).fetchall() == [(allocated,)],
    lambda text: [slow for _, slow in duckdb(text).fetchall()] == slow_names,
    lambda text: dict(duckdb(text).fetchall()) == types,
    lambda text: int(python(text)) == allocated,
    lambda text: all(close(a, b) for a, b in zip(figures(python(text)), slowest, strict=True)),
    lambda text: sorted(map(int, figures(python(text)[: python(text).rindex("Name:")]))) == sorted(types.values()),
]
wrong = len(recipes) != len(expected)
trace = os.path.abspath(trace)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    shutil.copy(trace, "trace.jsonl")
    for number, ((_, text, _), answers) in enumerate(zip(recipes, expected), 1):
        try:
            good = answers(text)
        except subprocess.CalledProcessError as error:
            print(error.stderr)
            good = False
        if not good:
            wrong = True
            print(f"WRONG recipe {number}: {text}")
    os.chdir("/")
sys.exit(1 if wrong else 0)
