"""The commands of the book: blocks of Markdown pages, and how what a command prints is compared with its block."""

import re

# in a block: lines that are not shown, of any number
GAP = "..."
# what differs between two runs: addresses, times and sizes with their units, rates, shares, clock times, large numbers such as
# pids
VARYING = re.compile(
    r"0x[0-9a-f]+|\d+/\d+|\d\d:\d\d:\d\d(?:\.\d+)?"
    r"|[~+-]?\d[\d,]*(?:\.\d+)? ?(?:ns|us|ms|s|B|KiB|MiB|GiB|%)(?:/s)?(?!\w)"
    r"|[~+-]?\d[\d,]*\.\d+|\d{4,}|[▁▂▃▄▅▆▇█]+"
)
# the pid of the demo, which need not be a large number
PID = re.compile(r"(?<=\bdemo) +\d{3,}(?![\d/])")


class Block:
    """One command of a page, and the lines below it."""

    def __init__(self, page, line, command, expected):
        self.page, self.line, self.command, self.expected = page, line, command, expected

    def __str__(self):
        return f"{self.page}:{self.line}: {self.command}"


def code_blocks(text):
    """The type, the first line's number and the lines of each block."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        start = number + 1
        if line.startswith("```"):
            end = lines.index("```", start)
            yield line[3:], start + 1, lines[start:end]
            number = end + 1
        elif line.startswith("    ") and (number == 0 or not lines[number - 1]):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            yield "", number + 1, [each[4:] for each in lines[number:end]]
            number = end
        else:
            number += 1


def commands(page, text):
    """The commands with a prompt, with what they print."""
    for _, first, lines in code_blocks(text):
        starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
        for at, end in zip(starts, starts[1:] + [len(lines)]):
            expected = [line.rstrip() for line in lines[at + 1 : end]]
            while expected and not expected[-1]:
                expected.pop()
            yield Block(page, first + at, lines[at][2:], expected)


def invocations(page, text):
    """Every line of a block that runs gpuprobe: its number, and its words from the subcommand on."""
    for kind, first, lines in code_blocks(text):
        if kind in ("text", "toml", "json"):
            continue
        for at, line in enumerate(lines):
            line = re.sub(r"^\$ ", "", line)
            for part in re.split(r"(?:^|[|;] *)(?:sudo )?gpuprobe ", line)[1:]:
                # a comment follows after three spaces or a hash; the words of the observed command after two dashes
                words = re.split(r"   | # | -- |[|>;]", part)[0].split()
                yield f"{page}:{first + at}", words


def normal(line):
    """A line without what differs between two runs and machines."""
    line = re.sub(r"/[\w/.-]*/(workloads|examples)/", r"/src/\1/", line)
    return re.sub(r"\s+", " ", VARYING.sub("N", line)).strip()


def not_printed(expected, printed, varying=None):
    """The lines of a block that a live run did not print; None if it printed all. Their order and number may differ, because
    they depend on times, and so do the lines around them. `varying` is what else differs between two runs."""

    def form(line):
        line = re.sub(r" in [0-9a-f]{12}(?= )", "", line)  # the container in which the test runs
        line = PID.sub(" N", line)
        return normal(re.sub(varying, "N", line) if varying else line)

    printed = {form(line) for line in printed}
    return [line for line in expected if line != GAP and form(line) not in printed] or None


def difference(expected, printed, may_vary):
    """The first lines of a block that were not printed, or were printed and are not in the block; None if it matches."""
    form = normal if may_vary else str.rstrip
    printed = [form(line) for line in printed]
    while printed and not printed[-1]:
        printed.pop()
    at, may_skip, rest = 0, False, [form(line) for line in expected]
    while rest:
        if rest[0] == GAP:
            may_skip, rest = True, rest[1:]
            continue
        length = rest.index(GAP) if GAP in rest else len(rest)
        part, rest = rest[:length], rest[length:]
        places = range(at, len(printed) - length + 1) if may_skip else [at]
        if not rest and may_skip:
            # nothing follows in the block, so nothing may follow in the output
            places = [len(printed) - length]
        found = next((place for place in places if place >= at and printed[place : place + length] == part), None)
        if found is None:
            return part
        at, may_skip = found + length, False
    if not may_skip and at < len(printed):
        return ["(no more lines)"]
    return None
