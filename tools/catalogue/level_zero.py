"""Reads the headers of Level Zero. Its structs, enums and handles all have a name of their own, so nothing is special."""

import re
import sys
from pathlib import Path

import sources
from collect import Catalogue, Reading, _rows, describe
from fetch import fetch
from parse import Source, parse

NAME = re.compile(r"ze[A-Z]\w*")


def collect_level_zero(cache: Path) -> Catalogue:
    """Reads every version of Level Zero, oldest first."""
    versions = {}
    readings: list[Reading] = []
    for version in sources.LEVEL_ZERO:
        print(f"reading Level Zero {version.short}", file=sys.stderr)
        source = Source(sources.LEVEL_ZERO_HEADERS, (fetch(version.headers, cache) / "include",))
        declarations = parse(source)
        readings.append(Reading(source, declarations, default=True))
        functions = declarations.functions.items()
        versions[version.short] = {name: function for name, function in functions if NAME.fullmatch(name)}
    catalogue = Catalogue({"functions": _rows(versions)})
    describe(catalogue, sources.LEVEL_ZERO_STRUCTS, readings)
    for values in catalogue.enums.values():
        # the last name of each enum makes it 32 bits wide
        values.pop(0x7FFFFFFF, None)
    return catalogue
