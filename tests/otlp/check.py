"""Daemons that push to receivers, next to programs with ledgers.

    check.py GPUPROBE STANDINS FOLDER    the binary, the folder of the stand-ins, and the output folder, which is emptied first

Its last line is "N passed, M failed".
"""

import math
import os
import re
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "shared"))
from checks import Checks, eventually, until
from expected import OLDER, Expected, samples
from receiver import LOGS, METRICS, Receiver
from servers import Daemon, Workload, failed_by, stage

SECOND = 10**9
# a scrape may take this long, whatever the receiver does
QUICK = 1.0
ATTRIBUTE = "deployment.environment.name"
# attributes of a record of failed calls besides their number
RECORDED = {"process.executable.name", "process.pid", "gpuprobe.function", "error.type", "container.id"}
RECORDED |= {"k8s.container.name", "k8s.pod.name", "k8s.namespace.name"}


class Scraper:
    """Reads /metrics all the time: the text of each reading by its time, and the longest time that an answer took."""

    def __init__(self, daemon):
        self.daemon, self.texts, self.slowest, self.newest = daemon, {}, 0, time.monotonic()
        self.is_over = threading.Event()
        self.problem = None
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        try:
            while not self.is_over.wait(0.1):
                start = time.monotonic()
                text = self.daemon.scrape()
                self.slowest = max(self.slowest, time.monotonic() - start)
                found = re.search(r"^gpuprobe_snapshot_timestamp_seconds (\d+)\.(\d{9})$", text, re.M)
                if found and self.texts.setdefault(int(found[1] + found[2]), text) is text:
                    self.newest = time.monotonic()
        except OSError as error:
            self.problem = error

    def is_quick(self):
        assert not self.problem, self.problem
        age = time.monotonic() - self.newest
        assert self.slowest < QUICK and age < 5, f"an answer took {self.slowest} s, and the last reading is {age} s old"
        self.slowest = 0

    def end(self):
        self.is_over.set()


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def points_of(request):
    """Each point of a request by its name and attributes: the metric, the data of it, and the point."""
    for metric in request.metrics():
        data = getattr(metric, metric.WhichOneof("data"))
        for point in data.data_points:
            yield (metric.name, frozenset(attributes(point.attributes).items())), metric, data, point


def number(point):
    return getattr(point, point.WhichOneof("value"))


def shape(metric, data):
    kind = metric.WhichOneof("data")
    if kind == "sum":
        return "Counter" if data.is_monotonic else "UpDownCounter"
    return kind.capitalize()


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=0)


def pushes(receiver):
    """The requests of each reading, in the order of their times."""
    by_time = {}
    for request in receiver.seen(METRICS, 200):
        times = {point.time_unix_nano for _, _, _, point in points_of(request)}
        assert len(times) == 1, f"a request has points of {len(times)} times"
        by_time.setdefault(times.pop(), []).append(request)
    return sorted(by_time.items())


def compare_push(text, requests):
    """Every point with the text of the same reading."""
    wanted, found = Expected(text).points, {}
    for request in requests:
        for key, metric, data, point in points_of(request):
            assert key not in found, f"two points of {key}"
            found[key] = point
            assert key in wanted, f"{key} is not in /metrics"
            expected = wanted[key]
            assert (shape(metric, data), metric.unit) == (expected.kind, expected.unit), f"{metric.name}: {metric.unit} {expected}"
            assert metric.description.endswith("."), metric.name
            compare_point(key, data, point, expected)
    missing = wanted.keys() - found.keys()
    assert not missing, f"{len(missing)} of {len(wanted)} series are not pushed, such as {sorted(missing, key=str)[:3]}"


def compare_point(key, data, point, expected):
    if expected.kind == "Histogram":
        same = (list(point.bucket_counts), list(point.explicit_bounds), point.count) == (expected.buckets, expected.bounds, expected.count)
        assert same and close(point.sum, expected.sum), f"{key}: {point} instead of {expected}"
    else:
        assert close(number(point), expected.value), f"{key}: {number(point)} instead of {expected.value}"
    if expected.kind == "Gauge":
        assert point.start_time_unix_nano == 0, f"{key} is a gauge with a start"
    else:
        assert data.aggregation_temporality == 2, f"{key} is not cumulative"


def compare_with_metrics(receiver, scraper, least):
    compared = 0
    for at, requests in pushes(receiver):
        if at in scraper.texts:
            compare_push(scraper.texts[at], requests)
            compared += 1
    assert compared >= least, f"{compared} pushes could be compared"


def starts(receiver):
    """A series begins with the daemon, or at the push before the first that has it, and keeps its start while it is there."""
    before, known, began = None, {}, None
    for at, requests in pushes(receiver):
        now = {}
        for request in requests:
            for key, metric, data, point in points_of(request):
                if shape(metric, data) not in ("Counter", "Histogram"):
                    continue
                start = now[key] = point.start_time_unix_nano
                if key in known:
                    assert start == known[key], f"{key} begins again"
                elif key[0] in OLDER or "gpuprobe.ended" in dict(key[1]):
                    assert start == at, f"{key} has a start"
                elif before is not None:
                    assert start == before, f"{key} begins at {start}, the push before was at {before}"
                else:
                    began = began or start
                    assert start == began < at, f"{key} begins at {start}, others at {began}, and this push is at {at}"
        before, known = at, now
    assert began and abs(began / SECOND - time.time()) < 300, f"the daemon began at {began}"


def resource(parts, daemon):
    """The resource and the scope of a request."""
    [of] = parts
    found = attributes(of.resource.attributes)
    port = daemon.address.rsplit(":", 1)[1]
    wanted = {"service.name": "gpuprobe", "host.name": socket.gethostname(), "os.type": "linux", ATTRIBUTE: "test"}
    wanted["service.instance.id"] = f"{socket.gethostname()}:{port}"
    wanted["service.version"] = found.get("service.version")
    if os.path.exists("/etc/machine-id") and os.path.getsize("/etc/machine-id") > 1:
        wanted["host.id"] = open("/etc/machine-id").read().strip()
    assert found == wanted and found["service.version"], found
    [scope] = of.scope_metrics if hasattr(of, "scope_metrics") else of.scope_logs
    assert (scope.scope.name, scope.scope.version) == ("gpuprobe", found["service.version"]), scope.scope


def records_of(receiver, event):
    return [record for request in receiver.seen(LOGS, 200) for record in request.records() if record.event_name == event]


def failures(receiver, ledger):
    """The records of a process add up to its failures."""
    found = {}
    for record in records_of(receiver, "gpuprobe.call_errors"):
        of = attributes(record.attributes)
        if of.get("process.pid") == ledger["pid"]:
            found[of["error.type"]] = found.get(of["error.type"], 0) + of["gpuprobe.count"]
            assert record.severity_number == 13 and of["gpuprobe.function"] in record.body.string_value, record
    assert found == failed_by(ledger), f"{found} instead of {failed_by(ledger)}"


def xid(receiver):
    [record] = records_of(receiver, "gpuprobe.xid")
    of = attributes(record.attributes)
    wanted = {"gpuprobe.xid": 79, "gpuprobe.gpu": "0", "gpuprobe.count": 1, "hw.type": "gpu"}
    assert {key: of.get(key) for key in wanted} == wanted and of.keys() - wanted.keys() <= {"hw.id"}, of
    assert (record.severity_number, record.severity_text) == (17, "ERROR"), record
    assert record.body.string_value.startswith("XID 79 on GPU 0, 1 time"), record


def errors_in(text):
    """The failed calls of a reading by the attributes that a record has."""
    counts, expected = {}, Expected(text)
    for name, _, labels, value, _ in samples(text):
        if name == "gpuprobe_errors_total":
            of = expected.of_labels(labels)
            key = frozenset((name, of[name]) for name in of.keys() & RECORDED)
            counts[key] = counts.get(key, 0) + value
    return counts


def compare_records(receiver, scraper, daemon):
    """Every field of the records of failed calls with the texts of the reading and of the one before."""
    times, compared = [at for at, _ in pushes(receiver)], 0
    for request in receiver.seen(LOGS, 200):
        resource(request.message.resource_logs, daemon)
        for record in request.records():
            at, observed = record.time_unix_nano, record.observed_time_unix_nano
            assert 0 <= observed - at < 10 * SECOND, f"read at {at}, made at {observed}"
            before = max((time for time in times if time < at), default=None)
            if record.event_name != "gpuprobe.call_errors" or not {at, before} <= scraper.texts.keys():
                continue
            of = attributes(record.attributes)
            key = frozenset(of.items() - {("gpuprobe.count", of["gpuprobe.count"])})
            now, past = (errors_in(scraper.texts[time]).get(key, 0) for time in (at, before))
            assert of["gpuprobe.count"] == now - past > 0, f"{of}, but {now - past} are new"
            assert (record.severity_number, record.severity_text) == (13, "WARN"), record
            who = re.escape(f"{of['process.executable.name']} {of['process.pid']}")
            text = record.body.string_value
            assert re.fullmatch(rf"{of['gpuprobe.function']} failed [\d,]+ times? with {of['error.type']} in {who}", text), text
            compared += 1
    assert compared > 0, "no record could be compared"


def deltas(receiver, ledger, functions):
    """Differences add up to the ledger, and their times follow each other without gaps."""
    calls, ends = {}, {}
    assert not receiver.problems, receiver.problems
    for at, requests in pushes(receiver):
        for request in requests:
            for key, metric, data, point in points_of(request):
                if shape(metric, data) == "Counter":
                    assert data.aggregation_temporality == 1, f"{key} is not a difference"
                    gap = point.start_time_unix_nano - ends.get(key, point.start_time_unix_nano)
                    assert gap == 0, f"{key} has a gap of {gap / SECOND} s before {at / SECOND}"
                    ends[key] = at
                of = dict(key[1])
                if metric.name == "gpuprobe.calls" and of["process.pid"] == ledger["pid"]:
                    name = of["gpuprobe.function"]
                    calls[name] = calls.get(name, 0) + number(point)
    wanted = {name: n for name, n in ledger["driver_calls"].items() if n and name in functions}
    assert {name: calls.get(name) for name in wanted} == wanted, f"{calls} instead of {wanted}"


def counted(daemon):
    """The counts of the push, by metric and labels."""
    return {(name, *labels.values()): value for name, _, labels, value, _ in samples(daemon.scrape()) if name.startswith("gpuprobe_otlp_")}


def same_delivered(daemon, receiver):
    """Nothing waits, and the receiver has what was delivered."""
    counts = counted(daemon)
    assert not receiver.problems, receiver.problems
    for signal, path in (("metrics", METRICS), ("logs", LOGS)):
        delivered = counts["gpuprobe_otlp_delivered_total", signal]
        assert delivered == receiver.items(path, 200), f"{delivered} {signal} delivered, {receiver.items(path, 200)} received"
        waiting = counts["gpuprobe_otlp_waiting", signal]
        assert waiting == 0, f"{waiting} {signal} wait"
    return counts


def same_counts(daemon, receiver):
    """Everything that the daemon counts is what the receiver saw."""
    counts = same_delivered(daemon, receiver)
    for signal, path in (("metrics", METRICS), ("logs", LOGS)):
        refused = counts["gpuprobe_otlp_dropped_total", signal, "refused"]
        assert refused == receiver.items(path, 500), f"{refused} {signal} refused"
        rejected = counts["gpuprobe_otlp_dropped_total", signal, "rejected"]
        assert rejected == sum(request.rejected for request in receiver.seen(path)), f"{rejected} {signal} rejected"
        busy = len(receiver.seen(path, 429))
        for result, n in (("accepted", len(receiver.seen(path, 200))), ("refused", len(receiver.seen(path, 500))), ("busy", busy)):
            found = counts["gpuprobe_otlp_requests_total", signal, result]
            assert found == n, f"{found} {signal} {result}, the receiver says {n}"
        assert counts["gpuprobe_otlp_dropped_total", signal, "queue"] == 0, counts


def no_reading_is_lost(receiver, interval):
    """Pushes that waited arrive in order, and none is missing."""
    times = [at for at, _ in pushes(receiver)]
    gaps = [(b - a) / SECOND for a, b in zip(times, times[1:])]
    assert max(gaps) < 5 * interval, f"{max(gaps)} s without a push"
    arrived = [request.at for _, requests in pushes(receiver) for request in requests]
    assert arrived == sorted(arrived), "pushes arrived out of order"


def trouble(check, daemon, receiver, scraper):
    """The receiver is down, slow, refuses, rejects and asks for patience, one after the other."""
    receiver.stop()
    time.sleep(5)
    check("/metrics while the receiver is down", scraper.is_quick)
    waiting = counted(daemon)["gpuprobe_otlp_waiting", "metrics"]
    check.that("pushes wait", waiting > 0, waiting)
    receiver.start()
    check("after it was down", eventually, same_counts, daemon, receiver)
    receiver.delay = 3
    time.sleep(10)
    check("/metrics while it is slow", scraper.is_quick)
    receiver.delay = 0
    check("after it was slow", eventually, same_counts, daemon, receiver)
    receiver.answer = lambda request: (0, {}, 0)
    time.sleep(11)
    receiver.answer = lambda request: (200, {}, 0)
    check("/metrics while it does not answer", scraper.is_quick)
    check("after it did not answer", eventually, same_counts, daemon, receiver)
    receiver.answer = lambda request: (429, {"retry-after": "2"}, 0)
    until("it is asked", lambda: receiver.seen(METRICS, 429))
    receiver.answer = lambda request: (200, {}, 0)
    asked = receiver.seen(METRICS, 429)[-1].at
    check("after it asked for patience", eventually, same_counts, daemon, receiver)
    after = lambda: [request.at for request in receiver.seen(METRICS, 200) if request.at > asked]
    until("the next push", after)
    check.that("it has its time", min(after()) - asked >= 2, f"{min(after()) - asked} s")
    check("no reading is lost", no_reading_is_lost, receiver, 1)
    receiver.answer = lambda request: (500, {}, 0)
    until("it refuses", lambda: len(receiver.seen(METRICS, 500)) > 1)
    receiver.answer = lambda request: (200, {}, 3 if request.path == METRICS else 0)
    until("it rejects", lambda: any(request.rejected for request in receiver.seen(METRICS, 200)))
    receiver.answer = lambda request: (200, {}, 0)
    check("after it refused and rejected", eventually, same_counts, daemon, receiver)
    check("/metrics in all that time", scraper.is_quick)
    said = [line for line in daemon.output().splitlines() if "the OTLP receiver" in line and "metrics" in line]
    check("one note per change", notes, said)


def notes(said):
    """Between two notes of the same kind there is one of another."""
    kinds = [re.search(r" (takes|rejects|does not take|refuses) ", line)[1] for line in said]
    assert {"takes", "rejects", "does not take", "refuses"} <= set(kinds), kinds
    assert all(a != b for a, b in zip(kinds, kinds[1:])), said


def certificate(folder, name, host="localhost"):
    key, cert = f"{folder}/{name}.key", f"{folder}/{name}.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={host}"]
    words += ["-addext", f"subjectAltName=DNS:{host}", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def tls(check, start, folder):
    """Receivers with a certificate that is trusted, with one that is not, and with one for another host."""
    trusted, other, foreign = certificate(folder, "trusted"), certificate(folder, "other"), certificate(folder, "foreign", "elsewhere")
    receiver, misnamed = Receiver(tls=trusted), Receiver(tls=foreign)
    with open(os.open(f"{folder}/headers", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("# a token\nAuthorization: Bearer secret\n")
    options = ["--otlp", f"https://localhost:{receiver.port}", "--otlp-interval", "1", "--otlp-headers-file", f"{folder}/headers"]
    trusting = start("trusting", [*options, "--otlp-ca-file", trusted[0]])
    doubting = start("doubting", [*options, "--otlp-ca-file", other[0]])
    strict = start("strict", ["--otlp", f"https://localhost:{misnamed.port}", "--otlp-interval", "1", "--otlp-ca-file", foreign[0]])
    scraper = Scraper(doubting)
    try:
        until("a push over TLS", lambda: receiver.seen(METRICS, 200))
        headers = receiver.seen(METRICS)[0].headers
        sent = headers.get("authorization")
        check.that("the header of the file", sent == "Bearer secret", sent)
        check("counts over TLS", eventually, same_counts, trusting, receiver)
        for daemon, what in ((doubting, "a certificate that is not trusted"), (strict, "a certificate for another host")):
            until(what, lambda: counted(daemon)["gpuprobe_otlp_requests_total", "metrics", "unreachable"] > 1)
            check(f"no push with {what}", untrusted, daemon)
        check("/metrics without trust", scraper.is_quick)
        scraper.end()
        check("what is lost at the end is said", lost_at_end, doubting)
    finally:
        scraper.end()
        receiver.end()
        misnamed.end()


def untrusted(daemon):
    counts = counted(daemon)
    assert counts["gpuprobe_otlp_delivered_total", "metrics"] == 0 < counts["gpuprobe_otlp_waiting", "metrics"], counts
    assert "certificate" in daemon.output(), daemon.output()


def lost_at_end(daemon):
    waiting = counted(daemon)["gpuprobe_otlp_waiting", "metrics"]
    begin = time.monotonic()
    status, took = daemon.end(), time.monotonic() - begin
    said = re.search(r"^gpuprobe: (\d+) data points and log records were not delivered", daemon.output(), re.M)
    # the last push comes to those that wait
    assert status == 0 and said and int(said[1]) >= waiting > 0, f"status {status}, {waiting} waited: {daemon.output()}"
    assert took < 10, f"it took {took} s"


def main(probe, standins, folder):
    check, started, receivers = Checks(), [], []
    fixed, nvml = stage(standins, folder, {"otlp_ledger": "ledger"}), f"{folder}/nvml"

    def start(name, options):
        started.append(daemon := Daemon(f"{folder}/{name}.log", probe, [*fixed, *options], STANDIN_NVML=nvml))
        return daemon

    try:
        receivers += [receiver := Receiver(), differences := Receiver()]
        to = lambda receiver: ["--otlp", f"http://127.0.0.1:{receiver.port}", "--otlp-interval", "1"]
        daemon = start("daemon", [*to(receiver), "--otlp-attribute", f"{ATTRIBUTE}=test"])
        start("delta", [*to(differences), "--otlp-temporality", "delta"])
        scraper = Scraper(daemon)
        ledger = Workload(f"{folder}/otlp_ledger", "--wait", "--pauses", "2", "--threads", "2", "--calls", "20000")
        started.append(ledger)
        ledger.ledger()
        until("a push", lambda: receiver.seen(METRICS))
        with open(nvml, "a") as file:
            file.write(f"process 0 compute {ledger.pid} {5 << 30}\nbusy 0 {ledger.pid} 30 5 0 0\nxid 0 79\n")
        ledger.go_on()
        ledger.ledger()
        time.sleep(4)
        ledger.go_on()
        reported = ledger.ledger()
        calls = {labels["function"] for name, _, labels, _, _ in samples(daemon.scrape()) if name == "gpuprobe_calls_total"}
        check("failures are reported once", eventually, failures, receiver, reported)
        check("differences", eventually, deltas, differences, reported, calls)
        check("an XID", eventually, xid, receiver)
        check("every field", compare_with_metrics, receiver, scraper, 5)
        check("starts", starts, receiver)
        check("the resource", resource, receiver.seen(METRICS)[-1].message.resource_metrics, daemon)
        check("every field of records", compare_records, receiver, scraper, daemon)
        trouble(check, daemon, receiver, scraper)
        check("every field, after all that", compare_with_metrics, receiver, scraper, 15)
        scraper.end()
        daemon.runs()
        before = len(receiver.seen(METRICS, 200))
        status = daemon.end()
        check.that("the last push", status == 0 and len(receiver.seen(METRICS, 200)) > before, f"status {status}")
        tls(check, start, folder)
    except AssertionError as error:
        check.fail(error)
    finally:
        for process in reversed(started):
            process.end()
        for receiver in receivers:
            receiver.end()
    check.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
