"""What a push must contain, made from the text of /metrics by the rules and the tables of docs/guides/otlp.md."""

import re
from dataclasses import dataclass, field

DOCS = "docs/guides/otlp.md"
UNITS = {"bytes": "By", "seconds": "s", "ratio": "1", "celsius": "Cel", "watts": "W", "joules": "J", "hertz": "Hz"}
RATES = {"gpuprobe_gpu_traffic_bytes_per_second", "gpuprobe_gpu_pcie_bytes_per_second"}
INTEGERS = {"process.pid", "http.response.status_code"}
# counters that are older than the daemon, besides those of the semantic conventions
OLDER = {"gpuprobe.gpu_ecc_lifetime_errors", "gpuprobe.gpu_pcie_replays", "hw.energy", "hw.errors"}


def tables():
    """The rows of the tables of the page, by the heading of their first column."""
    found, heading = {}, None
    with open(DOCS) as page:
        for line in page:
            if not line.startswith("|"):
                heading = None
                continue
            cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
            if heading is None:
                heading = cells[0]
                found[heading] = []
            elif not set(cells[0]) <= set("-"):
                found[heading].append(cells)
    return found


@dataclass
class Point:
    kind: str
    unit: str
    value: float = None
    buckets: list = field(default_factory=list)
    bounds: list = field(default_factory=list)
    sum: float = None
    count: int = None


def unescaped(text):
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


def samples(text):
    """Name, labels and value of each line, with the type of its metric."""
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        name, _, rest = re.match(r"([a-z_]+)(\{(.*)\})? ", line).group(1, 2, 3)
        labels = {key: unescaped(value) for key, value in re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', rest or "")}
        metric = name
        if name not in kinds:
            metric = re.sub("_(bucket|sum|count)$", "", name)
        yield name, metric, labels, float(line.rsplit(" ", 1)[1]), kinds[metric]


class Expected:
    def __init__(self, text):
        pages = tables()
        self.conventions = {row[0]: row[1:] for row in pages["metric"]}
        self.attributes = {label: attribute for label, attribute in pages["label"]}
        self.points, self.gpus = {}, {}
        lines = list(samples(text))
        for name, _, labels, _, _ in lines:
            if name == "gpuprobe_gpu_info" and "uuid" in labels:
                self.gpus[labels["gpu"]] = labels["uuid"]
        for line in lines:
            self.add(*line)
        for point in self.points.values():
            # they are cumulative in the text
            point.buckets = [n - before for n, before in zip(point.buckets, [0, *point.buckets])]

    def add(self, name, metric, labels, value, kind):
        le = labels.pop("le", None)
        otel, unit, shape, fixed = self.named(metric, kind)
        key = (otel, frozenset({**fixed, **self.of_labels(labels)}.items()))
        point = self.points.setdefault(key, Point(shape, unit))
        if le is not None:
            point.buckets.append(int(value))
            if le != "+Inf":
                point.bounds.append(float(le))
        elif kind != "histogram":
            point.value = value
        elif name.endswith("_sum"):
            point.sum = value
        else:
            point.count = int(value)

    def named(self, metric, kind):
        if metric in self.conventions:
            name, unit, shape, fixed = self.conventions[metric]
            pairs = [pair.strip("`").split("=") for pair in fixed.split()]
            return name, unit, shape, dict(pairs)
        family = metric.removesuffix("_total") if kind == "counter" else metric
        unit = "By/s" if family in RATES else UNITS.get(family.rsplit("_", 1)[1], "")
        shape = {"counter": "Counter", "gauge": "Gauge", "histogram": "Histogram"}[kind]
        return "gpuprobe." + family.removeprefix("gpuprobe_"), unit, shape, {}

    def of_labels(self, labels):
        out = {}
        for label, value in labels.items():
            key = self.attributes.get(label, f"gpuprobe.{label}")
            if value:
                out[key] = int(value) if key in INTEGERS else value
        if "uuid" in labels or "name" in labels:
            out["hw.type"] = "gpu"
        if "uuid" not in labels and "numbering" not in labels and labels.get("gpu") in self.gpus:
            out["hw.id"] = self.gpus[labels["gpu"]]
        return out
