"""Addresses below a context: the subject has the context instead."""

from __future__ import annotations

import pytest

from tiered.registry.context_paths import strip_context


@pytest.mark.parametrize(
    ("target", "stripped"),
    [
        ("/subjects/s?x=1", "/subjects/s?x=1"),
        ("/contexts", "/contexts"),
        ("/contexts?limit=1", "/contexts?limit=1"),
        ("/contexts/.c", "/contexts/.c"),
        ("/contexts/.c/subjects/s/versions/1", "/subjects/%3A.c%3As/versions/1"),
        ("/contexts/:.c:/subjects/s%2Ft", "/subjects/%3A.c%3As%2Ft"),
        ("/contexts/c/subjects/s", "/subjects/%3A.c%3As"),
        ("/contexts/.c/subjects/:.d:s", "/subjects/:.d:s"),
        ("/contexts/.c/compatibility/subjects/s/versions", "/compatibility/subjects/%3A.c%3As/versions"),
        ("/contexts/.c/config", "/config/%3A.c%3A"),
        ("/contexts/.c/mode/s?force=true", "/mode/%3A.c%3As?force=true"),
        ("/contexts/.c/subjects", "/subjects?subjectPrefix=%3A.c%3A"),
        ("/contexts/.c/subjects?subjectPrefix=a&deleted=true", "/subjects?subjectPrefix=%3A.c%3Aa&deleted=true"),
        ("/contexts/.c/schemas?deleted=true", "/schemas?deleted=true&subjectPrefix=%3A.c%3A"),
        ("/contexts/.c/schemas/ids/1", "/schemas/ids/1?subject=%3A.c%3A"),
        ("/contexts/.c/schemas/ids/1?subject=s", "/schemas/ids/1?subject=%3A.c%3As"),
        ("/contexts/.c/schemas/ids/1?subject=:.d:s", "/schemas/ids/1?subject=:.d:s"),
        ("/contexts/.c/schemas/types", "/schemas/types"),
        ("/contexts/./subjects/s?x=1", "/subjects/s?x=1"),
    ],
)
def test_context_of_an_address_moves_to_its_subject(target: str, stripped: str) -> None:
    assert strip_context(target) == stripped
