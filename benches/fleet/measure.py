#!/usr/bin/env python3
"""Measures a real Prometheus that scrapes many simulated daemons on the loopback: benches/fleet/run calls this.

    measure.py GPUPROBE STANDINS PROMETHEUS FOLDER [--hosts N] [--interval SECONDS] [--minutes N] [--recording FILE]

Prints tables. Nothing is extrapolated here: docs/guides/fleet.md does.
"""

import argparse
import collections
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

import recording

# in the folder of the tests, which `recording` adds to the path
import queries as repository
from checks import PATIENCE, until
from prometheus import Prometheus, free_port
from servers import Server

RULES = "packaging/prometheus/rules.yml"
# a block of Prometheus has two hours
BLOCK_SECONDS, BLOCK_HOSTS = 7200, 1
RULES_EVERY = 60
# seconds between two values of a panel, the rate interval of Grafana for it, and the longest that a query may take
STEP, SLOWEST = 30, 120


def line(what, figure):
    print(f"{what:<58}{figure:>20}", flush=True)


class Simulated(Server):
    """The hosts. They are one server; the labels of the targets tell them apart."""

    def __init__(self, folder, path, hosts):
        self.port, self.hosts = free_port(), hosts
        here = os.path.dirname(os.path.abspath(__file__))
        super().__init__(f"{folder}/hosts.log", [sys.executable, f"{here}/hosts.py", path, str(self.port)])
        until("the simulated hosts listen", lambda: self.runs() or "ready" in self.output())

    def targets(self):
        for n in range(self.hosts):
            labels = {"instance": f"host-{n:05}", "__metrics_path__": f"/{n}/metrics"}
            yield {"targets": [f"127.0.0.1:{self.port}"], "labels": labels}


def config_of(simulated, interval, has_rules):
    return {
        "global": {"scrape_interval": f"{interval}s", "scrape_timeout": f"{interval}s", "evaluation_interval": f"{RULES_EVERY}s"},
        "rule_files": [os.path.abspath(RULES)] if has_rules else [],
        "scrape_configs": [{"job_name": "gpuprobe", "static_configs": list(simulated.targets())}],
    }


def own_metrics(prometheus):
    """Metrics of Prometheus itself: the sum over all series of each."""
    sums = collections.Counter()
    with urllib.request.urlopen(f"{prometheus.url}/metrics") as answer:
        for text in answer.read().decode().splitlines():
            if found := recording.SAMPLE.fullmatch(text):
                sums[found[1]] += float(found[3])
    return sums


def describe(host):
    """Series and bytes of a host by family."""
    text = host.text(0)
    print(f"\nOne host with {recording.GPUS} GPUs and as many processes")
    line("series", len(host.series))
    line("scrape, kB", f"{len(text) / 1000:.0f}")
    families = collections.Counter(re.sub(r"_(bucket|sum|count)$", "", series.family) for series in host.series)
    for family, n in families.most_common(24):
        line(f"  {family}", n)
    line("  all others", sum(families.values()) - sum(n for _, n in families.most_common(24)))


def block(host, binaries, folder, interval):
    """Bytes of a sample in a block of two hours, as Prometheus writes it."""
    text, blocks = f"{folder}/samples", f"{folder}/blocks"
    start = int(time.time()) // BLOCK_SECONDS * BLOCK_SECONDS - 2 * BLOCK_SECONDS
    scrapes = BLOCK_SECONDS // interval
    with open(text, "w") as file:
        file.writelines(host.open_metrics(BLOCK_HOSTS, start, interval, scrapes))
    promtool = f"{binaries}/promtool"
    subprocess.run([promtool, "tsdb", "create-blocks-from", "openmetrics", text, blocks], check=True, capture_output=True)
    os.unlink(text)
    print(f"\nA block of two hours of {BLOCK_HOSTS} host, scraped every {interval} s")
    sizes = of_block(blocks)
    line("samples", f"{sizes['samples']:,}")
    line("bytes a sample: chunks", f"{sizes['chunks'] / sizes['samples']:.2f}")
    line("bytes a sample: index", f"{sizes['index'] / sizes['samples']:.2f}")
    line("bytes of the index a series", f"{sizes['index'] / sizes['series']:.0f}")
    analysed = subprocess.run([promtool, "tsdb", "analyze", blocks], check=True, capture_output=True, text=True).stdout
    print("promtool tsdb analyze: " + ", ".join(re.findall(r"^(?:(?:Total )?Series|Label names|Postings[^:]*): \d+", analysed, re.M)))
    return sizes


def of_block(blocks):
    """Samples, series and bytes of all blocks of a folder."""
    sizes = collections.Counter()
    for place, _, files in os.walk(blocks):
        for name in files:
            path = os.path.join(place, name)
            if name == "meta.json":
                with open(path) as file:
                    stats = json.load(file)["stats"]
                sizes["samples"] += stats["numSamples"]
                sizes["series"] += stats["numSeries"]
            elif name == "index" or os.path.basename(place) == "chunks":
                sizes["index" if name == "index" else "chunks"] += os.path.getsize(path)
    return sizes


class Watch:
    """The memory and CPU time of a process between two moments."""

    def __init__(self, server):
        self.pid, self.before, self.begun = server.process.pid, self.cpu(server.process.pid), time.monotonic()

    @staticmethod
    def cpu(pid):
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cores(self):
        return (self.cpu(self.pid) - self.before) / (time.monotonic() - self.begun)

    def mib(self, field):
        with open(f"/proc/{self.pid}/status") as status:
            return int(re.search(rf"{field}:\s+(\d+)", status.read())[1]) / 1024


def ingest(prometheus, simulated, minutes, interval):
    """Scrapes for some minutes, from when each host was scraped twice."""
    settled = lambda: len(prometheus.query('count_over_time(up{job="gpuprobe"}[1h]) >= 2')) == simulated.hosts
    until("every host was scraped twice", settled, patience=10 * interval + PATIENCE)
    before, start = own_metrics(prometheus), time.time()
    watches = {"Prometheus": Watch(prometheus), "the simulated hosts": Watch(simulated)}
    time.sleep(60 * minutes)
    took, after = time.time() - start, own_metrics(prometheus)
    print(f"\n{simulated.hosts} hosts, scraped every {interval} s for {took:.0f} s, on {os.cpu_count()} CPUs")
    line("series in the head", f"{after['prometheus_tsdb_head_series']:,.0f}")
    appended = after["prometheus_tsdb_head_samples_appended_total"] - before["prometheus_tsdb_head_samples_appended_total"]
    line("samples a second, with those of the rules", f"{appended / took:,.0f}")
    line("failed scrapes", sum(v == 0 for v in prometheus.over('up{job="gpuprobe"}', start, time.time())))
    line("duration of a scrape, median and 99 % of hosts, s", " ".join(
        f"{prometheus.query(f'quantile({q}, scrape_duration_seconds)')[0][1]:.3f}" for q in (0.5, 0.99)))
    for what, watch in watches.items():
        line(f"{what}: CPUs", f"{watch.cores():.2f}")
    line("Prometheus: resident memory and its peak, MiB", " ".join(f"{watches['Prometheus'].mib(f):,.0f}" for f in ("VmRSS", "VmHWM")))
    resident = watches["Prometheus"].mib("VmRSS") * 2**20
    line("Prometheus: resident bytes a series", f"{resident / after['prometheus_tsdb_head_series']:,.0f}")


def rule_costs(prometheus):
    print("\nThe most expensive rules: seconds of an evaluation, series that it records")
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    for rule in sorted(rules, key=lambda rule: -rule["evaluationTime"])[:8]:
        recorded = prometheus.query(f"count({rule['name']})") if rule["type"] == "recording" else []
        line(f"  {rule['name']}", f"{rule['evaluationTime']:.2f} {recorded[0][1] if recorded else 0:.0f}")
    names = [rule["name"] for rule in rules if rule["type"] == "recording"]
    line("recorded series", f"{sum(v for name in names for _, v in prometheus.query(f'count({name})')):,.0f}")
    took = sum(rule["evaluationTime"] for rule in rules)
    line("evaluation of all rules one after the other, s", f"{took:.2f}")


def ask_timed(prometheus, query, is_instant, start, end):
    """(seconds, samples that were read, CPU time of Prometheus), or why not."""
    cpu = Watch.cpu(prometheus.process.pid)
    times, begun = {"time": end} if is_instant else {"start": start, "end": end, "step": STEP}, time.monotonic()
    try:
        data = prometheus.ask("query" if is_instant else "query_range", query=query, stats="true", timeout=f"{SLOWEST}s", **times)
    except AssertionError as error:
        return str(error).rsplit('"error":', 1)[-1].strip('"}\n ')
    took, cpu = time.monotonic() - begun, Watch.cpu(prometheus.process.pid) - cpu
    return took, data["stats"]["samples"]["totalQueryableSamples"], cpu


def query_costs(prometheus, minutes, patience):
    """Every query of every dashboard, over all hosts and over one."""
    end = time.time() - 5
    start, deadline = end - 60 * minutes, time.monotonic() + patience
    print(f"\nQueries of the dashboards over {minutes} minutes, a value every {STEP} s: seconds, samples read, CPU time, for one host and all")
    sums = collections.defaultdict(list)
    for path in repository.DASHBOARDS:
        for title, query, is_instant in repository.of_dashboard(path):
            row = []
            for instance in ("host-00007", ".*"):
                if time.monotonic() > deadline:
                    row.append("not asked: no time was left")
                    continue
                words = {"$instance": instance, "$gpu": ".*", "$process": ".*"}
                words |= {"$__rate_interval": f"{4 * STEP}s", "$__interval": f"{STEP}s", "$__range": f"{minutes}m"}
                text = query
                for variable, value in words.items():
                    text = text.replace(variable, value)
                row.append(ask_timed(prometheus, text, is_instant, start, end))
            name = os.path.basename(path).removesuffix(".json")
            sums[name].append(row)
            shown = ["{:8.3f} s {:>12,} {:>7.2f}".format(*cell) if isinstance(cell, tuple) else cell[:60] for cell in row]
            print(f"  {name:<16}{title:<28}{shown[0]}   {shown[1]}", flush=True)
    for name, rows in sums.items():
        for which, cells in zip(("one host", "all hosts"), zip(*rows)):
            asked = [cell for cell in cells if isinstance(cell, tuple)]
            print(f"  {name}, {which}: {len(asked)} of {len(cells)} queries answered", flush=True)
            if asked:
                seconds, samples, cpu = zip(*asked)
                line("    seconds: sum, median, slowest", f"{sum(seconds):.2f} {statistics.median(seconds):.3f} {max(seconds):.2f}")
                line("    samples read, CPU time of Prometheus in s", f"{sum(samples):,} {sum(cpu):.2f}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("probe", "standins", "binaries", "folder"):
        parser.add_argument(name)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--interval", type=int, default=30)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--query-seconds", type=int, default=300, help="the longest time for all queries")
    parser.add_argument("--without-rules", action="store_true")
    parser.add_argument("--recording", help="use this one and record none")
    parser.add_argument("--only-record", action="store_true")
    args = parser.parse_args()
    # so that what was started ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    shutil.rmtree(args.folder, ignore_errors=True)
    os.makedirs(args.folder)
    path = args.recording or f"{args.folder}.recording.json"
    if not args.recording:
        scrapes = recording.record(args.probe, args.standins, args.folder)
        with open(path, "w") as file:
            json.dump(scrapes, file)
    host = recording.load(path)
    describe(host)
    if args.only_record:
        return
    block(host, args.binaries, args.folder, args.interval)
    started = []
    try:
        started.append(simulated := Simulated(args.folder, path, args.hosts))
        config = config_of(simulated, args.interval, has_rules=not args.without_rules)
        started.append(prometheus := Prometheus(args.folder, args.binaries, config, "--query.timeout=2m"))
        ingest(prometheus, simulated, args.minutes, args.interval)
        if not args.without_rules:
            rule_costs(prometheus)
            query_costs(prometheus, args.minutes, args.query_seconds)
        line("Prometheus: peak of resident memory with the queries, MiB", f"{Watch(prometheus).mib('VmHWM'):,.0f}")
    finally:
        for process in reversed(started):
            process.end()


main()
