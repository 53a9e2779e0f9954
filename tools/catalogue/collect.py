"""Joins the declarations of all header versions with the exports of the libraries."""

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import sources
from exports import exported_functions
from fetch import fetch
from parse import Declarations, Function, Record, Source, is_builtin, is_pointer, measure, parse

DRIVER_NAME = re.compile(r"cu[A-Z]\w*")
RUNTIME_NAME = re.compile(r"cuda[A-Z]\w*")
COMPILER_NAME = re.compile(r"__cuda[A-Z]\w*")
NVML_NAME = re.compile(r"nvml[A-Z]\w*")
NCCL_NAME = re.compile(r"p?nccl[A-Z]\w*")


@dataclass
class Row:
    """One prototype of one name, with its versions. Without a function: exported, but not declared."""

    name: str
    versions: list[str]
    function: Function | None


@dataclass
class Catalogue:
    functions: dict[str, list[Row]] = field(default_factory=dict)
    types: dict[str, tuple[str, int]] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    structs: dict[str, tuple[int, list[tuple[int, int, str, str]]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """Headers and their declarations; used later to get sizes from clang."""

    source: Source
    declarations: Declarations
    # Whether this is the view that programs have. Other views add outdated types, and end markers to enums.
    default: bool


def collect(cache: Path) -> Catalogue:
    """Reads every version of every library, oldest first."""
    readings: list[Reading] = []
    tables: dict[str, dict[str, dict[str, Function | None]]] = {"driver": {}, "runtime": {}, "nvml": {}, "nccl": {}}
    for cuda in sources.CUDA:
        print(f"reading CUDA {cuda.short}", file=sys.stderr)
        library = fetch(cuda.runtime, cache)
        include = tuple(fetch(p, cache) / "include" for p in (cuda.runtime, cuda.compiler, cuda.profiler, cuda.nvml))

        views = [Source(sources.DRIVER_HEADERS, include, macros) for macros in sources.CUDA_VIEWS]
        tables["driver"][cuda.short] = _read(views, DRIVER_NAME, readings)

        views = [Source(sources.RUNTIME_HEADERS, include, macros) for macros in sources.CUDA_VIEWS]
        declared = _read(views, RUNTIME_NAME, readings)
        register = Source(sources.REGISTER_HEADERS, include, cplusplus=True, tolerant=True)
        launch = Source(sources.LAUNCH_HEADERS, include, sources.LAUNCH_MACROS, cplusplus=True, tolerant=True)
        declared |= _read([register, launch], COMPILER_NAME, None)
        (shared_object,) = (library / "lib").iterdir()
        names = [name for name in exported_functions(shared_object) if "cuda" in name]
        tables["runtime"][cuda.short] = {name: declared.get(name) for name in names}

        views = [Source(("nvml.h",), include, macros) for macros in sources.NVML_VIEWS]
        tables["nvml"][cuda.short] = _read(views, NVML_NAME, readings)

    (base,) = (cuda for cuda in sources.CUDA if cuda.short == sources.NCCL_CUDA)
    include = tuple(fetch(p, cache) / "include" for p in (sources.NCCL, base.runtime, base.compiler))
    # At the front of the list, so that the newest CUDA version decides about types that nccl.h only uses.
    nccl: list[Reading] = []
    tables["nccl"][sources.NCCL_SHORT] = _read([Source(("nccl.h",), include)], NCCL_NAME, nccl)
    readings = nccl + readings

    catalogue = Catalogue({table: _rows(versions) for table, versions in tables.items()})
    catalogue.functions["driver"] += [Row(name, [], None) for name in sources.DRIVER_WITHOUT_PROTOTYPE]
    describe(catalogue, sources.STRUCTS, readings)
    return catalogue


def describe(catalogue: Catalogue, structs: tuple[str, ...], readings: list[Reading]) -> None:
    """Adds the types that the functions use, and the structs."""
    catalogue.structs = {name: _layout(name, readings) for name in structs}
    catalogue.types = _types(_used_types(catalogue), readings)
    for name, (kind, _) in catalogue.types.items():
        if kind == "enum":
            catalogue.enums[name] = _union(name, readings)


def _read(views: list[Source], pattern: re.Pattern, readings: list[Reading] | None) -> dict[str, Function]:
    """The functions of all views; the first view is the default one."""
    functions: dict[str, Function] = {}
    for index, source in enumerate(views):
        declarations = parse(source)
        if readings is not None:
            # Types come from the last reading that has them, so default views go to the end and others to the front.
            readings.insert(0 if index else len(readings), Reading(source, declarations, index == 0))
        for name, function in declarations.functions.items():
            if pattern.fullmatch(name):
                functions.setdefault(name, function)
    return functions


def _rows(versions: dict[str, dict[str, Function | None]]) -> list[Row]:
    """One row for each prototype that a name has had, with the spelling and argument names of the newest header."""
    rows: dict[str, list[Row]] = {}
    for version, functions in versions.items():
        for name, function in functions.items():
            history = rows.setdefault(name, [])
            if not history or not _continues(history[-1].function, function):
                history.append(Row(name, [], None))
            history[-1].versions.append(version)
            history[-1].function = function and _named(name, function)
    return [row for history in rows.values() for row in history]


def _continues(older: Function | None, newer: Function | None) -> bool:
    # A library may export a name before its header declares it (`__cudaGetKernel` in 12.0): assumed to be the same.
    return older is None or (newer is not None and newer.same_as(older))


def _named(name: str, function: Function) -> Function:
    if all(argument for _, argument in function.arguments):
        return function
    if name not in sources.ARGUMENT_NAMES:
        raise SystemExit(f"{name} has arguments without a name: give them one in sources.py")
    kinds = (kind for kind, _ in function.arguments)
    return replace(function, arguments=tuple(zip(kinds, sources.ARGUMENT_NAMES[name], strict=True)))


def _used_types(catalogue: Catalogue) -> set[str]:
    used: set[str] = set()
    for rows in catalogue.functions.values():
        for row in rows:
            if row.function:
                used.update(kind for kind, _ in row.function.arguments)
                used.add(row.function.result)
    for _, members in catalogue.structs.values():
        used.update(kind for _, _, kind, _ in members)
    plain = {kind.removeprefix("const ") for kind in used}
    return {kind for kind in plain if not is_pointer(kind) and kind != "void" and not kind.endswith("]")}


def _newest(name: str, readings: list[Reading]) -> Reading:
    for reading in reversed(readings):
        if reading.declarations.knows(name):
            return reading
    raise SystemExit(f"no header declares the type {name}")


def _types(names: set[str], readings: list[Reading]) -> dict[str, tuple[str, int]]:
    types: dict[str, tuple[str, int]] = {}
    # Grouped by header, because clang reads the whole header for each query.
    for reading in reversed(readings):
        mine = sorted(name for name in names if name not in types and reading.declarations.knows(name))
        sizes = measure(reading.source, [f"sizeof({_tagged(name, reading.declarations)})" for name in mine])
        for name, size in zip(mine, sizes, strict=True):
            types[name] = (_kind(name, reading.declarations), size)
    if missing := names - types.keys():
        raise SystemExit(f"no header declares {', '.join(sorted(missing))}")
    return types


def _kind(name: str, declarations: Declarations) -> str:
    target = declarations.resolve(name)
    if name == "size_t":
        return "size"
    if name.startswith("CUdeviceptr"):
        return "devptr"
    if is_pointer(target):
        return "handle"
    if target in declarations.enums:
        return "enum"
    if target in declarations.records:
        return "struct"
    if target in ("float", "double"):
        return "float"
    return "uint" if target.startswith("unsigned") or target == "_Bool" else "int"


def _tagged(name: str, declarations: Declarations) -> str:
    """The name of the type in C."""
    if name in declarations.typedefs or is_builtin(name):
        return name
    if name in declarations.enums:
        return f"enum {name}"
    return ("union " if declarations.records[name].is_union else "struct ") + name


def _union(name: str, readings: list[Reading]) -> dict[int, str]:
    """The values of the enum in all versions, each with its newest name; within one header, the first name."""
    values: dict[int, str] = {}
    for reading in readings:
        if reading.default:
            entries = reading.declarations.enums.get(reading.declarations.resolve(name), [])
            values.update(reversed(entries))
    return values


def _layout(name: str, readings: list[Reading]) -> tuple[int, list[tuple[int, int, str, str]]]:
    reading = _newest(name, readings)
    declarations = reading.declarations
    tagged = _tagged(name, declarations)
    members = list(_members(declarations.records[declarations.resolve(name)], ""))
    questions = [f"sizeof({tagged})"]
    for _, path in members:
        questions += [f"__builtin_offsetof({tagged}, {path})", f"sizeof((({tagged} *)0)->{path})"]
    size, *answers = measure(reading.source, questions)
    places = zip(answers[::2], answers[1::2], members, strict=True)
    return size, [(offset, length, kind, path) for offset, length, (kind, path) in places]


def _members(record: Record, prefix: str):
    """Type and path of each member. Members of unnamed types replace the type; a union counts as its first member."""
    for kind, name, own in record.members[:1] if record.is_union else record.members:
        if own is None:
            yield kind, prefix + name
        else:
            yield from _members(own, f"{prefix}{name}." if name else prefix)
