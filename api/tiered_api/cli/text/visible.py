"""Text of strangers on a terminal or in a log: group names, client ids and error messages may hold any character."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` with each character that is not printable written as an escape: line breaks, ESC, marks of direction."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
