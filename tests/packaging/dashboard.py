"""The form of the dashboard, and that it and the rules name only metrics that there are."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "prometheus"))
import queries

DASHBOARD = "packaging/grafana/gpuprobe.json"
RULES = "packaging/prometheus/rules.yml"
# of Grafana itself
BUILT_IN = {"__rate_interval", "__interval", "__range"}
WIDTH = 24


def problems():
    with open(DASHBOARD) as file:
        text = file.read()
    dashboard = json.loads(text)
    panels = dashboard["panels"]
    if len({panel["id"] for panel in panels}) != len(panels):
        yield "two panels have the same id"
    defined = {variable["name"] for variable in dashboard["templating"]["list"]} | BUILT_IN
    for variable in sorted(set(re.findall(r"\$\{?(\w+)", text)) - defined - {"__all"}):
        yield f"${variable} is not defined"
    for uid in sorted(set(re.findall(r'"uid": "([^"]*)"', text)) - {"${datasource}", dashboard["uid"]}):
        yield f"a data source of somebody's own: {uid}"
    yield from (f"{a} and {b} overlap" for a, b in overlaps(panels))
    for panel in (panel for panel in panels if panel["type"] != "row"):
        if not panel["targets"] or not panel["description"].endswith("."):
            yield f"{panel['title']} asks nothing, or does not say what it shows"
    known = queries.served("docs/metrics.md")
    asked = [(title, query) for title, query, _ in queries.of_dashboard(DASHBOARD)]
    for title, query in asked + list(queries.of_rules(RULES)):
        for name in sorted(queries.metrics_of(query) - known):
            yield f"{title} names {name}, which docs/metrics.md does not have"
    recorded = {name for name, _ in queries.of_rules(RULES)}
    for title, query in queries.of_rules(RULES):
        for name in sorted(set(queries.RECORDED.findall(query)) - recorded):
            yield f"{title} names {name}, which no rule records"


def overlaps(panels):
    """Titles of panels that lie on each other, or stand out of the page."""
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if x >= WIDTH or (x, y) in taken:
                    return [(panel["title"], taken.get((x, y), "the edge"))]
                taken[x, y] = panel["title"]
    return []


found = list(problems())
print("\n".join(found) or "nothing is wrong")
sys.exit(bool(found))
