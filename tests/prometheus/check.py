"""Two minutes of Prometheus on the daemon.

    check.py GPUPROBE STANDINS PROMETHEUS FOLDER    the binary, the folder of the stand-ins, that of Prometheus' programs,
                                                    and one for what is written, which is made anew

Its last line is "N passed, M failed". Everything asked is about processes that were started here: others may use CUDA on
the host meanwhile, and other daemons may watch them.
"""

import os
import shutil
import subprocess
import sys
import time

import queries
from servers import Daemon, Prometheus, Workload, until

SPAN = 120
PAUSES = 7
# what a query of the dashboard is asked with; the shortest that always has a few scrapes in it
RATE_INTERVAL = "30s"
RULES = "packaging/prometheus/rules.yml"
DASHBOARD = "packaging/grafana/gpuprobe.json"
PAGE = "docs/metrics.md"
# classes of functions that the daemon counts when it is told nothing
COUNTED = {"alloc", "free", "memcpy", "memset", "launch", "sync"}
# of what the ledger provokes
ERRORS = {"1": "CUDA_ERROR_INVALID_VALUE", "2": "CUDA_ERROR_OUT_OF_MEMORY"}
FILES = {name: name for name in ("libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1")}
# under names of their own, because processes of other tests have the usual ones
PROGRAMS = {"ledger": "prom_ledger", "leaks": "prom_leaks", "launches": "prom_launches", "graphs": "prom_graphs", "gaps": "prom_gaps"}
SOURCES = {"graphs": "launches"}


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, what, run, *words):
        try:
            run(*words)
        except AssertionError as error:
            self.failed += 1
            print(f"FAILED: {what}: {error}", flush=True)
        else:
            self.passed += 1
            print(f"ok: {what}", flush=True)


def same(what, told, books):
    assert told == books, f"{what}: Prometheus says {told}, the books {books}"


def equal(compare, *words):
    """A daemon reads its tables now and then, and Prometheus asks it later still."""
    until("not the same", lambda: compare(*words) or True, patience=30)


def counted_functions(probe):
    """Functions of the driver that the daemon counts, by gpuprobe's own list: mark, API, versions, class, signature."""
    names = set()
    for line in subprocess.run([probe, "list"], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        while words and words[0] in "*~":
            words.pop(0)
        if len(words) > 3 and words[0] == "driver" and words[2] in COUNTED and "~" not in line[:3]:
            names.add(words[3].split("(")[0])
    assert len(names) > 100, f"gpuprobe list tells of {len(names)} functions only"
    return names


def books_of_ledger(prometheus, functions, books):
    """Everything that a ledger says of a process that runs and is at rest."""
    of = f'{{pid="{books["pid"]}"}}'
    counters_of_ledger(prometheus, functions, books)
    for metric, field in (("live_bytes", "live_bytes"), ("live_allocations", "live")):
        told = prometheus.by("kind", f"sum by (kind) (gpuprobe_memory_{metric}{of})")
        wanted = {kind: row[field] for kind, row in books["memory"].items()}
        same(metric, {kind: n for kind, n in told.items() if n or kind in wanted}, wanted)
    total = sum(row["live_bytes"] for row in books["memory"].values())
    recorded = f'instance_process:gpuprobe_memory_live_bytes:sum{{process="{PROGRAMS["ledger"]}"}}'
    same("the recorded sum", prometheus.by("", recorded), {"": total})


def counters_of_ledger(prometheus, functions, books):
    of = f'{{pid="{books["pid"]}"}}'
    calls = {name: n for name, n in books["driver_calls"].items() if name in functions and n}
    same("calls", prometheus.by("function", f"sum by (function) (gpuprobe_calls_total{of})"), calls)
    timed = prometheus.by("function", f"sum by (function) (gpuprobe_call_duration_seconds_count{of})")
    same("calls that were timed", timed, calls)
    # its kernels bear no names that the driver is told
    launches = prometheus.by("", f"sum(gpuprobe_kernel_launches_total{of})")
    same("launches", launches, {"": sum(books["launches"].values())})
    same("copied bytes", copied(prometheus, of), copied_by(books))
    for metric in ("allocated_bytes", "freed_bytes"):
        told = prometheus.by("", f"sum(gpuprobe_memory_{metric}_total{of})")
        same(metric, told, {"": sum(row[metric] for row in books["memory"].values())})
    failed = {}
    for code, n in (pair for codes in books["errors"].values() for pair in codes.items()):
        failed[ERRORS[code]] = failed.get(ERRORS[code], 0) + n
    same("errors", prometheus.by("error", f"sum by (error) (gpuprobe_errors_total{of}) > 0"), failed)


def copied(prometheus, of):
    rows = prometheus.query(f"sum by (kind, mode) (gpuprobe_copy_bytes_total{of})")
    return {(labels["kind"], labels["mode"]): value for labels, value in rows if value}


def copied_by(books):
    """By direction and mode. A copy whose direction is left to the driver goes from the host to the device there."""
    sums = {}
    for kind, row in [*books["copies"].items(), ("memset", books["memset_bytes"])]:
        for mode in ("sync", "async"):
            bytes_moved = row.get(f"{mode}_bytes", row.get(mode) if kind == "memset" else 0)
            key = ("H2D" if kind == "Default" else kind, mode)
            sums[key] = sums.get(key, 0) + bytes_moved
    return {key: n for key, n in sums.items() if n}


def ended_ledger(prometheus, functions, books):
    counters_of_ledger(prometheus, functions, books)
    same("gauges of the ended", prometheus.query(f'gpuprobe_memory_live_bytes{{pid="{books["pid"]}"}}'), [])


def books_of_places(prometheus, books, moment):
    """What the places of a program hold at its end, and which were suspected while they grew: the two leaks alone."""
    of = f'{{pid="{books["pid"]}"}}'
    function = lambda rows: {labels["site"].split("(")[0]: value for labels, value in rows}
    live = function(prometheus.query(f"sum by (site) (gpuprobe_memory_site_live_bytes{of}) > 0"))
    suspects = function(prometheus.query(f"gpuprobe_memory_leak_suspects{of} > 0", time=moment))
    held = {place["function"]: place["live_bytes"] for place in books["places"] if place["live_bytes"]}
    same("places", live, held)
    same("suspects", set(suspects), {place["function"] for place in books["places"] if place["leaks"]})


def books_of_launches(prometheus, books):
    of = f'{{pid="{books["pid"]}"}}'
    launches = prometheus.by("kernel", f"sum by (kernel) (gpuprobe_kernel_launches_total{of})")
    same("launches", launches, {kernel: n for kernel, n in books["launches"].items() if n})


def books_of_graphs(prometheus, books):
    of = f'{{pid="{books["pid"]}"}}'
    books_of_launches(prometheus, books)
    same("graphs", prometheus.by("", f"sum(gpuprobe_graph_launches_total{of})"), {"": books["graph_launches"]})
    same("derived", prometheus.by("", f"sum(gpuprobe_graph_kernels_derived_total{of})"), {"": books["derived"]})


def always_up(prometheus, start, end):
    rows = prometheus.ask("query", query=f'up{{job="gpuprobe"}}[{int(end - start)}s]', time=end)["result"]
    values = [value for row in rows for _, value in row["values"]]
    down = sum(value != "1" for value in values)
    assert not down and len(values) > (end - start) / 2, f"{down} of {len(values)} scrapes failed"


def rules_work(prometheus):
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    wanted = sorted(name for name, _ in queries.of_rules(RULES))
    same("rules", sorted(rule["name"] for rule in rules), wanted)
    bad = {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}
    assert not bad, f"rules that do not work: {bad}"


def clean_metrics(promtool, text):
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and not said, f"it ends with {done.returncode}: {said}"


def has_data(prometheus, query, instant, start, end):
    words = {"$instance": ".*", "$process": "|".join(PROGRAMS.values())}
    words |= {"$__rate_interval": RATE_INTERVAL, "$__range": f"{int(end - start)}s"}
    for variable, value in words.items():
        query = query.replace(variable, value)
    assert "$" not in query, f"a variable is left in {query}"
    values = [value for _, value in prometheus.query(query, time=end)] if instant else prometheus.over(query, start, end)
    assert any(value == value for value in values), f"nothing: {query}"


def dashboard(check, prometheus, start, end):
    """Queries about metrics that this gpuprobe does not serve are listed apart and count as nothing."""
    there, apart = queries.served(PAGE), []
    for title, query, instant in queries.of_dashboard(DASHBOARD):
        if queries.metrics_of(query) <= there:
            check(f"dashboard: {title}", has_data, prometheus, query, instant, start, end)
        else:
            apart.append(f"{title}: {query}")
    if apart:
        print(f"{len(apart)} queries of the dashboard are about metrics that are not served:")
        print("".join(f"  {line}\n" for line in apart), end="")


def during(check, daemon, prometheus, functions, programs, promtool):
    """The two minutes."""
    ledger, leaks = programs["ledger"], programs["leaks"]
    until("the first scrape", lambda: prometheus.query('up{job="gpuprobe"} == 1'))
    start = time.time()
    leaks.go_on()
    for name, compare in (("launches", books_of_launches), ("graphs", books_of_graphs)):
        check(name, equal, compare, prometheus, programs[name].books())
    for pause in range(1, PAUSES + 1):
        ledger.go_on()
        books = ledger.books()
        check(f"pause {pause} of the ledger", equal, books_of_ledger, prometheus, functions, books)
        check("promtool check metrics", clean_metrics, promtool, daemon.scrape())
        time.sleep(max(0, start + SPAN * pause / PAUSES - time.time()))
    check("places", equal, books_of_places, prometheus, leaks.books(), start + SPAN * 0.75)
    end = time.time()
    dashboard(check, prometheus, start, end)
    ledger.go_on()
    check("the end of the ledger", equal, ended_ledger, prometheus, functions, ledger.books())
    check("rules", rules_work, prometheus)
    check("up", always_up, prometheus, start, time.time())
    daemon.runs()


def main(probe, standins, binaries, folder):
    check, started = Checks(), []
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    # files of our own are other files to the kernel, and to other daemons
    for name, own in (FILES | PROGRAMS).items():
        shutil.copy(f"{standins}/{SOURCES.get(name, name)}", f"{folder}/{own}")
    options = ["-p", f"{folder}/libcuda.so.1", "--warm-up", "10"]
    if "--nvml" in subprocess.run([probe, "daemon", "--help"], capture_output=True, text=True, check=True).stdout:
        options += ["--nvml", f"{folder}/libnvidia-ml.so.1"]
    functions = counted_functions(probe)
    try:
        started.append(daemon := Daemon(f"{folder}/daemon.log", probe, options))
        started.append(prometheus := Prometheus(folder, binaries, daemon.address, RULES))
        # four fifths of the span at least, on a busy machine more
        rounds = str(SPAN * 800 // 20)
        words = {
            "ledger": ["--wait", "--pauses", str(PAUSES), "--threads", "2", "--calls", "40000"],
            "leaks": ["--wait", "--rounds", rounds, "--pace", "20"],
            "launches": ["classic", "--wait"],
            "graphs": ["graphs", "--wait"],
            "gaps": ["--wait"],
        }
        programs = {name: Workload(f"{folder}/{own}", *words[name]) for name, own in PROGRAMS.items()}
        started += programs.values()
        programs["ledger"].books(), programs["leaks"].books()
        during(check, daemon, prometheus, functions, programs, f"{binaries}/promtool")
    except AssertionError as error:
        check.failed += 1
        print(f"FAILED: {error}")
    finally:
        for process in reversed(started):
            process.end()
    print(f"{check.passed} passed, {check.failed} failed")
    return int(check.failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
