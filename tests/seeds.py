"""Parameters of tests, such as seeds: `make test` runs some of them, and `make test-all` shows the same with all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def first_seeds(count: int, of: int) -> list[ParameterSet]:
    """Returns the seeds from 0 to `of`. All but the first `count` of them are `also`."""
    return [pytest.param(seed, marks=() if seed < count else pytest.mark.also("seeds")) for seed in range(of)]


def chosen(cases: Iterable[Any], often: Collection[Any], kind: str = "values") -> list[ParameterSet]:
    """Returns the cases. All but those that are in `often` are `also`, for the reason `kind`."""
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)), marks=() if each in often else pytest.mark.also(kind)
        )
        for each in cases
    ]
