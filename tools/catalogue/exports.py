"""The functions a shared library exports, read from its dynamic symbol table."""

import struct
from pathlib import Path

SHT_DYNSYM = 11
STT_FUNC = 2
SHN_UNDEF = 0


def exported_functions(library: Path) -> set[str]:
    """Names of the functions defined in `library`, a 64-bit little-endian ELF file."""
    image = library.read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise SystemExit(f"{library.name}: not a 64-bit little-endian ELF file")
    (sections_at,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count = struct.unpack_from("<HH", image, 0x3A)

    def section(index: int) -> tuple[int, int, int, int]:
        at = sections_at + index * entry_size
        (kind,) = struct.unpack_from("<I", image, at + 4)
        offset, size = struct.unpack_from("<QQ", image, at + 0x18)
        (link,) = struct.unpack_from("<I", image, at + 0x28)
        return kind, offset, size, link

    for index in range(count):
        kind, offset, size, link = section(index)
        if kind == SHT_DYNSYM:
            strings = section(link)[1]
            return set(_function_names(image, offset, size, strings))
    raise SystemExit(f"{library.name}: no dynamic symbols")


def _function_names(image: bytes, offset: int, size: int, strings: int):
    for name, info, _other, shndx, _value, _size in struct.iter_unpack("<IBBHQQ", image[offset : offset + size]):
        if info & 0xF == STT_FUNC and shndx != SHN_UNDEF:
            start = strings + name
            yield image[start : image.index(b"\0", start)].decode()
