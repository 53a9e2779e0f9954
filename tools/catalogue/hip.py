"""The headers of HIP, and the names that its library exports."""

import re
from dataclasses import replace
from pathlib import Path

import sources
from exports import exported_functions
from fetch import fetch
from parse import Declarations, Source, parse

# `typedef RESULT (*t_NAME)(ARGUMENTS);`
POINTER = re.compile(r"^typedef ([^;()]+?)\(\*t_(\w+)\)\(([^;]*)\);", re.MULTILINE)
HIP_NAME = re.compile(r"(?:_Z\d+|__)?hip(?!rtc)[A-Z]\w*")


def read(version: sources.Hip, cache: Path) -> tuple[Source, Declarations, set[str]]:
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
