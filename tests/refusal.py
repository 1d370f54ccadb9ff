"""The refusal that a test expects of a call, by its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tiered.errors import Code, Refused


@contextmanager
def refuses(code: Code) -> Iterator[None]:
    """Takes the `Refused` of the block. Any other outcome fails the test, a refusal with another code too."""
    with pytest.raises(Refused) as refused:
        yield
    assert refused.value.code is code
