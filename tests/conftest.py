"""Shared set-up of all tests: the import paths of the three packages, without an install."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parent.parent
PATHS = [str(ROOT), str(ROOT / "api"), str(ROOT / "spark")]
for path in reversed(PATHS):
    if path not in sys.path:
        sys.path.insert(0, path)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in its background so, and whatever tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# This process and those that tests start by the hundred keep their compiled modules, whatever the shell says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Processes that tests start (brokers, Spark's Python workers) see the same sources.
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

# Most of their JVMs end within a minute, for which the better compiler costs twice what it saves. To verify the classes
# of Spark or Kafka, which are others' releases, takes a fifth of a start.
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ.setdefault("JDK_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {UNVERIFIED}")

from tests.passwords import find_passwords  # noqa: E402  (after the paths)

# Profiles of whoever runs the tests must not reach them: this folder can neither have a file nor get one.
os.environ["XDG_CONFIG_HOME"] = "/dev/null/config"
for variable in ("TIERED_PROFILE", "TIERED_COMMAND_CONFIG"):
    os.environ.pop(variable, None)

# Machines may be slow or busy: a property that hangs is told by the timeout of its test.
settings.register_profile("any", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


_leaks: list[str] = []


class _SecretSearch(logging.Handler):
    """Looks for the passwords of tests in all that is logged in this process."""

    _formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        text = self._formatter.format(record)
        found = find_passwords(text)
        if found and len(_leaks) < 10:
            _leaks.append(f"{os.environ.get('PYTEST_CURRENT_TEST')}: {record.name} logged {found}: {text[:200]}")


@pytest.fixture(scope="session", autouse=True)
def logs_without_secrets() -> Iterator[None]:
    """Fails at the end of the session if a password of a test was logged."""
    handler = _SecretSearch()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)
    assert not _leaks


SESSION = "spark: SparkSession"
"""Text of a file whose tests share the Spark session of their worker."""


CONSOLE = "tests/console/"
"""Folder whose tests share a browser and a cluster."""


@cache
def _scope_of(file: str) -> str:
    """Returns what the tests of a file share: a Spark session, a browser, or nothing outside of the file."""
    if file.startswith(CONSOLE):
        return CONSOLE
    return SESSION if SESSION in (ROOT / file).read_text() else file


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives the tests of a file to one worker, and all that share a Spark session to the same one: another worker would
    start a JVM of its own, whose first queries take several times as long as later ones. So it is with a browser."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope_of(nodeid.split("::", 1)[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Returns the scheduler of `--dist loadfile`."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


GC_THRESHOLD = (20_000, 20, 20)
"""New objects before a garbage collection, and collections before one of the next generation. With Python's 700 the
tests that read all sources spend a fifth of their time on collections."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects tests without garbage collection, which takes two fifths of that time and finds nothing. Objects
    that are there then stay to the end: no later collection looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that need Java by name where it is missing. Runs first the tests of one session and of one browser,
    and then those that take longest: at the end all other processes would wait for them."""
    items.sort(key=_sort_key)
    if shutil.which("java") and shutil.which("mvn"):
        return
    skip = pytest.mark.skip(reason="needs a JDK 17 and Maven on the PATH")
    for item in items:
        if item.get_closest_marker("java"):
            item.add_marker(skip)


def _sort_key(item: pytest.Item) -> list[bool]:
    scope = _scope_of(item.nodeid.split("::", 1)[0])
    marks = (item.get_closest_marker(mark) is None for mark in ("slow", "java"))
    return [scope != SESSION, scope != CONSOLE, *marks]
