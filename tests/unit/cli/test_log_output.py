"""Tests of the log: one line per event, for any text in it."""

from __future__ import annotations

import logging

import pytest

from tests.unit.cli.test_output import FORGED, SHOWN
from tiered_api.cli.broker.log_output import OneLineFormatter


def logged(error: Exception | None = None) -> list[str]:
    """The lines of one event about a group of that name."""
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("tiered.coordinator.runtime", logging.INFO, "f", 1, "group=%s", (FORGED,), exc_info)
    return OneLineFormatter("%(levelname)s %(name)s %(message)s").format(record).splitlines()


def test_event_with_any_name_is_one_line() -> None:
    assert logged() == [f"INFO tiered.coordinator.runtime group={SHOWN}"]


def test_line_of_a_traceback_does_not_look_like_an_event() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError(FORGED)
    first, *rest = logged(caught.value)
    assert first.startswith("INFO ") and "FORGED" in "".join(rest)
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
