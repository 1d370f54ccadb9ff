"""Properties files, read as Java reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Parses a Java properties file: comments, continued lines, `=`, `:` or blanks between, backslash escapes."""
    for line in _logical_lines(text):
        # The key ends at the first unescaped separator; blanks around one = or : belong to neither.
        found = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert found is not None
        yield _unescape(found[1]), _unescape(found[2])


def _logical_lines(text: str) -> Iterator[str]:
    """Yields lines without comments and blank lines. A line that ends in an odd number of backslashes is joined with
    the next."""
    begun = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        return chr(int(found[1][1:], 16)) if len(found[1]) == 5 else _ESCAPES.get(found[1], found[1])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text)
