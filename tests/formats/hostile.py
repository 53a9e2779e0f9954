"""Writes a trace that no recorder would write: valid calls, with damaged lines of every kind between them."""

import json
import sys

META = {"type": "meta", "format": 1, "gpuprobe": "0.1.0", "host": "h", "kernel": "k", "clock": "monotonic"}
META |= {"start_unix": 1e300, "command": ["</script><script>alert(1)</script>"]}
NAMES = ["</script><script>alert(1)</script>", "a;b\nc\x00\x1b[2J", "\u202e\U0001f600", "'\"\\", "x" * 70_000]


def call(number, **more):
    line = {"event_id": number, "ts": number / 1000, "type": "sync", "name": "cudaDeviceSynchronize", "phase": "X"}
    line |= {"pid": 1, "tid": 1, "process": "p", "duration_us": 0.5, "api": "runtime", "ret": 0} | more
    return json.dumps(line).encode()


def lines():
    yield json.dumps(META).encode()
    for number, name in enumerate(NAMES, 1):
        yield call(number, name=name, process=name, tid=number, args={name: name, "deep": {"a": {"b": [1, {"c": 2}]}}})
    yield call(10, ts=-1)
    yield call(11, ts=1e300)
    yield call(12, duration_us=-5)
    yield call(13, duration_us=1e300)
    yield b'{"type":"sync","event_id":14,"ts":' + b"9" * 400 + b"}"
    yield b"[" * 100_000
    yield b'{"a":' * 100_000
    yield b"\xff\xfe\x00 not text"
    yield b""
    yield b'{"type":"sync","name":"' + b"n" * (64 << 20) + b'"}'
    yield call(20, pid=2**40)
    yield call(21, tid=-7)
    yield call(22, size=2**64 - 1, type="transfer", name="cudaMemcpy", stream="0xffffffffffffffff")
    yield call(23, freed=2**63, type="memory", name="cudaFree", ended={"device": [1, 2**63]})
    yield call(24, parent=999_999)
    yield call(25)


with open(sys.argv[1], "wb") as file:
    for line in lines():
        file.write(line + b"\n")
    file.write(call(30)[:-20])
