"""A Python function under construction: its lines, and the objects that the lines name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class FunctionBuilder:
    """The lines of one function. Every generated name is used once, so that nested code never reuses a name.

    With a `piece`, the function is a generator, which stops after so many elements of arrays.
    """

    def __init__(self, *, piece: int = 0, **names: Any) -> None:
        self.names = names
        self.piece = piece
        self.lines: list[str] = []
        self._depth = 1
        self._names_made = 0
        if piece:
            self.line(f"piece = {piece}")

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

    def count_element(self, *at_the_end: str) -> None:
        """Adds the lines that count one element of a piece, if the function has pieces, and those for its end."""
        if self.piece:
            self.line("piece -= 1")
            with self.block("if piece < 0:"):
                for each in (f"piece = {self.piece - 1}", *at_the_end, "yield"):
                    self.line(each)

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
        if self.piece:
            self.line("yield")  # makes a generator of a function without arrays too
        scope: dict[str, Any] = dict(self.names)
        exec(compile(self.text(head), where, "exec"), scope)
        made: Callable[..., Any] = scope[head.split()[1].partition("(")[0]]
        return made
