"""What the dashboard and the rules ask, and which metrics they name."""

import json
import re

import yaml

METRIC = re.compile(r"\b(?:gpuprobe|process)_[a-z0-9_]+\b")
RECORDED = re.compile(r"\b[a-z_]+:[a-z0-9_:]+\b")
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
# names of labels, which look like names of metrics
LISTS = re.compile(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)")
SUFFIXES = ("_bucket", "_sum", "_count")
# what the dashboard and the rules know of, and the daemon serves where NVML is at hand
COMING = {
    "gpuprobe_gpu_clock_hertz",
    "gpuprobe_gpu_ecc_errors_total",
    "gpuprobe_gpu_memory_total_bytes",
    "gpuprobe_gpu_memory_used_bytes",
    "gpuprobe_gpu_pcie_bytes_per_second",
    "gpuprobe_gpu_power_watts",
    "gpuprobe_gpu_process_memory_bytes",
    "gpuprobe_gpu_temperature_celsius",
    "gpuprobe_gpu_throttled",
    "gpuprobe_gpu_utilization_ratio",
    "gpuprobe_memory_unexplained_bytes",
    "gpuprobe_xid_errors_total",
}


def of_dashboard(path):
    """(title of the panel, query, whether it asks for one moment) of every query."""
    with open(path) as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target.get("instant", False)


def of_rules(path):
    """(name, query) of every rule."""
    with open(path) as file:
        groups = yaml.safe_load(file)["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        yield rule.get("record") or rule["alert"], rule["expr"]


def metrics_of(query):
    """The metrics that a query names, as a histogram is called in the table."""
    bare = LISTS.sub("", RECORDED.sub("", TEXT.sub("", query)))
    return {stem(name) for name in METRIC.findall(bare)}


def stem(name):
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def served(page):
    """The metrics that there are, by the page that is made of their table."""
    with open(page) as file:
        return set(re.findall(r"^\| `((?:gpuprobe|process)_\w+)` \|", file.read(), re.M))
