"""Tests of `value`: what mypy takes for a frozen dataclass behaves as one, but for assignments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tiered.value import value


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    secret: str = field(repr=False)
    seen: int = field(default=0, compare=False)


@value
class Plain:
    name: str
    secret: str = field(repr=False)
    seen: int = field(default=0, compare=False)


@value
class Empty:
    pass


@value
class Told:
    name: str

    def __repr__(self) -> str:
        return f"told {self.name}"


def test_value_is_shown_as_a_dataclass_without_its_secret() -> None:
    assert repr(Plain("a", "b")) == repr(Frozen("a", "b")).replace("Frozen", "Plain") == "Plain(name='a', seen=0)"
    assert (repr(Empty()), repr(Told("a"))) == ("Empty()", "told a")


def test_value_is_equal_and_hashed_by_what_it_compares() -> None:
    first, same, other = Plain("a", "b", 1), Plain("a", "b", 2), replace(Plain("a", "b"), secret="c")
    frozen: object = Frozen("a", "b")
    assert first == same and hash(first) == hash(same) == hash(frozen)
    assert first != other and first != frozen and Empty() == Empty()


def test_value_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Plain("a", "b").other = 1  # type: ignore[attr-defined]
