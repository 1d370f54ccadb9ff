"""A Python function under construction: its lines, and the objects that the lines name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class FunctionBuilder:
    """The lines of one function. Every generated name is used once, so that nested code never reuses a name."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.lines: list[str] = []
        self._depth = 1
        self._names_made = 0

    def line(self, text: str) -> None:
        """Adds a line at the current depth."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Adds `head`, and indents the lines that are added inside the context."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def local(self, name: str) -> str:
        """Returns a new name for a variable."""
        self._names_made += 1
        return f"{name}{self._names_made}"

    def constant(self, name: str, value: Any) -> str:
        """Returns a new name for an object from outside the function."""
        made = self.local(name)
        self.names[made] = value
        return made

    def text(self, head: str) -> str:
        """Returns the source of the function below the `def` line `head`."""
        return "\n".join([head, *self.lines]) + "\n"

    def function(self, head: str, where: str) -> Callable[..., Any]:
        """Compiles the function; tracebacks show it as `where`."""
        scope: dict[str, Any] = dict(self.names)
        exec(compile(self.text(head), where, "exec"), scope)
        made: Callable[..., Any] = scope[head.split()[1].partition("(")[0]]
        return made
