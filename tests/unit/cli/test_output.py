"""Tests of the output of commands."""

from __future__ import annotations

import json
import re

import pytest

from tiered_api.cli.output import format_size, print_error, print_lines, print_rows, text_or_base64

ROWS = [{"topic": "a", "cold_bytes": 5, "key": None}, {"topic": "long", "cold_bytes": 1234, "key": "k"}]


def test_table_aligns_words_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "text")
    assert capsys.readouterr().out == "TOPIC  COLD-BYTES  KEY\na               5  -\nlong         1234  k\n"


def test_very_wide_cell_widens_only_its_own_row(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 249
    print_rows([{"topic": name, "partitions": 1} for name in ("a", long, "b" * 40)], "text")
    heading, first, second, third = capsys.readouterr().out.splitlines()
    assert heading == "TOPIC".ljust(40) + "  PARTITIONS" and first == "a".ljust(40) + "           1"
    assert second == long + "           1" and len(third) == len(heading)


def test_long_cells_of_similar_width_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"topic": "x" * size, "partitions": 1} for size in (70, 75, 80)], "text")
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {80 + len("  PARTITIONS")}


def test_json_is_one_object_a_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_rows(ROWS, "json")
    assert [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()] == ROWS


def test_no_rows_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], "text")
    assert capsys.readouterr().out == ""


def test_bytes_are_shown_as_text_if_they_are_text() -> None:
    assert (text_or_base64(None), text_or_base64(b"h\xc3\xa9"), text_or_base64(b"\xff\x00")) == (
        None,
        "hé",
        "base64:/wA=",
    )


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (98_765_432, "98.8 MB"), (5e12, "5.0 TB")]
)
def test_sizes_have_readable_units(count: float, words: str) -> None:
    assert format_size(count) == words


FORGED = "g\r\n2026-11-22 00:00:00,000 ERROR tiered.node FORGED\x1b]0;owned\x07\x9b2J\u2028\u202egnp"
"""A hostile name of a group."""
SHOWN = r"g\r\n2026-11-22 00:00:00,000 ERROR tiered.node FORGED\x1b]0;owned\x07\x9b2J\u2028\u202egnp"


def test_tables_lines_and_errors_show_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"group": FORGED, "members": ["a\tb", 1], "why": "Grüße 日本 \\n"}], "text")
    print_lines([f"GROUP  {FORGED}"])
    print_error(f"no group {FORGED}")
    out, err = capsys.readouterr()
    _, row, line = out.splitlines()
    assert re.split(" {2,}", row) == [SHOWN, r"a\tb,1", "Grüße 日本 \\n"] and line == f"GROUP  {SHOWN}"
    assert err == f"tiered: no group {SHOWN}\n"
