"""Reads OpenCL's headers, which have no enums: the names of constants are macros, grouped by comments with their type."""

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import sources
from collect import Catalogue, Reading, Row, _layout, _rows, _used_types
from parse import Declarations, Function, Source, is_pointer, measure, parse

NAME = re.compile(r"cl[A-Z]\w*")
GROUP = re.compile(r"/\*+ (\w+)(?: and \w+)?( - bitfield)?(?: - .*)? ?\*+/")
DEFINE = re.compile(r"#define\s+(CL_\w+)\s+(0x[0-9A-Fa-f]+|-?\d+|\(-\d+\))\s*(?:/\*.*)?")
# The comments above the error codes do not name their type.
ERRORS = {"Error Codes": "cl_int"}


def collect_opencl(cache: Path) -> Catalogue:
    """Reads every version of OpenCL, oldest first."""
    print("reading OpenCL", file=sys.stderr)
    folder = _headers(cache)
    versions: dict[str, dict[str, Function | None]] = {}
    for version in sources.OPENCL_VERSIONS:
        macros = (f"CL_TARGET_OPENCL_VERSION={version.replace('.', '')}0",)
        versions[version] = _functions(parse(Source(sources.OPENCL_HEADERS, (folder,), macros)))
    source = Source(sources.OPENCL_HEADERS + sources.OPENCL_EXTENSIONS, (folder,), macros)
    declared = parse(source)
    extensions = {name: f for name, f in _functions(declared).items() if name not in versions["3.0"]}
    rows = _rows(versions) + [Row(name, [], function) for name, function in extensions.items()]
    catalogue = Catalogue({"functions": rows})
    readings = [Reading(source, declared, default=True)]
    catalogue.structs = {name: _layout(name, readings) for name in sources.OPENCL_STRUCTS}
    catalogue.enums = _constants(folder)
    names = sorted(_used_types(catalogue))
    sizes = measure(source, [f"sizeof({name})" for name in names])
    for name, size in zip(names, sizes, strict=True):
        kind = _kind(name, declared, catalogue.enums)
        catalogue.types[name] = ("uint" if kind == "enum" and size != 4 else kind, size)
    used = {name for name, (kind, _) in catalogue.types.items() if kind == "enum"} | {"cl_int"}
    catalogue.enums = {name: values for name, values in catalogue.enums.items() if name in used}
    return catalogue


def _headers(cache: Path) -> Path:
    """The folder with CL/, downloaded as a Debian package if it is not in the cache."""
    name, version = sources.OPENCL_PACKAGE
    folder = cache / f"{name}-{version.replace('~', '-')}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as partial:
            subprocess.run(["apt-get", "-qq", "download", f"{name}={version}"], cwd=partial, check=True)
            (package,) = Path(partial).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, Path(partial) / "all"], check=True)
            (Path(partial) / "all/usr/include").rename(folder)
    return folder


def _functions(declared: Declarations) -> dict[str, Function]:
    return {name: _plain(function) for name, function in declared.functions.items() if NAME.fullmatch(name)}


def _plain(function: Function) -> Function:
    """Without the prototypes of callbacks: their commas would look like more arguments."""
    arguments = tuple(("void*" if "(" in kind else kind, name) for kind, name in function.arguments)
    return replace(function, arguments=arguments)


def _kind(name: str, declared: Declarations, enums: dict[str, dict[int, str]]) -> str:
    target = declared.resolve(name)
    if name == "size_t":
        return "size"
    if is_pointer(target):
        return "handle"
    if name in enums and name != "cl_int":
        return "enum"
    if target in ("float", "double"):
        return "float"
    return "uint" if target.startswith("unsigned") else "int"


def _constants(folder: Path) -> dict[str, dict[int, str]]:
    """The names of the values of each type, except bit fields. The first name of a value counts."""
    enums: dict[str, dict[int, str]] = {}
    for header in sources.OPENCL_HEADERS + sources.OPENCL_EXTENSIONS:
        kind = None
        for line in (folder / header).read_text().splitlines():
            if group := GROUP.match(line) or re.match(r"/\* (Error Codes) \*/", line):
                is_bitfield = len(group.groups()) > 1 and group[2]
                kind = None if is_bitfield else ERRORS.get(group[1], group[1])
            elif line.startswith("/*") or not line.strip() and kind == "cl_int":
                # other comments end a group; the error codes continue after an empty line
                kind = kind if kind == "cl_int" and not line.strip() else None
            elif kind and (constant := DEFINE.match(line)):
                value = int(constant[2].replace("(", "").replace(")", ""), 0)
                enums.setdefault(kind, {}).setdefault(value, constant[1])
    for value, name in sources.OPENCL_ERRORS.items():
        enums["cl_int"].setdefault(value, name)
    return {kind: values for kind, values in enums.items() if kind.startswith("cl_")}
