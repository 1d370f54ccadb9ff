"""The rounds of one target: its corpus unchanged, then mutations of it. All random draws come from the seed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutate

CORPUS = Path(__file__).parent / "corpus"
CURRENT = Path(__file__).parents[2] / "build" / "fuzz"
"""File with the present input, in case that it ends the process."""

INPUT_MOST = 64 << 10
"""Maximum bytes of one input."""
SECONDS_MOST = 2.0
"""CPU time for one input: far above the usual time."""

Check = Callable[[str, bytes], None]
"""Gives an input of a kind to a reader. Any error but the documented ones is a failure."""


@dataclass(frozen=True)
class Input:
    """Bytes, and the kind of reader for them."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class Failure:
    """An input that broke a rule, and the error."""

    input: Input
    error: Exception


def corpus(target: str) -> list[Input]:
    """Returns the inputs that are kept for a target, in order of the files' names."""
    return [
        Input(each.name.partition("-")[0], data) for each in sorted((CORPUS / target).iterdir()) for data in _of(each)
    ]


def _of(path: Path) -> list[bytes]:
    """The inputs in a file: its bytes. One that ends in ".many" holds several, each behind its length in four bytes."""
    data = path.read_bytes()
    if path.suffix != ".many":
        return [data]
    several = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        several.append(data[4:end])
        data = data[end:]
    return several


def keep(target: str, found: Input) -> Path:
    """Writes an input into the corpus of its target, so that every later run tries it."""
    path = CORPUS / target / f"{found.kind}-found-{hashlib.sha256(found.data).hexdigest()[:12]}"
    path.write_bytes(found.data)
    return path


def change_input(rng: Random, inputs: list[Input]) -> Input:
    """Returns an input after a few changes, sometimes followed by the rest of another one of its kind."""
    first = rng.choice(inputs)
    data = first.data
    if rng.random() < 0.1:
        other = rng.choice([each for each in inputs if each.kind == first.kind]).data
        data = data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]
    return Input(first.kind, mutate(rng, data)[:INPUT_MOST])


def fuzz(target: str, check: Check, rounds: int, seed: int, current: Path | None = None) -> Failure | None:
    """Returns the first input that breaks a rule, of the corpus and `rounds` changes of it. `current` holds each input
    before it is tried."""
    inputs = corpus(target)
    rng = Random(f"{target} {seed}")
    for number in range(len(inputs) + rounds):
        found = inputs[number] if number < len(inputs) else change_input(rng, inputs)
        if current is not None:
            current.write_bytes(found.data)
        before = time.process_time()
        try:
            check(found.kind, found.data)
            seconds = time.process_time() - before
            assert seconds < SECONDS_MOST, f"it took {seconds:.1f} s"
        except Exception as error:  # noqa: BLE001
            return Failure(found, error)
    return None
