"""Converts long traces to Parquet and checks that the memory for it does not grow with them.

    long_check.py PROBE FILE FOLDER EVENTS...      FILE is written, FOLDER has the package duckdb

Prints for each number of events the peak memory, the CPU time and the size of the file. With one number it only measures.
"""

import os
import subprocess
import sys

probe, file, packages, *counts = sys.argv[1:]
sys.path.insert(0, packages)

import duckdb

# more than all parts of a row group take, with what is not encoded yet and the program itself
MOST_MEMORY = 128 << 20
MOST_GROWTH = 16 << 20


def convert(events):
    """Returns the peak memory in bytes, and the CPU time in seconds."""
    generator = [sys.executable, os.path.join(os.path.dirname(__file__), "long_trace.py"), str(events)]
    with subprocess.Popen(generator, stdout=subprocess.PIPE) as lines:
        command = [probe, "convert", "-", "--to", "parquet", "-o", file]
        converter = subprocess.Popen(command, stdin=lines.stdout, stderr=subprocess.DEVNULL)
        lines.stdout.close()
        _, status, used = os.wait4(converter.pid, 0)
        converter.returncode = os.waitstatus_to_exitcode(status)
    assert converter.returncode == 0 and lines.returncode == 0, f"{events} events: {converter.returncode}"
    return used.ru_maxrss * 1024, used.ru_utime + used.ru_stime


def check_content(events):
    query = f"SELECT count(*), sum(event_id), sum(coalesce(size, 0) + coalesce(freed, 0)) FROM '{file}'"
    moved = sum(n % 1000 for n in range(1, events + 1) if 10 <= n % 20 < 18)
    found = duckdb.sql(query).fetchall()
    assert found == [(events, events * (events + 1) // 2, moved)], f"{events} events: {found}"
    query = f"SELECT max(row_group_num_rows) FROM parquet_metadata('{file}')"
    largest = duckdb.sql(query).fetchall()[0][0]
    assert largest <= 1 << 16, f"a group of {largest} rows"


peaks = []
for events in map(int, counts):
    peak, seconds = convert(events)
    check_content(events)
    peaks.append(peak)
    print(
        f"{events:,} events: {peak / 2**20:.0f} MiB at most, {seconds:.1f} s of CPU time, "
        f"{seconds / events * 1e6:.2f} us an event, {os.path.getsize(file) / events:.1f} bytes an event"
    )
if len(peaks) > 1:
    assert max(peaks) < MOST_MEMORY, f"it takes {max(peaks)} bytes"
    assert max(peaks) - peaks[0] < MOST_GROWTH, f"memory grows with the trace: {peaks}"
