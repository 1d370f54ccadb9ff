"""A copy of the working tree that has one mutant at a time, and the runs of tests and seeds in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutant import Mutant
from tests.sources import ROOT

TEST_SECONDS = 120
"""Seconds that one test may take: an edit may turn a wait into an endless one."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.+?)?)(?: - (.*))?$", re.MULTILINE)
_SEED = re.compile(r"^failed: (\d+)", re.MULTILINE)
_RULE = re.compile(r"^[A-Za-z_][\w.]*: (.*)$", re.MULTILINE)
_WHY = re.compile(r"^/\S+:\d+: (.*)$", re.MULTILINE)
_NO_TESTS = 5


@dataclass(frozen=True)
class FailedTest:
    """A failure: the test or `shape:seed` that can be run alone, and its text."""

    test_id: str
    reason: str
    may_be_flaky: bool = False
    """True if time or drawn examples may be the cause."""


class RunTimeout(Exception):
    """A run did not end in its time."""


class SourceTree:
    """A copy below `folder` of all tracked and new files, and of the compiled modules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "tiered").rglob("*.so")]
        for name in [*filter(None, listed.split("\0")), *compiled]:
            source, target = ROOT / name, folder / name
            if source.is_file() and not source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[None]:
        """Applies the edit within the context. Removes compiled modules, which are compared with their source by size
        and second only."""
        path = self.folder / mutant.file
        source = mutant.apply(self.folder)
        self._forget_compiled(path)
        try:
            yield
        finally:
            path.write_text(source)
            self._forget_compiled(path)

    @staticmethod
    def _forget_compiled(path: Path) -> None:
        for each in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            each.unlink()

    def tests(self, paths: Sequence[str], without: Sequence[str], seconds: float) -> FailedTest | None:
        """Returns the first test below `paths` that fails; None: all pass. Raises `RunTimeout`."""
        command = ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-rfE", "--tb=line"]
        command += [f"--timeout={TEST_SECONDS}", "-m", "not also", *(f"--deselect={each}" for each in without), *paths]
        code, told = self._run(command, seconds)
        if code in (0, _NO_TESTS):
            return None
        found = _FAILED.search(told)
        chance = any(word in told for word in ("hypothesis", "Timeout"))
        if found is None:
            return FailedTest(paths[0], told.strip()[-200:], chance)
        why = _WHY.findall(told)
        return FailedTest(found[1], (found[2] or (why[-1] if why else ""))[:200], chance)

    def seeds(self, shape: str, count: int, seconds: float) -> FailedTest | None:
        """Returns the first of so many seeds that fails; None: all pass, or the time is over."""
        try:
            _, told = self._run(
                ["-m", "tests.sim", "--shape", shape, "--seeds", str(count), "--jobs", "1", "--until-red"], seconds
            )
        except RunTimeout:
            return None
        found = _SEED.search(told)
        rules = _RULE.findall(told.split("runs=")[0])
        return FailedTest(f"{shape}:{found[1]}", rules[-1][:200] if rules else "") if found else None

    def passes(self, red: FailedTest, seconds: float) -> bool:
        """True if the same test or seed passes in the present tree."""
        try:
            if red.test_id.endswith(".py") or "::" in red.test_id or "/" in red.test_id:
                return self.tests([red.test_id], (), seconds) is None
            shape, seed = red.test_id.split(":")
            return self._run(["-m", "tests.sim", "--shape", shape, "--seed", seed], seconds)[0] == 0
        except RunTimeout:
            return False

    def _run(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        paths = [self.folder, self.folder / "api", self.folder / "spark"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RunTimeout(f"not over after {seconds:.0f} s: {' '.join(command)}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode, told
