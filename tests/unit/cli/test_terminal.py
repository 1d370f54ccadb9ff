"""Tests of what may be drawn: terminals alone, and a sentence where the package is missing."""

from __future__ import annotations

import io
import sys

import pytest

from tiered_api.cli.terminal import can_draw


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "drawn"),
    [(Screen(), "xterm", True), (Screen(), "dumb", False), (Screen(), None, False), (io.StringIO(), "xterm", False)],
)
def test_only_a_terminal_is_drawn_on(
    stream: io.StringIO, term: str | None, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    assert can_draw(stream, "nothing is drawn", "--no-picture") is drawn


def test_missing_package_is_named_with_its_install_on_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich", None)
    assert not can_draw(Screen(), "no picture is drawn", "--no-picture")
    assert capsys.readouterr().err == (
        "tiered: no picture is drawn: the Python package rich is missing: pip install '.[cli]' in tiered's source"
        " folder, or use --no-picture\n"
    )
    assert not can_draw(io.StringIO(), "no picture is drawn", "--no-picture")
    assert capsys.readouterr().err == ""
