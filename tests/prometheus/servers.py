"""The programs of the test: the daemon, Prometheus, and workloads that print ledgers. Only processes started here are ended."""

import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

# longer than anything here takes on a busy machine
PATIENCE = 60
# seconds between two values of a range query
STEP = 2


def until(what, look, patience=PATIENCE):
    """Calls `look` until it returns something; fails with its last error."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if found := look():
                return found
            problem = "it did not happen"
        except (AssertionError, OSError) as error:
            problem = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}, within {patience} s: {problem}")
        time.sleep(0.2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process with a log file."""

    def __init__(self, log, command, **environment):
        self.log = log
        with open(log, "w") as file:
            files = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, **files)

    def output(self):
        with open(self.log) as file:
            return file.read()

    def runs(self):
        assert self.process.poll() is None, f"it exited with {self.process.returncode}: {self.output()}"

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        return self.process.returncode


class Daemon(Server):
    def __init__(self, log, probe, options, **environment):
        fixed = ["daemon", "--metrics-addr", "127.0.0.1:0", "--display-interval", "0", "--refresh", "0.5"]
        super().__init__(log, [probe, *fixed, *options], **environment)
        self.address = until("the daemon prints its address", self.printed_address)

    def printed_address(self):
        self.runs()
        found = re.search(r"http://(\S+)/metrics", self.output())
        return found and found[1]

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=PATIENCE) as answer:
            return answer.read().decode()


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


class Workload:
    """A program that prints its ledger in JSON, and continues when it receives a line."""

    def __init__(self, program, *words, **environment):
        self.name = os.path.basename(program)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([program, *words], env={**os.environ, **environment}, **pipes)
        self.pid = self.process.pid

    def ledger(self):
        line = self.process.stdout.readline()
        assert line, f"{self.name} exited with {self.process.wait()}"
        return json.loads(line)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)


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
