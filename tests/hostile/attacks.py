"""Attacks: each is a test on a broker of its own, and a part of the hostile day (`test_hostile_day.py`).

A test that is decorated with `attack` gets a broker. It prepares what it needs, and attacks in `AttackedBroker.attack`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from tests.hostile.target import AttackedBroker, attacked_broker, scale

TIMEOUT_SECONDS = scale(300, 1_200)

Test = Callable[..., None]
Run = Callable[..., Coroutine[Any, Any, None]]


class Attack(NamedTuple):
    """The function of an attack, and the settings of its broker."""

    run: Run
    settings: dict[str, object]


ATTACKS: dict[Test, Attack] = {}
"""All attacks of the imported modules, by the test that runs them."""


def attack(**settings: Any) -> Callable[[Run], Test]:
    """Makes a test of an attack that takes a broker with these settings, and the parameters of the test.
    `stop_seconds` limits the time in which the broker stops."""

    def decorate(run: Run) -> Test:
        def test(tmp_path: Path, **parameters: Any) -> None:
            with attacked_broker(tmp_path / "data", **settings) as to:
                asyncio.run(run(to, **parameters))

        test.__name__, test.__doc__, test.__module__ = run.__name__, run.__doc__, run.__module__
        names = [each for each in inspect.signature(run).parameters if each != "to"]
        taken = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in ("tmp_path", *names)]
        test.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        made: Test = pytest.mark.timeout(TIMEOUT_SECONDS)(test)
        ATTACKS[made] = Attack(run, {name: value for name, value in settings.items() if name != "stop_seconds"})
        return made

    return decorate


class Case(NamedTuple):
    """An attack with parameters of its test."""

    name: str
    attack: Attack
    parameters: dict[str, Any]
    is_also: bool
    """True if `make test` leaves it out."""

    async def run(self, to: AttackedBroker) -> None:
        await self.attack.run(to, **self.parameters)


def list_cases() -> Iterator[Case]:
    """Yields each attack with each choice of its parameters, which one mark names."""
    for test, found in ATTACKS.items():
        name = test.__name__.removeprefix("test_")
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        if not marks:
            yield Case(name, found, {}, is_also=False)
        for mark in marks:
            names, rows = mark.args
            for row in rows:
                given = row if isinstance(row, ParameterSet) else pytest.param(row)
                parameters = dict(zip([names] if isinstance(names, str) else names, given.values, strict=True))
                shown = " ".join(str(getattr(each, "name", each)) for each in given.values)
                is_also = any(each.name == "also" for each in given.marks)
                yield Case(f"{name} {shown}", found, parameters, is_also)
