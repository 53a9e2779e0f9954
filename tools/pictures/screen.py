"""Turns a screen of a terminal, with its escape sequences for colours, into a page."""

import html
import re
import sys

COLOURS = ["#1e1e1e", "#f14c4c", "#23d18b", "#e5e510", "#3b8eea", "#d670d6", "#29b8db", "#e5e5e5"]


def style(codes, current):
    """The style after an escape sequence: bold, reversed, and the 16 colours of the palette."""
    current, codes = dict(current), list(codes)
    while codes:
        code = codes.pop(0)
        if code == 0:
            current = {}
        elif code in (1, 7):
            current[code] = True
        elif code in (38, 48) and codes[:1] == [5]:
            current["front" if code == 38 else "back"] = COLOURS[codes[1] % 8]
            codes = codes[2:]
        elif code in (39, 49):
            current.pop("front" if code == 39 else "back", None)
    return current


def css(current):
    front, back = current.get("front", "#d4d4d4"), current.get("back", "#1e1e1e")
    if 7 in current:
        front, back = back, front
    words = [f"color:{front}", f"background:{back}"]
    words += ["font-weight:bold"] * (1 in current)
    return ";".join(words)


out, current = [], {}
for part in re.split(r"(\x1b\[[0-9;]*m)", sys.stdin.read().rstrip("\n")):
    if part.startswith("\x1b["):
        current = style([int(code or 0) for code in part[2:-1].split(";")], current)
    elif part:
        out.append(f'<span style="{css(current)}">{html.escape(part)}</span>')
print(f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:#1e1e1e"><pre style="margin:12px;font:15px/1.25 \'DejaVu Sans Mono\',monospace">{"".join(out)}</pre>')
