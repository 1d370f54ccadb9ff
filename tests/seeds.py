"""Seeds of tests at random: `make test` runs the first ones, and `make test-all` shows the same with more."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def first_seeds(count: int, of: int) -> list[ParameterSet]:
    """Returns the seeds from 0 to `of`. All but the first `count` of them are `also`."""
    return [pytest.param(seed, marks=() if seed < count else pytest.mark.also) for seed in range(of)]
