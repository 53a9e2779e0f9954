"""Checks the dashboards, and that they, the rules and docs/reference/dcgm.md use only metrics that exist."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "prometheus"))
import queries

RULES = "packaging/prometheus/rules.yml"
COMPARISON = "docs/reference/dcgm.md"
# variables of Grafana itself
BUILT_IN = {"__rate_interval", "__interval", "__range"}
WIDTH = 24


def problems_of(path):
    with open(path) as file:
        text = file.read()
    dashboard = json.loads(text)
    panels = dashboard["panels"]
    if len({panel["id"] for panel in panels}) != len(panels):
        yield "two panels have the same id"
    defined = {variable["name"] for variable in dashboard["templating"]["list"]} | BUILT_IN
    for variable in sorted(set(re.findall(r"\$\{?(\w+)", text)) - defined - {"__all"}):
        yield f"${variable} is not defined"
    for uid in sorted(set(re.findall(r'"uid": "([^"]*)"', text)) - {"${datasource}", dashboard["uid"]}):
        yield f"a fixed data source: {uid}"
    yield from (f"{a} and {b} overlap" for a, b in overlaps(panels))
    for panel in (panel for panel in panels if panel["type"] != "row"):
        if not panel["targets"] or not panel["description"].endswith("."):
            yield f"{panel['title']} has no query or no description"


def problems():
    for path in queries.DASHBOARDS:
        yield from (f"{path}: {problem}" for problem in problems_of(path))
    known = queries.served("docs/reference/metrics.md")
    used = [(title, query) for path in queries.DASHBOARDS for title, query, _ in queries.of_dashboard(path)]
    for title, query in used + list(queries.of_rules(RULES)):
        for name in sorted(queries.metrics_of(query) - known):
            yield f"{title} uses {name}, which docs/reference/metrics.md does not have"
    for name in sorted({queries.stem(name) for name in queries.METRIC.findall(pathlib.Path(COMPARISON).read_text())} - known):
        yield f"{COMPARISON} names {name}, which docs/reference/metrics.md does not have"
    recorded = {name for name, _ in queries.of_rules(RULES)}
    for title, query in used + list(queries.of_rules(RULES)):
        for name in sorted(queries.recorded_in(query) - recorded):
            yield f"{title} uses {name}, which no rule records"


def overlaps(panels):
    """Titles of panels that overlap or exceed the width of the page."""
    taken = {}
    for panel in panels:
        position = panel["gridPos"]
        for x in range(position["x"], position["x"] + position["w"]):
            for y in range(position["y"], position["y"] + position["h"]):
                if x >= WIDTH or (x, y) in taken:
                    return [(panel["title"], taken.get((x, y), "the edge"))]
                taken[x, y] = panel["title"]
    return []


found = list(problems())
print("\n".join(found) or "no problems")
sys.exit(bool(found))
