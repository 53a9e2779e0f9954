"""Checks the manifests against the schemas of Kubernetes, and the chart against the plain manifest.

    manifests.py VERSION PLAIN CHART CHART_WITH_EVERYTHING
"""

import sys

import kubernetes_validate
import yaml

# kinds of the Prometheus operator, for which Kubernetes has no schema
OPERATORS = {"PodMonitor", "PrometheusRule"}


def read(path):
    with open(path) as file:
        return [document for document in yaml.safe_load_all(file) if document]


def problems(version, plain, chart, everything):
    for path in (plain, chart, everything):
        for document in read(path):
            if document["kind"] in OPERATORS:
                continue
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{path}: {document['kind']}: {error.message}"
    kinds = sorted(document["kind"] for document in read(everything))
    if kinds != sorted(["ServiceAccount", "DaemonSet", "ConfigMap", *OPERATORS]):
        yield f"the chart with everything has {kinds}"
    for field, ours in pod(chart).items():
        if pod(plain).get(field) != ours:
            yield f"{field} of the chart and of the plain manifest differ:\n{ours}\n{pod(plain).get(field)}"
    with open("packaging/prometheus/rules.yml") as file:
        rules = yaml.safe_load(file)
    if [document["spec"] for document in read(everything) if document["kind"] == "PrometheusRule"] != [rules]:
        yield "the chart's rules differ from packaging/prometheus/rules.yml"
    if [document["spec"]["podMetricsEndpoints"][0]["scheme"] for document in read(everything) if document["kind"] == "PodMonitor"] != ["https"]:
        yield "the PodMonitor does not use https"
    yield from of_web_config(pod(everything))
    container = pod(everything)["containers"][0]
    if "SYS_ADMIN" not in container["securityContext"]["capabilities"]["add"] or container["args"][-1] != "--memleak":
        yield f"settings of the chart have no effect: {container}"


def of_web_config(pod):
    """The web config must be mounted where --web-config expects it, and probes must not need a password."""
    container = pod["containers"][0]
    option = container["args"].index("--web-config") + 1
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volume = mounted.get(container["args"][option].rpartition("/")[0])
    if {"secretName": "web", "defaultMode": 0o400} not in [v["secret"] for v in pod["volumes"] if v["name"] == volume]:
        yield f"the secret is not mounted at {container['args'][option]}"
    for probe in ("readinessProbe", "livenessProbe"):
        if container[probe].get("tcpSocket") != {"port": "metrics"} or "httpGet" in container[probe]:
            yield f"{probe} needs a password: {container[probe]}"


def pod(path):
    """The pod's specification, without fields that only the chart has."""
    found = [document for document in read(path) if document["kind"] == "DaemonSet"]
    specification = found[0]["spec"]["template"]["spec"]
    specification["containers"][0].pop("imagePullPolicy", None)
    return specification


found = list(problems(*sys.argv[1:]))
print("\n".join(found) or "no problems")
sys.exit(bool(found))
