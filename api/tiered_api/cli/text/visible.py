"""Untrusted text on a terminal or in a log: group names, client ids and error messages may have any character."""

from __future__ import annotations


def visible(text: str) -> str:
    """Returns `text` with each unprintable character escaped: line breaks, ESC, marks of direction."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
