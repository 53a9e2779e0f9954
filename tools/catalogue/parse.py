"""Reads headers with clang: the functions, types and enums they declare, and their sizes."""

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from sources import STAND_INS

# Words that clang adds to a type and the tables omit.
NOISE = re.compile(r"\b(?:(?:struct|union|enum) |(?:__)?restrict\b)")
BUILTIN = re.compile(r"(?:signed |unsigned )?(?:char|short|int|long|long long|__int128)|float|double|_?Bool|bool")


@dataclass(frozen=True)
class Function:
    """A prototype, with types spelled as in the tables."""

    result: str
    arguments: tuple[tuple[str, str], ...]
    # Result and arguments again: as spelled but without const, and with typedefs resolved.
    types: tuple[tuple[str, str], ...] = ()

    def same_as(self, other: "Function") -> bool:
        """Whether a caller of one can call the other. Headers sometimes rename the typedef, sometimes its struct."""
        if len(self.types) != len(other.types):
            return False
        pairs = zip(self.types, other.types, strict=True)
        return all(mine[0] == others[0] or mine[1] == others[1] for mine, others in pairs)


@dataclass
class Record:
    """A struct or union: its members in order. A member of an unnamed type carries that type's record."""

    is_union: bool
    members: list[tuple[str, str, "Record | None"]] = field(default_factory=list)


@dataclass
class Declarations:
    functions: dict[str, Function] = field(default_factory=dict)
    typedefs: dict[str, str] = field(default_factory=dict)
    enums: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    def resolve(self, spelled: str) -> str:
        """Resolves typedefs to a tag's name, a builtin, or a pointer."""
        while spelled in self.typedefs and self.typedefs[spelled] != spelled:
            spelled = self.typedefs[spelled]
        return spelled

    def knows(self, spelled: str) -> bool:
        target = self.resolve(spelled)
        return is_pointer(target) or target in self.enums or target in self.records or is_builtin(target)


@dataclass(frozen=True)
class Source:
    """The input of clang: headers, include folders, and macros."""

    headers: tuple[str, ...]
    include: tuple[Path, ...]
    macros: tuple[str, ...] = ()
    cplusplus: bool = False
    # The compiler's headers contain inline bodies that only nvcc can compile; clang reports them and continues.
    tolerant: bool = False
    # C text after the headers.
    declarations: str = ""

    def clang(self, arguments: list[str], tail: str = "") -> str:
        text = "".join(f"#include <{header}>\n" for header in self.headers) + self.declarations + tail
        with tempfile.TemporaryDirectory() as folder:
            for name, stand_in in STAND_INS.items():
                path = Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(stand_in)
            command = ["clang", "--target=x86_64-linux-gnu", "-x", "c++" if self.cplusplus else "c", "-w"]
            command += ["-ferror-limit=0", *(f"-D{macro}" for macro in self.macros)]
            # The replacement headers come first, so that the result does not depend on installed ones.
            command += [f"-I{path}" for path in (folder, *self.include)]
            done = subprocess.run([*command, *arguments, "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode and not self.tolerant:
            raise SystemExit(f"clang could not read {', '.join(self.headers)}:\n{done.stderr[:2000]}")
        return done.stdout


def parse(source: Source) -> Declarations:
    """All declarations that the headers of `source` make with C linkage."""
    tree = json.loads(source.clang(["-fsyntax-only", "-Xclang", "-ast-dump=json"]))
    found = Declarations()
    unnamed: dict[str, str] = {}
    _read_scope(tree, found, unnamed)
    for name, function in found.functions.items():
        plain = [_without_const(kind) for kind in (function.result, *(kind for kind, _ in function.arguments))]
        found.functions[name] = replace(function, types=tuple((kind, _followed(kind, found)) for kind in plain))
    return found


def measure(source: Source, expressions: list[str]) -> list[int]:
    """The values of constant C expressions after the headers of `source`."""
    if not expressions:
        return []
    tail = "unsigned long long measured[] = {%s};\n" % ", ".join(expressions)
    assembly = source.clang(["-S", "-o", "-"], tail)
    values = assembly.split("\nmeasured:", 1)[1].split(".size", 1)[0]
    numbers = []
    for directive, number in re.findall(r"^\s+\.(quad|zero)\s+(\d+)", values, re.MULTILINE):
        # The assembler's short form for a sequence of zeroes.
        numbers += [0] * (int(number) // 8) if directive == "zero" else [int(number)]
    if len(numbers) != len(expressions):
        raise SystemExit(f"measured {len(numbers)} of {len(expressions)} sizes")
    return numbers


def is_pointer(spelled: str) -> bool:
    return spelled.endswith("*") or "(*" in spelled


def is_builtin(spelled: str) -> bool:
    return BUILTIN.fullmatch(spelled) is not None


def spell(clang_type: str) -> str:
    """clang's spelling of a type as the tables have it: no tags, no restrict, the star next to the type."""
    return re.sub(r"\s*\*\s*", "*", NOISE.sub("", clang_type)).strip()


def _without_const(spelled: str) -> str:
    return re.sub(r"\s*\bconst\b\s*", " ", spelled).strip().replace("* *", "**")


def _followed(spelled: str, found: Declarations) -> str:
    name = spelled.rstrip("*")
    return found.resolve(name) + spelled[len(name) :]


def _read_scope(scope: dict, found: Declarations, unnamed: dict[str, str]) -> None:
    for node in scope.get("inner", ()):
        kind = node["kind"]
        if kind == "LinkageSpecDecl":
            _read_scope(node, found, unnamed)
        elif kind == "FunctionDecl" and node.get("storageClass") != "static":
            if node.get("mangledName", node["name"]) == node["name"]:
                found.functions.setdefault(node["name"], _function(node))
        elif kind == "EnumDecl":
            found.enums[_tag_name(node, unnamed)] = _enumerators(node)
        elif kind in ("RecordDecl", "CXXRecordDecl") and node.get("completeDefinition"):
            found.records[_tag_name(node, unnamed)] = _record(node)
        elif kind == "TypedefDecl":
            found.typedefs[node["name"]] = _typedef_target(node, unnamed)


def _tag_name(node: dict, unnamed: dict[str, str]) -> str:
    # `typedef enum { ... } name`: the typedef that follows refers to the enum by clang's id.
    name = node.get("name") or f"(unnamed {len(unnamed)})"
    unnamed[node["id"]] = name
    return name


def _typedef_target(node: dict, unnamed: dict[str, str]) -> str:
    target = spell(node["type"]["qualType"])
    if not is_pointer(target):
        for inner in node.get("inner", ()):
            owned = inner.get("ownedTagDecl")
            if owned and owned["id"] in unnamed:
                return unnamed[owned["id"]]
    return target


def _function(node: dict) -> Function:
    result = spell(node["type"]["qualType"].split("(", 1)[0])
    parameters = [inner for inner in node.get("inner", ()) if inner["kind"] == "ParmVarDecl"]
    return Function(result, tuple((spell(p["type"]["qualType"]), p.get("name", "")) for p in parameters))


def _enumerators(node: dict) -> list[tuple[int, str]]:
    entries, following = [], 0
    for inner in node.get("inner", ()):
        if inner["kind"] != "EnumConstantDecl":
            continue
        explicit = _constant(inner)
        value = following if explicit is None else explicit
        entries.append((value, inner["name"]))
        following = value + 1
    return entries


def _constant(node: dict) -> int | None:
    for inner in node.get("inner", ()):
        if inner["kind"] == "ConstantExpr":
            return int(inner["value"])
        nested = _constant(inner)
        if nested is not None:
            return nested
    return None


def _record(node: dict) -> Record:
    record = Record(node.get("tagUsed") == "union")
    last: Record | None = None
    for inner in node.get("inner", ()):
        if inner["kind"] in ("RecordDecl", "CXXRecordDecl") and inner.get("completeDefinition"):
            last = _record(inner)
        elif inner["kind"] == "FieldDecl":
            clang_type = inner["type"]["qualType"]
            # clang names an unnamed type by its source location; such a type always precedes its field.
            own = last if "(unnamed" in clang_type or "(anonymous" in clang_type else None
            record.members.append((spell(clang_type), inner.get("name", ""), own))
    return record
