"""Tests that are coroutines: a decorator names the function or the rig that runs them.

Positional parameters of the coroutine come from there. Keyword-only parameters come from pytest: its fixtures, and the
values of `parametrize`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any, Protocol

Scenario = Callable[..., Coroutine[Any, Any, object]]
Test = Callable[..., None]


class Rig(Protocol):
    """A rig that runs a coroutine function without parameters to its end."""

    def run(self, scenario: Callable[[], Coroutine[Any, Any, Any]]) -> object: ...


GIVEN = object()
"""Stands for a setting of `run_by` whose value comes from pytest, by the name of the setting."""


def run_by(run: Callable[..., object], *fixtures: str, **settings: Any) -> Callable[[Scenario], Test]:
    """Makes a test of a coroutine function: `run` gets the named fixtures, then the function, then the settings."""
    drawn = [name for name, value in settings.items() if value is GIVEN]

    def decorate(scenario: Scenario) -> Test:
        own = [each for each in signature(scenario).parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
        names = [each.name for each in own]
        taken = [Parameter(each, Parameter.KEYWORD_ONLY) for each in (*fixtures, *drawn) if each not in names]

        @wraps(scenario)
        def test(**given: Any) -> None:
            whole = partial(scenario, **{name: given[name] for name in names}) if names else scenario
            run(*(given[name] for name in fixtures), whole, **settings | {name: given[name] for name in drawn})

        test.__signature__ = Signature([*taken, *own])  # type: ignore[attr-defined]
        return test

    return decorate


def in_rig(make: Callable[..., Rig], **options: Any) -> Callable[[Scenario], Test]:
    """Makes a test of a coroutine function: each run of the test has a new rig, made with these options."""

    def run(scenario: Scenario) -> None:
        rig = make(**options)
        rig.run(partial(scenario, rig))

    return run_by(run)


def run_by_fixture(run: Callable[[Scenario], object], scenario: Scenario) -> None:
    """Runs a coroutine function by a function that is a fixture."""
    run(scenario)


def run_alone(scenario: Scenario) -> None:
    """Runs a coroutine function in an event loop of its own."""
    asyncio.run(scenario())
