"""Stops the receiver of a daemon for a while, and prints what the daemon says and counts:

    outage.py SECONDS GPUPROBE STANDINS FOLDER

The daemon pushes every second, and keeps 240 requests. What it drops in a longer outage must be as many points as the
pushes that are missing. `tests/otlp/run outage SECONDS` runs it; the results of a minute and of five are in docs/guides/otlp.md.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "shared"))
from check import SECOND, Scraper, counted, points_of, pushes, same_delivered
from checks import Checks, eventually, until
from receiver import METRICS, Receiver
from servers import Daemon, Workload, stage


def gap_is_counted(receiver, daemon):
    """Pushes are missing only as far as their points are counted as dropped."""
    by_time = pushes(receiver)
    sizes = {sum(1 for request in requests for _ in points_of(request)) for _, requests in by_time}
    dropped = counted(daemon)["gpuprobe_otlp_dropped_total", "metrics", "queue"]
    times = [at / SECOND for at, _ in by_time]
    missing = max(b - a for a, b in zip(times, times[1:])) - 1
    print(f"{len(by_time)} pushes, {dropped:.0f} points dropped, {min(sizes)} to {max(sizes)} in a push; longest gap {missing + 1:.1f} s")
    # a push comes up to half a second late, and their sizes differ
    least, most = min(sizes) * (missing * 0.8 - 1), max(sizes) * (missing * 1.2 + 1)
    assert least <= dropped <= most, f"{dropped} points for a gap of {missing} s"


def main(seconds, probe, standins, folder):
    check, started = Checks(), []
    options = stage(standins, folder, {"otlp_ledger": "ledger"})
    receiver = Receiver()
    try:
        to = ["--otlp", f"http://127.0.0.1:{receiver.port}", "--otlp-interval", "1"]
        started.append(daemon := Daemon(f"{folder}/daemon.log", probe, [*options, *to], STANDIN_NVML=f"{folder}/nvml"))
        started.append(ledger := Workload(f"{folder}/otlp_ledger", "--wait", "--threads", "1", "--calls", "1000"))
        ledger.ledger()
        scraper = Scraper(daemon)
        until("a push", lambda: len(receiver.seen(METRICS, 200)) > 3)
        receiver.stop()
        print(f"the receiver is down for {seconds} s")
        time.sleep(int(seconds))
        check("/metrics meanwhile", scraper.is_quick)
        counts = counted(daemon)
        for name in ("gpuprobe_otlp_waiting", "gpuprobe_otlp_requests_total", "gpuprobe_otlp_dropped_total"):
            print(name, *(f"{' '.join(labels[1:])} {value:.0f}" for (of, *labels), value in counts.items() if of == name and labels[0] == "metrics"))
        receiver.start()
        begun = time.monotonic()
        # the wait between two attempts is up to a minute
        eventually(same_delivered, daemon, receiver, patience=90)
        print(f"all that waited is there {time.monotonic() - begun:.0f} s after the receiver is up")
        check("what is missing is counted", gap_is_counted, receiver, daemon)
        check("/metrics in all that time", scraper.is_quick)
        scraper.end()
        print(*(line for line in daemon.output().splitlines() if "OTLP" in line), sep="\n")
    except AssertionError as error:
        check.fail(error)
    finally:
        for process in reversed(started):
            process.end()
        receiver.end()
    check.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
