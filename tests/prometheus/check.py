"""Runs Prometheus on the daemon for two minutes and compares its answers with the ledgers of the programs.

    check.py GPUPROBE STANDINS PROMETHEUS FOLDER    the binary, the folders of the stand-ins and of Prometheus' programs,
                                                    and the output folder, which is emptied first

Its last line is "N passed, M failed". All queries are about processes that were started here: other processes may use CUDA
on the host at the same time, and other daemons may watch them.
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
# the values of Grafana's variables with a scrape interval of 15 seconds
RATE_INTERVAL, INTERVAL = "1m", "15s"
RULES = "packaging/prometheus/rules.yml"
# an instance of NVML's first GPU, as its stand-in reads it
INSTANCE = "mig 0 7 0 1g.10gb 4096\n"
DASHBOARD, GPM_DASHBOARD = "packaging/grafana/gpuprobe.json", "packaging/grafana/gpuprobe-gpm.json"
# the memory of a process that the stand-in of NVML reports
NVML_BYTES = 5 << 30
# classes of functions that the daemon counts by default
COUNTED = {"alloc", "free", "memcpy", "memset", "launch", "sync"}
# errors that the ledger program provokes
# what GPM reports for metrics, by its numbers: percent for parts of a GPU, MiB per second for links
GPM = {2: 86.4, 5: 83, 10: 15.125, 20: 2048, 60: 1.5}
ERRORS = {"1": "CUDA_ERROR_INVALID_VALUE", "2": "CUDA_ERROR_OUT_OF_MEMORY"}
FILES = {name: name for name in ("libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1")}
# with unique names, because processes of other tests have the usual ones
PROGRAMS = {"ledger": "prom_ledger", "leaks": "prom_leaks", "launches": "prom_launches", "graphs": "prom_graphs", "gaps": "prom_gaps", "hangs": "prom_hangs"}
SOURCES = {"graphs": "launches", "short": "ledger"}
# run again and again; processes that exited this many seconds ago only have the sums of their name
SHORT, KEPT = "prom_short", 30
# seconds between two of them: each process that still has series makes a scrape larger
PAUSE = 3
# the program that hangs: one thread waits for the device, and the others, which begin half a second later, for a stream
HANGS = {"STANDIN_DELAY": "cuCtxSynchronize:20000000,cuStreamSynchronize:10000000"}


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


def same(what, found, ledger):
    assert found == ledger, f"{what}: Prometheus says {found}, the ledger {ledger}"


def equal(compare, *words):
    """Retries: the daemon reads its tables periodically, and Prometheus scrapes later."""
    until("not the same", lambda: compare(*words) or True, patience=30)


def counted_functions(probe):
    """Functions of the CUDA driver that the daemon counts, from `gpuprobe list`: mark, API, versions, class, signature."""
    names = set()
    for line in subprocess.run([probe, "list"], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        while words and words[0] in "*~":
            words.pop(0)
        if len(words) > 3 and words[0] == "driver" and words[2] in COUNTED and "~" not in line[:3]:
            names.add(words[3].split("(")[0])
    assert len(names) > 100, f"gpuprobe list has only {len(names)} functions"
    return names


def check_ledger(prometheus, functions, ledger):
    """Compares everything in the ledger of a process that runs and is idle."""
    of = f'{{pid="{ledger["pid"]}"}}'
    check_counters(prometheus, functions, ledger)
    for metric, field in (("live_bytes", "live_bytes"), ("live_allocations", "live")):
        found = prometheus.by("kind", f"sum by (kind) (gpuprobe_memory_{metric}{of})")
        wanted = {kind: row[field] for kind, row in ledger["memory"].items()}
        same(metric, {kind: n for kind, n in found.items() if n or kind in wanted}, wanted)
    total = sum(row["live_bytes"] for row in ledger["memory"].values())
    recorded = f'instance_process:gpuprobe_memory_live_bytes:sum{{process="{PROGRAMS["ledger"]}"}}'
    same("the recorded sum", prometheus.by("", recorded), {"": total})


def check_counters(prometheus, functions, ledger):
    of = f'{{pid="{ledger["pid"]}"}}'
    calls = {name: n for name, n in ledger["driver_calls"].items() if name in functions and n}
    same("calls", prometheus.by("function", f"sum by (function) (gpuprobe_calls_total{of})"), calls)
    timed = prometheus.by("function", f"sum by (function) (gpuprobe_call_seconds_total{of}) > 0")
    same("functions whose calls were timed", set(timed), set(calls))
    # its CUDA kernels have no names that the CUDA driver knows
    launches = prometheus.by("", f"sum(gpuprobe_kernel_launches_total{of})")
    same("launches", launches, {"": sum(ledger["launches"].values())})
    same("copied bytes", copied(prometheus, of), copied_by(ledger))
    for metric in ("allocated_bytes", "freed_bytes"):
        found = prometheus.by("", f"sum(gpuprobe_memory_{metric}_total{of})")
        same(metric, found, {"": sum(row[metric] for row in ledger["memory"].values())})
    same("errors", prometheus.by("error", f"sum by (error) (gpuprobe_errors_total{of}) > 0"), failed_by(ledger))


def failed_by(ledger):
    failed = {}
    for code, n in (pair for codes in ledger["errors"].values() for pair in codes.items()):
        failed[ERRORS[code]] = failed.get(ERRORS[code], 0) + n
    return failed


def copied(prometheus, of):
    rows = prometheus.query(f"sum by (kind, mode) (gpuprobe_copy_bytes_total{of})")
    return {(labels["kind"], labels["mode"]): value for labels, value in rows if value}


def copied_by(ledger):
    """By direction and mode. A copy of kind Default goes from the host to the device in this program."""
    sums = {}
    for kind, row in [*ledger["copies"].items(), ("memset", ledger["memset_bytes"])]:
        for mode in ("sync", "async"):
            bytes_moved = row.get(f"{mode}_bytes", row.get(mode) if kind == "memset" else 0)
            key = ("H2D" if kind == "Default" else kind, mode)
            sums[key] = sums.get(key, 0) + bytes_moved
    return {key: n for key, n in sums.items() if n}


def check_exited(prometheus, functions, ledger):
    check_counters(prometheus, functions, ledger)
    same("gauges of an exited process", prometheus.query(f'gpuprobe_memory_live_bytes{{pid="{ledger["pid"]}"}}'), [])


def check_sites(prometheus, ledger, moment):
    """Live memory of the call sites at the end, and which were suspects while they grew: only the two leaks."""
    of = f'{{pid="{ledger["pid"]}"}}'
    function = lambda rows: {labels["site"].split("(")[0]: value for labels, value in rows}
    live = function(prometheus.query(f"sum by (site) (gpuprobe_memory_site_live_bytes{of}) > 0"))
    suspects = function(prometheus.query(f"gpuprobe_memory_leak_suspects{of} > 0", time=moment))
    expected = {place["function"]: place["live_bytes"] for place in ledger["call_sites"] if place["live_bytes"]}
    same("call sites", live, expected)
    same("suspects", set(suspects), {place["function"] for place in ledger["call_sites"] if place["leaks"]})


def sums_of_short(functions, runs):
    """What the rules must record for all runs together, by the name of the rule."""
    sums = {f"instance_process:gpuprobe_{name}_total:sum": 0 for name in ("calls", "errors", "kernel_launches")}
    copied = {}
    for ledger in runs:
        calls = sum(n for name, n in ledger["driver_calls"].items() if name in functions)
        for name, more in zip(sums, (calls, sum(failed_by(ledger).values()), sum(ledger["launches"].values()))):
            sums[name] += more
        for (kind, _), moved in copied_by(ledger).items():
            copied[kind] = copied.get(kind, 0) + moved
    return sums, copied


def check_short(prometheus, functions, runs):
    """Sums are complete whether or not a process still has its own series, and no sum ever fell."""
    of = f'{{process="{SHORT}"}}'
    sums, copied = sums_of_short(functions, runs)
    for name, wanted in sums.items():
        same(name, prometheus.by("", name + of), {"": wanted})
    of_copies = f"instance_process_kind:gpuprobe_copy_bytes_total:sum{of}"
    found = {kind: n for kind, n in prometheus.by("kind", of_copies).items() if n}
    same("copied bytes", found, copied)
    for name in (*sums, of_copies.removesuffix(of)):
        falls = [n for _, n in prometheus.query(f"resets({name}{of}[{SPAN}s])")]
        assert falls and not any(falls), f"{name} falls: {falls}"
    ended = prometheus.by("", f"gpuprobe_exited_processes_total{of}").get("", 0)
    assert 0 < ended <= len(runs), f"{ended} of {len(runs)} are only in the sums by name"
    calls = sums["instance_process:gpuprobe_calls_total:sum"]
    same("calls over all series", prometheus.by("", f"sum(gpuprobe_calls_total{of})"), {"": calls})
    moved = f'sum(gpuprobe_calls_total{{process="{SHORT}", ended!=""}})'
    assert prometheus.by("", moved).get("", 0) > 0, "no series has ended"


def check_increases(prometheus, functions, runs):
    """No series falls, and none counts again what another one has counted. `increase` extrapolates by up to a scrape at each
    end of a series."""
    of = f'{{process="{SHORT}"}}'
    falls = [n for _, n in prometheus.query(f"resets(gpuprobe_calls_total{of}[{SPAN}s])")]
    assert falls and not any(falls), f"series fall: {falls}"
    calls = next(iter(sums_of_short(functions, runs)[0].values()))
    found = prometheus.by("", f"sum(increase(gpuprobe_calls_total{of}[{SPAN}s]))").get("", 0)
    assert 0 < found < 1.1 * calls, f"the increase over all series is {found}, {calls} calls were made"
    ended = [n for _, n in prometheus.query(f'increase(gpuprobe_calls_total{{process="{SHORT}", ended!=""}}[{SPAN}s])')]
    assert not any(ended), f"sums over ended series rise: {ended}"


def rates_of_short(prometheus, functions, runs):
    """Each run does the same, so the share of failed calls is nearly constant, except for a run that was read in the middle. The
    alert must be pending or firing."""
    of = f'{{process="{SHORT}"}}'
    rates = [f"instance_process:gpuprobe_{name}:rate5m" for name in ("calls", "errors", "kernel_launches")]
    for name in (*rates, "instance_process_kind:gpuprobe_copy_bytes:rate5m"):
        found = [n for _, n in prometheus.query(name + of)]
        assert found and any(n > 0 for n in found), f"{name}: {found}"
    calls, errors, _ = sums_of_short(functions, runs)[0].values()
    found = prometheus.by("", f"instance_process:gpuprobe_errors:ratio5m{of}").get("", 0)
    assert abs(found / (errors / calls) - 1) < 0.1, f"{found} of the calls fail, by the ledger {errors / calls}"
    alerts = prometheus.query(f'ALERTS{{alertname="GpuCallsFail", process="{SHORT}"}}')
    assert alerts, "no alert about failing calls"


def check_launches(prometheus, ledger):
    of = f'{{pid="{ledger["pid"]}"}}'
    launches = prometheus.by("kernel", f"sum by (kernel) (gpuprobe_kernel_launches_total{of})")
    same("launches", launches, {kernel: n for kernel, n in ledger["launches"].items() if n})


def check_graphs(prometheus, ledger):
    of = f'{{pid="{ledger["pid"]}"}}'
    check_launches(prometheus, ledger)
    same("graphs", prometheus.by("", f"sum(gpuprobe_graph_launches_total{of})"), {"": ledger["graph_launches"]})
    same("derived", prometheus.by("", f"sum(gpuprobe_graph_kernels_derived_total{of})"), {"": ledger["derived"]})


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
    output = done.stdout + done.stderr
    assert done.returncode == 0 and not output, f"it exits with {done.returncode}: {output}"


def values_of(prometheus, query, instant, processes, start, end):
    words = {"$instance": ".*", "$gpu": ".*", "$process": "|".join(processes)}
    words |= {"$__rate_interval": RATE_INTERVAL, "$__interval": INTERVAL, "$__range": f"{int(end - start)}s"}
    for variable, value in words.items():
        query = query.replace(variable, value)
    assert "$" not in query, f"an unknown variable in {query}"
    return [value for _, value in prometheus.query(query, time=end)] if instant else prometheus.over(query, start, end)


def has_data(prometheus, query, *words):
    values = values_of(prometheus, query, *words)
    assert any(value == value for value in values), f"no data: {query}"


def is_seen(prometheus, query, instant, processes, start, end):
    """Checks most of the time only: a scrape may come in the middle of a short process."""
    values = values_of(prometheus, f"max({query})", instant, processes, start, end)
    wanted = 1 if instant else (end - start) / STEP / 2
    above = sum(value > 0 for value in values)
    assert above >= wanted, f"{above} of {len(values)} values are above 0, not {wanted}: {query}"


def check_pending(prometheus, pid, age):
    """The thread that waits for the device has waited longest."""
    found = prometheus.by("function", f'gpuprobe_call_pending_seconds{{pid="{pid}"}}')
    assert set(found) == {"cuCtxSynchronize"} and found["cuCtxSynchronize"] > age, f"pending: {found}"


def check_returned(prometheus, pid):
    same("pending calls", prometheus.query(f'gpuprobe_call_pending_seconds{{pid="{pid}"}}'), [])


def check_gpus(prometheus, pid):
    """The values that the stand-in of NVML always reports for its first GPU, and those that this test sets."""
    same("utilisation", prometheus.by("gpu", 'gpuprobe_gpu_utilization_ratio{gpu="0"}'), {"0": 0.42})
    active = prometheus.by("part", 'gpuprobe_gpu_activity_ratio{gpu="0", part=~"sm|tensor|dram"}')
    same("activity by GPM", active, {"sm": 0.864, "tensor": 0.83, "dram": 0.15125})
    same("NVLink by GPM", prometheus.by("link", 'gpuprobe_gpu_traffic_bytes_per_second{direction="rx", link="nvlink"}'), {"nvlink": 1.5 * 2**20})
    same("remapped rows", prometheus.by("severity", "gpuprobe_gpu_remapped_rows_total"), {"corrected": 3, "uncorrected": 2})
    same("NVLinks", prometheus.by("nvlink", "gpuprobe_gpu_nvlink_up"), {"0": 1, "1": 0})
    same("errors of NVLinks", prometheus.by("error", "gpuprobe_gpu_nvlink_errors_total"), {"replay": 5, "recovery": 6, "crc": 7})
    same("encoder", prometheus.by("engine", 'gpuprobe_gpu_video_utilization_ratio{engine="encoder"}'), {"encoder": 0.35})
    same("MIG", prometheus.by("profile", "gpuprobe_mig_memory_used_bytes"), {"1g.10gb": 4096})
    same("power", prometheus.by("gpu", 'gpuprobe_gpu_power_watts{gpu="0"}'), {"0": 123.456})
    same("memory of a process", prometheus.by("gpu", f'gpuprobe_gpu_process_memory_bytes{{pid="{pid}"}}'), {"0": NVML_BYTES})
    same("XIDs", prometheus.by("xid", "gpuprobe_xid_errors_total"), {"79": 1})
    same("the alert", prometheus.by("xid", 'ALERTS{alertname="GpuXidError", alertstate="firing"}'), {"79": 1})


def is_by_process(query):
    """Whether it has a counter of processes: then processes that exit soon are in it."""
    return "$process" in query and any(f"{function}((sum" in query for function in ("deriv", "delta", "increase"))


def dashboard(check, prometheus, start, end):
    for title, query, instant in queries.of_dashboard(DASHBOARD):
        check(f"dashboard: {title}", has_data, prometheus, query, instant, PROGRAMS.values(), start, end)
        # the ledger program launches no graphs
        if is_by_process(query) and title != "Graphs":
            check(f"dashboard, short processes: {title}", is_seen, prometheus, query, instant, [SHORT], start, end)
    for title, query, instant in queries.of_dashboard(GPM_DASHBOARD):
        check(f"dashboard of GPM: {title}", has_data, prometheus, query, instant, PROGRAMS.values(), start, end)


def during(check, daemon, prometheus, functions, programs, short, promtool):
    """The checks during the two minutes."""
    workload, leaks, hangs = programs["ledger"], programs["leaks"], programs["hangs"]
    until("the first scrape", lambda: prometheus.query('up{job="gpuprobe"} == 1'))
    start = time.time()
    leaks.go_on()
    hangs.go_on()
    hangs.ledger()
    for age in (1, 3):
        check(f"a call that is pending for {age} s", equal, check_pending, prometheus, hangs.pid, age)
    check("GPUs", equal, check_gpus, prometheus, workload.pid)
    for name, compare in (("launches", check_launches), ("graphs", check_graphs)):
        check(name, equal, compare, prometheus, programs[name].ledger())
    for pause in range(1, PAUSES + 1):
        workload.go_on()
        ledger = workload.ledger()
        check(f"pause {pause} of the ledger", equal, check_ledger, prometheus, functions, ledger)
        check("promtool check metrics", clean_metrics, promtool, daemon.scrape())
        time.sleep(max(0, start + SPAN * pause / PAUSES - time.time()))
    hangs.ledger()
    check("calls that have returned", equal, check_returned, prometheus, hangs.pid)
    check("call sites", equal, check_sites, prometheus, leaks.ledger(), start + SPAN * 0.75)
    runs = short.ledgers()
    check(f"sums of {len(runs)} short processes", equal, check_short, prometheus, functions, runs)
    check("increases of short processes", equal, check_increases, prometheus, functions, runs)
    check("rates of short processes", equal, rates_of_short, prometheus, functions, runs)
    end = time.time()
    dashboard(check, prometheus, start, end)
    workload.go_on()
    check("the exited ledger program", equal, check_exited, prometheus, functions, workload.ledger())
    check("rules", rules_work, prometheus)
    check("up", always_up, prometheus, start, time.time())
    daemon.runs()


def main(probe, standins, binaries, folder):
    check, started = Checks(), []
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    # copies are other files for the Linux kernel and for other daemons
    for name, own in (FILES | PROGRAMS | {"short": SHORT}).items():
        shutil.copy(f"{standins}/{SOURCES.get(name, name)}", f"{folder}/{own}")
    nvml = f"{folder}/nvml"
    with open(nvml, "w") as file:
        file.write(INSTANCE)
    # not the driver folder of this machine, so that its GPUs are not added to those of the NVML stand-in
    options = ["-p", f"{folder}/libcuda.so.1", "--warm-up", "10", "--nvml", f"{folder}/libnvidia-ml.so.1"]
    options += ["--driver-folder", folder, "--keep-exited", str(KEPT)]
    functions = counted_functions(probe)
    try:
        started.append(daemon := Daemon(f"{folder}/daemon.log", probe, options, STANDIN_NVML=nvml))
        started.append(prometheus := Prometheus(folder, binaries, daemon.address, RULES))
        # at least four fifths of the span, longer on a busy machine
        rounds = str(SPAN * 800 // 20)
        words = {
            "ledger": ["--wait", "--pauses", str(PAUSES), "--threads", "2", "--calls", "40000"],
            "leaks": ["--wait", "--rounds", rounds, "--pace", "20"],
            "launches": ["classic", "--wait"],
            "graphs": ["graphs", "--wait"],
            "gaps": ["--wait"],
            "hangs": ["8"],
        }
        start = lambda name, own: Workload(f"{folder}/{own}", *words[name], **(HANGS if name == "hangs" else {}))
        programs = {name: start(name, own) for name, own in PROGRAMS.items()}
        started += programs.values()
        started.append(short := ShortLived(f"{folder}/{SHORT}", "--threads", "1", "--calls", "2000", pause=PAUSE))
        programs["ledger"].ledger(), programs["leaks"].ledger(), programs["hangs"].ledger()
        with open(nvml, "a") as file:
            pid = programs["ledger"].pid
            file.write(f"process 0 compute {pid} {NVML_BYTES}\nbusy 0 {pid} 30 5 0 0\nxid 0 79\n")
            file.writelines(f"gpm 0 {metric} {value}\n" for metric, value in GPM.items())
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
