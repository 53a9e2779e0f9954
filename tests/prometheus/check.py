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
from servers import STEP, Daemon, Prometheus, ShortLived, Workload, until

SPAN = 120
PAUSES = 7
# what Grafana makes of the variables of a query where scrapes are 15 seconds apart
RATE_INTERVAL, INTERVAL = "1m", "15s"
RULES = "packaging/prometheus/rules.yml"
DASHBOARD = "packaging/grafana/gpuprobe.json"
# what NVML is told to say of a process
NVML_BYTES = 5 << 30
# classes of functions that the daemon counts when it is told nothing
COUNTED = {"alloc", "free", "memcpy", "memset", "launch", "sync"}
# of what the ledger provokes
ERRORS = {"1": "CUDA_ERROR_INVALID_VALUE", "2": "CUDA_ERROR_OUT_OF_MEMORY"}
FILES = {name: name for name in ("libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1")}
# under names of their own, because processes of other tests have the usual ones
PROGRAMS = {"ledger": "prom_ledger", "leaks": "prom_leaks", "launches": "prom_launches", "graphs": "prom_graphs", "gaps": "prom_gaps"}
SOURCES = {"graphs": "launches", "short": "ledger"}
# run again and again; of those that ended so many seconds ago there are no series but the sums of their name
SHORT, KEPT = "prom_short", 30
# seconds between two of them: each that is still shown makes a scrape larger
PAUSE = 3


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
    same("errors", prometheus.by("error", f"sum by (error) (gpuprobe_errors_total{of}) > 0"), failed_by(books))


def failed_by(books):
    failed = {}
    for code, n in (pair for codes in books["errors"].values() for pair in codes.items()):
        failed[ERRORS[code]] = failed.get(ERRORS[code], 0) + n
    return failed


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


def sums_of_short(functions, runs):
    """What the rules have to record of all runs together, by the name of the rule."""
    sums = {f"instance_process:gpuprobe_{name}_total:sum": 0 for name in ("calls", "errors", "kernel_launches")}
    copied = {}
    for books in runs:
        calls = sum(n for name, n in books["driver_calls"].items() if name in functions)
        for name, more in zip(sums, (calls, sum(failed_by(books).values()), sum(books["launches"].values()))):
            sums[name] += more
        for (kind, _), moved in copied_by(books).items():
            copied[kind] = copied.get(kind, 0) + moved
    return sums, copied


def books_of_short(prometheus, functions, runs):
    """Sums are whole, whether a process has series of its own still or not, and none ever fell."""
    of = f'{{process="{SHORT}"}}'
    sums, copied = sums_of_short(functions, runs)
    for name, wanted in sums.items():
        same(name, prometheus.by("", name + of), {"": wanted})
    of_copies = f"instance_process_kind:gpuprobe_copy_bytes_total:sum{of}"
    told = {kind: n for kind, n in prometheus.by("kind", of_copies).items() if n}
    same("copied bytes", told, copied)
    for name in (*sums, of_copies.removesuffix(of)):
        falls = [n for _, n in prometheus.query(f"resets({name}{of}[{SPAN}s])")]
        assert falls and not any(falls), f"{name} falls: {falls}"
    ended = prometheus.by("", f"gpuprobe_ended_processes_total{of}").get("", 0)
    assert 0 < ended <= len(runs), f"{ended} of {len(runs)} are shown by name alone"


def rates_of_short(prometheus, functions, runs):
    """Each run does the same, so what fails is much the same share of it at any time, but for one that was read in the
    middle; the rules are about to alert on it."""
    of = f'{{process="{SHORT}"}}'
    rates = [f"instance_process:gpuprobe_{name}:rate5m" for name in ("calls", "errors", "kernel_launches")]
    for name in (*rates, "instance_process_kind:gpuprobe_copy_bytes:rate5m"):
        told = [n for _, n in prometheus.query(name + of)]
        assert told and any(n > 0 for n in told), f"{name}: {told}"
    calls, errors, _ = sums_of_short(functions, runs)[0].values()
    told = prometheus.by("", f"instance_process:gpuprobe_errors:ratio5m{of}").get("", 0)
    assert abs(told / (errors / calls) - 1) < 0.1, f"{told} of the calls fail, by the books {errors / calls}"
    alerts = prometheus.query(f'ALERTS{{alertname="GpuCallsFail", process="{SHORT}"}}')
    assert alerts, "no alert on calls that fail"


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


def values_of(prometheus, query, instant, processes, start, end):
    words = {"$instance": ".*", "$process": "|".join(processes)}
    words |= {"$__rate_interval": RATE_INTERVAL, "$__interval": INTERVAL, "$__range": f"{int(end - start)}s"}
    for variable, value in words.items():
        query = query.replace(variable, value)
    assert "$" not in query, f"a variable is left in {query}"
    return [value for _, value in prometheus.query(query, time=end)] if instant else prometheus.over(query, start, end)


def has_data(prometheus, query, *words):
    values = values_of(prometheus, query, *words)
    assert any(value == value for value in values), f"nothing: {query}"


def is_seen(prometheus, query, instant, processes, start, end):
    """Most of the time: a scrape may come in the middle of one that is short."""
    values = values_of(prometheus, f"max({query})", instant, processes, start, end)
    wanted = 1 if instant else (end - start) / STEP / 2
    above = sum(value > 0 for value in values)
    assert above >= wanted, f"{above} of {len(values)} values are above 0, not {wanted}: {query}"


def books_of_gpus(prometheus, pid):
    """What the stand-in NVML always says of its first GPU, and what it was told to say."""
    same("utilisation", prometheus.by("gpu", 'gpuprobe_gpu_utilization_ratio{gpu="0"}'), {"0": 0.42})
    same("power", prometheus.by("gpu", 'gpuprobe_gpu_power_watts{gpu="0"}'), {"0": 123.456})
    same("memory of a process", prometheus.by("gpu", f'gpuprobe_gpu_process_memory_bytes{{pid="{pid}"}}'), {"0": NVML_BYTES})
    same("XIDs", prometheus.by("xid", "gpuprobe_xid_errors_total"), {"79": 1})
    same("the alert", prometheus.by("xid", 'ALERTS{alertname="GpuXidError", alertstate="firing"}'), {"79": 1})


def dashboard(check, prometheus, start, end):
    for title, query, instant in queries.of_dashboard(DASHBOARD):
        check(f"dashboard: {title}", has_data, prometheus, query, instant, PROGRAMS.values(), start, end)
        # ledgers launch no graphs
        if "(ended_)?" in query and title != "Graphs":
            check(f"dashboard, short processes: {title}", is_seen, prometheus, query, instant, [SHORT], start, end)


def during(check, daemon, prometheus, functions, programs, short, promtool):
    """The two minutes."""
    ledger, leaks = programs["ledger"], programs["leaks"]
    until("the first scrape", lambda: prometheus.query('up{job="gpuprobe"} == 1'))
    start = time.time()
    leaks.go_on()
    check("GPUs", equal, books_of_gpus, prometheus, ledger.pid)
    for name, compare in (("launches", books_of_launches), ("graphs", books_of_graphs)):
        check(name, equal, compare, prometheus, programs[name].books())
    for pause in range(1, PAUSES + 1):
        ledger.go_on()
        books = ledger.books()
        check(f"pause {pause} of the ledger", equal, books_of_ledger, prometheus, functions, books)
        check("promtool check metrics", clean_metrics, promtool, daemon.scrape())
        time.sleep(max(0, start + SPAN * pause / PAUSES - time.time()))
    check("places", equal, books_of_places, prometheus, leaks.books(), start + SPAN * 0.75)
    runs = short.books()
    check(f"sums of {len(runs)} short processes", equal, books_of_short, prometheus, functions, runs)
    check("rates of short processes", equal, rates_of_short, prometheus, functions, runs)
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
    for name, own in (FILES | PROGRAMS | {"short": SHORT}).items():
        shutil.copy(f"{standins}/{SOURCES.get(name, name)}", f"{folder}/{own}")
    nvml = f"{folder}/nvml"
    open(nvml, "w").close()
    # no driver is asked, so that the GPUs of this machine are not among NVML's
    options = ["-p", f"{folder}/libcuda.so.1", "--warm-up", "10", "--nvml", f"{folder}/libnvidia-ml.so.1"]
    options += ["--driver-folder", folder, "--keep-ended", str(KEPT)]
    functions = counted_functions(probe)
    try:
        started.append(daemon := Daemon(f"{folder}/daemon.log", probe, options, STANDIN_NVML=nvml))
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
        started.append(short := ShortLived(f"{folder}/{SHORT}", "--threads", "1", "--calls", "2000", pause=PAUSE))
        programs["ledger"].books(), programs["leaks"].books()
        with open(nvml, "a") as file:
            pid = programs["ledger"].pid
            file.write(f"process 0 compute {pid} {NVML_BYTES}\nbusy 0 {pid} 30 5 0 0\nxid 0 79\n")
        during(check, daemon, prometheus, functions, programs, short, f"{binaries}/promtool")
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
