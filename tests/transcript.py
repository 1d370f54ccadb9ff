"""Transcripts: scenarios as plain text, commands and their output, compared word for word.

    # Anything that helps a reader.
    command argument key=value
    ----
    the output

A blank line ends the output. `python -m tests.test_transcripts` writes the outputs anew; the difference is reviewed
like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(r"^(?P<command>(?!#)\S[^\n]*)\n----\n(?P<output>(?:[^\n]+\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One line: its verb, its plain arguments, and those with a name."""

    verb: str
    words: tuple[str, ...]
    named: dict[str, str]

    @classmethod
    def read(cls, line: str) -> Command:
        verb, *rest = line.split()
        plain = tuple(word for word in rest if "=" not in word)
        return cls(verb, plain, dict(word.split("=", 1) for word in rest if "=" in word))

    def number(self, name: str, default: int | None = None) -> int:
        value = self.named.get(name)
        if value is None:
            assert default is not None, f"{self.verb} needs {name}="
            return default
        return int(value)


Say = Callable[[Command], str]


def run_transcript(text: str, say: Say) -> str:
    """Returns the transcript with the outputs of `say` for all its commands."""

    def answer(step: re.Match[str]) -> str:
        output = say(Command.read(step["command"])).rstrip("\n")
        return f"{step['command']}\n----\n{output}\n" if output else f"{step['command']}\n----\n"

    return _STEP.sub(answer, text)


def commands(path: Path) -> int:
    """Returns how many commands a transcript has."""
    return len(_STEP.findall(path.read_text()))
