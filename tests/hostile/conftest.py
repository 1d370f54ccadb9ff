"""The table of figures, at the end of `make hostile`."""

from __future__ import annotations

import pytest

from tests.hostile.figures import make_table
from tests.hostile.target import FULL, MEASURED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FULL and MEASURED:
        terminalreporter.section("other clients beside each attack")
        terminalreporter.write_line(make_table(MEASURED))
