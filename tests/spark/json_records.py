"""Random JSON records whose fields appear, stay empty for a while and change their types, for tests of typed tables."""

from __future__ import annotations

import json
from random import Random
from typing import Any

EMPTY: list[Any] = [None, {}, [], [None], [None, None], [[]], [[], [None, None]], [{}], [{}, None], {"a": None},
                    {"b": {}}, {"a": [], "b": {"c": [None, None, None]}}]  # fmt: skip
INTEGERS = [0, -1, 7, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63)]
DOUBLES = [0.5, -0.0, 1e300, 5e-324, 123456789.125, 2.0**53]
TEXTS = ["", "t", "a:b", "\u00e9\u20ac", "\U0001f600", '"\\\n', "2020-02-29", "null", "12", "{}"]
NAMES = ["a", "b", "c", "B", "a b", "_offset", "x:y"]
KINDS = ["integer", "double", "text", "boolean", "array", "object"]
BROKEN = [None, b"", b"no JSON", b"[1]", b"7", b'{"a":1,"a":1}', b'{"a":NaN}', b'{"b":"\xff"}', b'{"a":1e999}',
          b'{"a":9223372036854775808}', b'{"c":' + b"[" * 40 + b"1" + b"]" * 40 + b"}", b'{"b":"\\ud800"}']  # fmt: skip
DEPTH_MAX = 3


class RandomRecords:
    """Records of one topic. Each field has a kind that most of its values have, and a turn before which it is empty."""

    def __init__(self, rng: Random) -> None:
        self.turn = 0
        self._rng = rng
        self._kinds: dict[tuple[str, ...], tuple[str, int]] = {}

    def encode(self, count: int) -> list[bytes | None]:
        """Returns values, a few of which no typed table takes."""
        return [self._rng.choice(BROKEN) if self._rng.random() < 0.04 else self._encode_one() for _ in range(count)]

    def encode_keys(self, count: int) -> list[bytes | None]:
        """Returns keys, a few of which are no JSON."""
        return [
            self._rng.choice([None, b"k", b"{}"]) if self._rng.random() < 0.1
            else json.dumps(self._value(("key",))).encode()
            for _ in range(count)
        ]  # fmt: skip

    def _encode_one(self) -> bytes:
        rng = self._rng
        layout: dict[str, Any] = {"indent": rng.choice([None, None, 1])}
        return json.dumps(self._object(()), ensure_ascii=rng.random() < 0.5, **layout).encode()

    def _object(self, path: tuple[str, ...]) -> dict[str, Any]:
        names = self._rng.sample(NAMES, self._rng.randrange(4 if path else 6))
        return {name: self._value((*path, name)) for name in names}

    def _value(self, path: tuple[str, ...]) -> Any:
        rng = self._rng
        if path not in self._kinds:
            kinds = KINDS if len(path) <= DEPTH_MAX else KINDS[:4]
            self._kinds[path] = rng.choice(kinds), rng.choice([0, 0, 1, 2])
        kind, born = self._kinds[path]
        if self.turn < born or rng.random() < 0.15:
            return rng.choice(EMPTY)
        if rng.random() < 0.04:
            kind = rng.choice(KINDS[:4])
        match kind:
            case "integer":
                return rng.choice(DOUBLES) if self.turn > 1 and rng.random() < 0.05 else rng.choice(INTEGERS)
            case "double":
                return rng.choice([*DOUBLES, 3])
            case "text":
                return rng.choice(TEXTS)
            case "boolean":
                return rng.random() < 0.5
            case "array":
                return [self._value((*path, "[]")) for _ in range(rng.randrange(4))]
            case _:
                return self._object(path)
