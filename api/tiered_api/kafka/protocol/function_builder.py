"""A Python function that is being written: its lines, and the objects that these name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class FunctionBuilder:
    """Lines of one function. Names that it makes up are used once, so that what is nested never meets."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.lines: list[str] = []
        self._depth = 1
        self._names_made = 0

    def line(self, text: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What is written inside stands under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def local(self, name: str) -> str:
        """A name for a variable."""
        self._names_made += 1
        return f"{name}{self._names_made}"

    def constant(self, name: str, value: Any) -> str:
        """A name for an object from outside."""
        made = self.local(name)
        self.names[made] = value
        return made

    def text(self, head: str) -> str:
        """The function under its `def` line."""
        return "\n".join([head, *self.lines]) + "\n"

    def function(self, head: str, where: str) -> Callable[..., Any]:
        """The function itself; `where` is what tracebacks call it."""
        scope: dict[str, Any] = dict(self.names)
        exec(compile(self.text(head), where, "exec"), scope)
        made: Callable[..., Any] = scope[head.split()[1].partition("(")[0]]
        return made
