"""Tests of the command `tiered`: the steps between the arguments and the module of a command."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tiered_api.cli.main import _load_command
from tiered_api.cli.parsing import Command

MODULE = """
import gc

collected = gc.isenabled()

def run(args):
    return 10 * collected + gc.isenabled()
"""


def test_garbage_collection_is_off_only_while_a_command_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_command_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    run = _load_command(Command("a_command_of_a_test", "run"))
    assert run(None) == 1  # type: ignore[arg-type]


def test_command_that_fails_to_load_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError):
        _load_command(Command("no_such_command_of_a_test", "run"))
    assert gc.isenabled()
