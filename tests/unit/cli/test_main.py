"""Tests of the command `tiered`: the steps between the arguments and the module of a command."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tiered.errors import Code, Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.main import _load_command, main
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


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (Code.INVALID_REQUEST, Exit.USAGE),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, Exit.USAGE),
        (Code.KAFKA_STORAGE_ERROR, Exit.UNAVAILABLE),
        (Code.REQUEST_TIMED_OUT, Exit.UNAVAILABLE),
        (Code.NOT_ENOUGH_REPLICAS, Exit.UNAVAILABLE),
    ],
)
def test_refusal_that_may_pass_ends_with_the_code_for_another_try(
    code: Code, exit_code: Exit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        raise Refused(code, "the reason")

    monkeypatch.setattr("tiered_api.cli.main._load_command", lambda command: run)
    assert main(["topic", "ls"]) == exit_code
    assert capsys.readouterr().err == "tiered: the reason\n"
