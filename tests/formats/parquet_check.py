"""Compares a Parquet file with the trace it was made from, row by row and field by field, as DuckDB and pandas read it.

    parquet_check.py TRACE FILE FOLDER      FOLDER has the packages duckdb, pandas and pyarrow
"""

import json
import math
import sys

trace, file, packages = sys.argv[1:]
sys.path.insert(0, packages)

import duckdb
import pandas

from trace import Trace, cut

LARGEST = 2**63 - 1
# of a format before 3
RENAMED = {"ended": "freed_with_context"}


def sound_lines(path):
    """The first line, the events that can be read, and the last line if there is one."""
    with open(path, "rb") as lines:
        meta = json.loads(next(lines))
        events, end = [], None
        for raw in lines:
            if (line := Trace.parse(raw)) is None:
                continue
            line = json.loads(raw)
            if line["type"] == "end":
                end = line
            else:
                events.append(line)
    return meta, events, end


def longest(field, line):
    """The most bytes that gpuprobe keeps of a text."""
    if field in ("kernel", "message", "text") or field == "name" and line["type"] in ("gpu", "range"):
        return 4096
    return 1024 if field in ("name", "stack", "call_site") else 256


def expected(line, meta):
    """The values that the columns must have; the others are NULL."""
    row = {RENAMED.get(field, field): value for field, value in line.items()}
    if isinstance(row.get("live"), dict):
        row["live_by_kind"] = row.pop("live")
    for field, value in row.items():
        if isinstance(value, str):
            row[field] = cut(value, longest(field, line))
        elif field == "stack":
            row[field] = [cut(frame) for frame in value]
        elif field == "stream":
            row[field] = str(value)
        elif type(value) is int and value > LARGEST:
            row[field] = None
    if meta["format"] < 3 and not row.keys() & {"size", "freed"} and row["type"] == "memory":
        # of the call inside, which has the same
        row.pop("kind", None)
    start_us = meta["start_unix"] * 1e6
    if 0 < start_us < 9e18:
        row["time"] = math.floor(start_us + 0.5) + round(row["ts"] * 1e9) // 1000
    return row


def same(field, found, wanted):
    if field in ("grid", "block"):
        return [found["x"], found["y"], found["z"]] == wanted
    if field == "args":
        return same_arguments(json.loads(found), wanted)
    if isinstance(wanted, (dict, list)) and field != "stack":
        return json.loads(found) == wanted
    return type(found) is type(wanted) and found == wanted or isinstance(found, float) and found == wanted


def same_arguments(found, wanted):
    """Arguments keep their order. Lists other than `dim3` do not occur, and are not read."""
    if isinstance(wanted, dict):
        names = [cut(name, 256) for name in wanted]
        return list(found) == names and all(map(same_arguments, found.values(), wanted.values()))
    if isinstance(wanted, list):
        return found == (wanted if len(wanted) == 3 else None)
    return found == (cut(wanted, 4096) if isinstance(wanted, str) else wanted)


def differences(rows, events, meta):
    if len(rows) != len(events):
        yield f"{len(rows)} rows, but {len(events)} events"
    for number, (row, line) in enumerate(zip(rows, events), 1):
        wanted = expected(line, meta)
        for field in wanted.keys() - row.keys():
            yield f"row {number}: there is no column {field}"
        for field, found in row.items():
            value = wanted.get(field)
            if value is None and found is None:
                continue
            # lines of early formats have fewer fields, and a class of functions has one type
            if value is None and meta["format"] < 3 and field in ("async", "nested"):
                continue
            if field == "type" and found == "userspace" and not line["name"].startswith("cu"):
                continue
            if value is None or found is None or not same(field, found, value):
                yield f"row {number}: {field} is {found!r}, not {value!r}"


def metadata_differences(meta, end):
    found = dict(duckdb.sql(f"SELECT decode(key), decode(value) FROM parquet_kv_metadata('{file}')").fetchall())
    for of, line in ("meta", meta), ("end", end or {}):
        for field, value in line.items():
            text = found.pop(f"{of}.{field}", None)
            is_same = text == value or text is not None and not isinstance(value, str) and json.loads(text) == value
            if field != "type" and not is_same:
                yield f"{of}.{field} is {text!r}, not {value!r}"
    # what has a default and was not in the line
    if left := [key for key in found if key != "end.lost" and meta["format"] >= 3]:
        yield f"more is known of the file than the trace says: {left}"


def pandas_differences(rows):
    """pandas reads the same numbers of values and the same sums."""
    table = pandas.read_parquet(file, engine="pyarrow")
    if len(table) != len(rows):
        yield f"pandas reads {len(table)} rows"
    for column in table.columns:
        values = [row[column] for row in rows if row[column] is not None]
        if table[column].count() != len(values):
            yield f"pandas reads {table[column].count()} values of {column}, DuckDB {len(values)}"
        elif table[column].dtype.kind in "iuf" and abs(table[column].sum() - sum(values)) > 1e-9 * abs(sum(values)):
            yield f"pandas reads another sum of {column}"


# as a number, because times with a zone need another package
result = duckdb.sql(f"SELECT * REPLACE (epoch_us(time) AS time) FROM '{file}'")
rows = [dict(zip(result.columns, row)) for row in result.fetchall()]
meta, events, end = sound_lines(trace)
wrong = [*differences(rows, events, meta), *metadata_differences(meta, end), *pandas_differences(rows)]
for difference in wrong[:20]:
    print(difference[:1000])
sys.exit(1 if wrong else 0)
