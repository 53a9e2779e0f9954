"""Part of check.py: GPU errors, and faults and migrations of unified memory."""

import re

# the source of GPU errors, as `run` and the daemon print it, and as `trace` prints it
BY_TRACEPOINT = "GPU errors (XIDs): by the NVIDIA kernel module's tracepoint nvidia:nvidia_dev_xid"
BY_FUNCTION = "GPU errors (XIDs): by the NVIDIA kernel module's function nv_report_error ({}): it has no tracepoint"
SOURCES = {"tracepoint": (BY_TRACEPOINT, BY_TRACEPOINT),
         "function": (BY_FUNCTION.format("fentry"), BY_FUNCTION.format("kprobe"))}
# the errors that the stand-in reports, with their meanings
MEANINGS = {31: "an address that is not valid on the GPU", 79: "the GPU has fallen off the bus"}


def errors(check, source):
    """GPU errors: code, PCI address, message, processes, and the failed calls around them."""
    pid, opener = check.said("out")[-1]["pid"], int(check.text("opener"))
    message = f"pid='{pid}', name=program, Ch 00000008, intr 00000010. MMU Fault: ENGINE GRAPHICS HUBCLIENT_HOST"
    users = [{"pid": pid, "process": "program", "evidence": "named"},
             {"pid": opener, "process": "sleep", "evidence": "opened"}]
    unified(check, pid, source)
    for name in ["trace.jsonl", "live.jsonl"]:
        found = [line for line in check.said(name) if "xid" in line]
        check.equal(f"errors in {name}", [(e["xid"], e["pci"], e["message"]) for e in found],
                    [(number, "0000:00:02.0", message) for number in MEANINGS])
        check.equal(f"processes in {name}", [e["processes"] for e in found], [users, users])
        for error in found:
            check.contains(f"meaning of {error['xid']}", error["meaning"], MEANINGS[error["xid"]])
    blocks = re.split(r"^  at .* XID ", check.text("err"), flags=re.MULTILINE)[1:]
    check.equal("errors in the summary", [int(block.split()[0]) for block in blocks], list(MEANINGS))
    around = [re.findall(r"failed .* (before|after): (\d+) (\w+) (\w+)", block) for block in blocks]
    failed = [(str(pid), "cuMemAlloc_v2", "CUDA_ERROR_INVALID_VALUE")]
    times = [["before", "after", "after"], ["before", "before", "after"]]
    check.equal("calls that failed", around, [[(when, *failed[0]) for when in some] for some in times])
    own, live = SOURCES[source]
    check.contains("run", check.text("err"), own)
    check.contains("trace", check.text("live"), live)
    check.contains("daemon", check.text("daemon"), own)
    counted = dict(re.findall(r'^gpuprobe_xid_errors_total\{gpu="0",xid="(\d+)"\} (\d+)$', check.text("metrics"),
                              re.MULTILINE))
    check.equal("counted", counted, {str(number): "1" for number in MEANINGS})
    printed = [line for line in check.text("daemon").splitlines() if "XID " in line]
    check.equal("printed by the daemon", len(printed), len(MEANINGS))
    for line in printed:
        check.contains("the daemon's line", line, f"program {pid} (named by the driver); sleep {opener} (had that GPU open)")


def unified(check, pid, source):
    """Faults and migrations of unified memory, by the owner of the memory. Most come from a kernel thread."""
    touches = check.said("out")[-1]["touches"]
    check.trace(lost={"owner_unknown": touches})
    expected = {"pid": pid, "cpu_faults": touches, "gpu_faults": 3 * touches,
                "to_gpu": {"migrations": 2 * touches, "bytes": touches * (3 << 20)},
                "to_cpu": {"migrations": touches, "bytes": touches * (64 << 10)},
                "between_gpus": {"migrations": touches, "bytes": touches * 4096}}
    for name in ["trace.jsonl", "live.jsonl"]:
        check.equal(f"unified memory in {name}", check.said(name)[-1].get("unified"), [expected])
    samples = re.findall(r'^gpuprobe_unified_(\w+)\{.*pid="(\d+)".*(?:kind|processor)="(\w+)"\} (\d+)$',
                         check.text("metrics"), re.MULTILINE)
    counted = {(metric, of): int(value) for metric, of_pid, of, value in samples if int(of_pid) == pid}
    check.equal("unified memory in metrics", counted, {
        ("faults_total", "cpu"): touches, ("faults_total", "gpu"): 3 * touches,
        ("migrations_total", "H2D"): 2 * touches, ("migrated_bytes_total", "H2D"): touches * (3 << 20),
        ("migrations_total", "D2H"): touches, ("migrated_bytes_total", "D2H"): touches * (64 << 10),
        ("migrations_total", "D2D"): touches, ("migrated_bytes_total", "D2D"): touches * 4096,
    })
    words = "faults and migrations of unified memory by "
    check.contains("run", check.text("err"), words + "fentry")
    check.contains("trace", check.text("live"), words + ("kprobe" if source == "function" else "fentry"))
