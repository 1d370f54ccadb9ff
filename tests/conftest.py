"""Shared set-up of all tests: the import paths of the three packages, without an install."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
PATHS = [str(ROOT), str(ROOT / "api"), str(ROOT / "spark")]
for path in reversed(PATHS):
    if path not in sys.path:
        sys.path.insert(0, path)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in its background so, and whatever tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Processes that tests start by the hundred keep their compiled modules, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Processes that tests start (brokers, Spark's Python workers) see the same sources.
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

# Most of their JVMs end within a minute, for which the better compiler costs twice what it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Machines may be slow or busy: a property that hangs is told by the timeout of its test.
settings.register_profile("any", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that need Java by name where it is missing. Runs them first, because they take longest: at the end
    all other processes would wait for them."""
    items.sort(key=lambda item: [item.get_closest_marker(mark) is None for mark in ("slow", "java")])
    if shutil.which("java") and shutil.which("mvn"):
        return
    skip = pytest.mark.skip(reason="needs a JDK 17 and Maven on the PATH")
    for item in items:
        if item.get_closest_marker("java"):
            item.add_marker(skip)
