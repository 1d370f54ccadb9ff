"""Samples of a broker's `/metrics`, by the labels that they have."""

from __future__ import annotations

import re

SAMPLE = re.compile(r"^([a-z0-9_]+)(?:{([^}]*)})? (\S+)$")
LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Returns the values of one metric, by the values of its labels in their order."""
    found = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is not None and match[1] == name:
            found[tuple(value for _, value in LABEL.findall(match[2] or ""))] = float(match[3])
    return found
