"""The queries of the dashboards and the rules, and the metrics they use."""

import glob
import json
import re

import yaml

DASHBOARDS = sorted(glob.glob("packaging/grafana/*.json"))
METRIC = re.compile(r"\b(?:gpuprobe|process)_[a-z0-9_]+\b")
RECORDED = re.compile(r"\b[a-z_]+:[a-z0-9_:]+\b")
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
# lists of labels, whose names look like those of metrics
LISTS = re.compile(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)")
# ranges of subqueries have a colon
RANGES = re.compile(r"\[[^]]*\]")
SUFFIXES = ("_bucket", "_sum", "_count")


def of_dashboard(path):
    """(title of the panel, query, whether it is an instant query) of every query."""
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
    """The metrics that a query uses; a histogram by its family name."""
    bare = LISTS.sub("", RECORDED.sub("", TEXT.sub("", query)))
    return {stem(name) for name in METRIC.findall(bare)}


def recorded_in(query):
    """The names of recorded series that a query uses."""
    return set(RECORDED.findall(RANGES.sub("", TEXT.sub("", query))))


def stem(name):
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def served(page):
    """All metrics, from the generated page docs/reference/metrics.md."""
    with open(page) as file:
        return set(re.findall(r"^\| `((?:gpuprobe|process)_\w+)` \|", file.read(), re.M))
