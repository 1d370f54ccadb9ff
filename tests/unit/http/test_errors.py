"""Errors of HTTP are sentences: a code of Kafka stands in brackets behind what it means."""

from __future__ import annotations

import re

from tests.sources import modules


def test_no_error_ends_with_a_bare_code_of_kafka() -> None:
    """The names of codes come from `explain_error`, which has a sentence for each."""
    bare = re.compile(r"\{[\w.]*code\.name\}|or code\.name")
    found = [
        f"{name}: {line.strip()}"
        for name, path in modules().items()
        if name.startswith("tiered_api.http.")
        for line in path.read_text().splitlines()
        if bare.search(line)
    ]
    assert not found
