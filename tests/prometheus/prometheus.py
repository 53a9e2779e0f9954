"""Prometheus, and programs that run for less than a scrape interval."""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "shared"))
from checks import PATIENCE, until
from servers import Server

# seconds between two values of a range query
STEP = 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def each_second(target, rules):
    """The configuration of a Prometheus that scrapes one daemon."""
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "5s"},
        "rule_files": [os.path.abspath(rules)],
        "scrape_configs": [{"job_name": "gpuprobe", "static_configs": [{"targets": [target]}]}],
    }


class Prometheus(Server):
    def __init__(self, folder, binaries, config, *options):
        # JSON is YAML
        with open(f"{folder}/prometheus.yml", "w") as file:
            json.dump(config, file)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        # so that scrapes are not late on a busy machine
        command = ["nice", "-n", "-10", f"{binaries}/prometheus"]
        command += [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *options]
        super().__init__(f"{folder}/prometheus.log", command)
        until("Prometheus is ready", self.ready)

    def ready(self):
        self.runs()
        return urllib.request.urlopen(f"{self.url}/-/ready", timeout=PATIENCE).status == 200

    def ask(self, path, **words):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from error

    def query(self, query, **words):
        """(labels, value) of each series now."""
        return [(row["metric"], float(row["value"][1])) for row in self.ask("query", query=query, **words)["result"]]

    def by(self, label, query):
        '''Values by one label; a series without the label has the key "".'''
        return {labels.get(label, ""): value for labels, value in self.query(query)}

    def over(self, query, start, end):
        """All values of all series in a time range."""
        rows = self.ask("query_range", query=query, start=start, end=end, step=STEP)["result"]
        return [float(value) for row in rows for _, value in row["values"]]


class ShortLived:
    """A program that is run again and again, each time shorter than the scrape interval, and the ledgers of all its runs."""

    def __init__(self, program, *words, pause):
        self.command, self.pause = [program, *words], pause
        self.runs, self.problem = [], None
        self.is_stopped = threading.Event()
        self.thread = threading.Thread(target=self.repeat, daemon=True)
        self.thread.start()

    def repeat(self):
        while not self.problem and not self.is_stopped.wait(self.pause):
            done = subprocess.run(self.command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                self.problem = f"{self.command[0]} exited with {done.returncode}: {done.stderr}"
            else:
                self.runs.append(json.loads(done.stdout))

    def ledgers(self):
        """The ledgers of all runs. Stops running the program."""
        self.end()
        assert not self.problem, self.problem
        return self.runs

    def end(self):
        self.is_stopped.set()
        self.thread.join(PATIENCE)
