"""Untrusted text on a terminal or in a log: group names, client ids and error messages may have any character."""

from __future__ import annotations

import codecs

_escape = codecs.getencoder("unicode_escape")
"""Loaded at once: the import of a codec opens files, and a process without free file descriptors has to log that."""


def visible(text: str) -> str:
    """Returns `text` with each unprintable character escaped: line breaks, ESC, marks of direction."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each)[0].decode() for each in text)
