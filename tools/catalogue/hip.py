"""Reads the headers of HIP, and the names that its library exports."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import sources
from collect import Catalogue, Reading, _rows, describe
from exports import exported_functions
from fetch import fetch
from parse import Declarations, Function, Source, parse

# `typedef RESULT (*t_NAME)(ARGUMENTS);`
POINTER = re.compile(r"^typedef ([^;()]+?)\(\*t_(\w+)\)\(([^;]*)\);", re.MULTILINE)
HIP_NAME = re.compile(r"(?:_Z\d+|__)?hip(?!rtc)[A-Z]\w*")


def collect_hip(cache: Path) -> Catalogue:
    """Reads every version of HIP, oldest first."""
    versions: dict[str, dict[str, Function | None]] = {}
    readings: list[Reading] = []
    for version in sources.HIP:
        print(f"reading HIP {version.short}", file=sys.stderr)
        source, declarations, names = _read(version, cache)
        readings.append(Reading(source, declarations, True))
        others = sources.HIP_OTHER_STRUCTS.get(version.short, {})
        functions = {name: declarations.functions.get(name) for name in sorted(names)}
        versions[version.short] = {name: _renamed(function, others) for name, function in functions.items()}
    # Later versions declare the C++ functions as C functions with the same arguments.
    newest = versions[sources.HIP[-1].short]
    for functions in versions.values():
        functions |= {name: newest[plain] for name, plain in sources.HIP_CPLUSPLUS.items() if name in functions}
    catalogue = Catalogue({"functions": _rows(versions)})
    describe(catalogue, sources.HIP_STRUCTS, readings)
    return catalogue


def _renamed(function: Function | None, others: dict[str, str]) -> Function | None:
    """The prototype with other names for some structs, so that it differs from that of other versions."""
    if function is None:
        return None

    def rename(kind: str) -> str:
        return re.sub(r"\w+", lambda word: others.get(word[0], word[0]), kind)

    arguments = tuple((rename(kind), name) for kind, name in function.arguments)
    types = tuple((rename(spelled), rename(followed)) for spelled, followed in function.types)
    return replace(function, arguments=arguments, types=types)


def _read(version: sources.Hip, cache: Path) -> tuple[Source, Declarations, set[str]]:
    """What clang has to read for a version, what it declares, and the names of the library's functions."""
    include = fetch(version.headers, cache) / "include"
    names = tuple(header for header in sources.HIP_HEADERS if (include / header).exists())
    dispatch = include / sources.HIP_DISPATCH
    pointers = POINTER.findall(dispatch.read_text()) if dispatch.exists() else []
    if version.library:
        (shared_object,) = (fetch(version.library, cache) / "lib").rglob("libamdhip64.so.*")
        exports = exported_functions(shared_object)
    else:
        exports = {name for _, name, _ in pointers}
    headers = Source(names, (include,), sources.HIP_MACROS)
    source = replace(headers, declarations=_declarations(pointers, parse(headers)))
    return source, parse(source), {name for name in exports if HIP_NAME.fullmatch(name)}


def _declarations(pointers: list[tuple[str, str, str]], declared: Declarations) -> str:
    """The prototypes that only the table of functions has, as C declares functions."""
    types = [name for name in sources.HIP_OPAQUE if not declared.knows(name)]
    opaque = "".join(f"typedef struct {name} {name};\n" for name in types)
    missing = [pointer for pointer in pointers if pointer[1] not in declared.functions]
    # Macros replace a few outdated functions in programs; the library still exports them.
    opaque += "".join(f"#undef {name}\n" for _, name, _ in missing)
    return opaque + "".join(f"{result} {name}({arguments});\n" for result, name, arguments in missing)
