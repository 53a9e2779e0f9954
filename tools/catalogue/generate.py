#!/usr/bin/env python3
"""Writes the tables of crates/gpuprobe-event/catalogue from the public headers. See README.md in this folder."""

import argparse
import difflib
import sys
from pathlib import Path

import sources
import tables
from collect import collect
from hip import collect_hip
from level_zero import collect_level_zero
from opencl import collect_opencl

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = ROOT / "crates/gpuprobe-event/catalogue"
DIFF_LINES = 40
VENDORS = {
    "cuda": lambda cache: tables.all_tables(collect(cache)),
    "hip": lambda cache: tables.all_tables(collect_hip(cache), "hip/", [hip.short for hip in sources.HIP]),
    "level_zero": lambda cache: tables.all_tables(
        collect_level_zero(cache), "level_zero/", [version.short for version in sources.LEVEL_ZERO]
    ),
    "opencl": lambda cache: tables.all_tables(collect_opencl(cache), "opencl/", sources.OPENCL_VERSIONS),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", nargs="?", type=Path, default=ROOT / ".cache/wheels", help="folder for downloads")
    parser.add_argument("--vendor", choices=VENDORS, help="only the tables of this one")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table differs")
    options = parser.parse_args()

    made: dict[str, str] = {}
    for vendor in [options.vendor] if options.vendor else VENDORS:
        made |= VENDORS[vendor](options.cache)
    if options.check:
        return check(made)
    for name, text in made.items():
        (CATALOGUE / name).write_text(text)
    return 0


def check(made: dict[str, str]) -> int:
    differences: list[str] = []
    for name, text in made.items():
        path = CATALOGUE / name
        present = path.read_text() if path.exists() else ""
        differences += difflib.unified_diff(
            present.splitlines(), text.splitlines(), f"present/{name}", f"made/{name}", n=0, lineterm=""
        )
    for line in differences[:DIFF_LINES]:
        print(line)
    if len(differences) > DIFF_LINES:
        print(f"... {len(differences) - DIFF_LINES} more lines")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
