"""One small edit of the product's source that breaks a promise."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """`before` stands exactly once in `file`; with `after` in its place the product breaks `promise`. `first` are the
    tests to try first. `equivalent` is the reason for which no test can see the edit; empty if one should. `guarded` is
    the reason for which no simulation can, though a unit test does: a second guard keeps the promise, or the simulated
    world does not do what the edit no longer withstands."""

    name: str
    file: str
    before: str
    after: str
    promise: str
    first: tuple[str, ...] = ()
    equivalent: str = ""
    guarded: str = ""

    def is_visible(self, *, without_units: bool) -> bool:
        """True if a test should find the edit: any test, or a simulation if unit tests do not run."""
        return not self.equivalent and not (without_units and self.guarded)

    @property
    def digest(self) -> str:
        """A short name of the edit itself: results of another edit under the same name do not count."""
        return hashlib.sha256("\0".join((self.file, self.before, self.after)).encode()).hexdigest()[:12]

    def apply_to_source(self, source: str) -> str:
        """Returns the source of its file with the edit. Raises `ValueError` if `before` does not stand there exactly
        once."""
        count = source.count(self.before)
        if count != 1:
            raise ValueError(f"{self.name}: its text stands {count} times in {self.file}")
        return source.replace(self.before, self.after)

    def apply(self, root: Path) -> str:
        """Edits the file below `root`; returns the source as it was."""
        path = root / self.file
        source = path.read_text()
        path.write_text(self.apply_to_source(source))
        return source
