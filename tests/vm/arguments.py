"""Part of check.py: arguments of calls, from registers, from the stack and from structs."""

# cudaMemcpyKind, as a trace names it
COPY_KINDS = ["H2H", "H2D", "D2H", "D2D", "Default"]
# the numbers of other names
NUMBERS = {"cudaDevAttrMultiProcessorCount": 16, "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 16,
           "cudaMemLocationTypeDevice": 1, "CU_MEM_LOCATION_TYPE_DEVICE": 1}


def arguments(check, tier):
    """Each line that the program printed is one call, in this order, with these arguments."""
    calls = sorted((c for c in check.trace() if "parent" not in c), key=lambda c: c["ts"])
    printed = check.said("out")
    check.equal("calls", [c["name"] for c in calls], [p["function"] for p in printed])
    check.equal("enough calls", len(printed) >= 30, True)
    for call, made in zip(calls, printed):
        check.equal(f"result of {call['name']}", call["ret"], made["ret"])
        found = call["args"]
        check.equal(f"arguments of {call['name']}", list(found), list(made["args"]))
        for name, value in made["args"].items():
            if not same(found.get(name), value):
                check.wrong.append(f"{call['name']} {name}: decoded {found.get(name)!r}, was given {value!r}")


def same(found, given):
    if isinstance(found, dict):
        return isinstance(given, list) and all(map(same, found.values(), given)) and len(found) == len(given)
    if isinstance(found, list):
        return isinstance(given, list) and all(map(same, found, given)) and len(found) == len(given)
    if isinstance(found, str) and isinstance(given, int):
        if found.startswith("0x"):
            return int(found, 16) == given
        return NUMBERS.get(found) == given or found in COPY_KINDS and COPY_KINDS.index(found) == given
    return found == given
