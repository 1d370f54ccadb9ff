"""Tests of commit messages that pass, and of the faults of others."""

from __future__ import annotations

import pytest

from tests.commit_message import faults

BODY = "\n\nA log that opens late was not checked.\nTested by test_opening.\n"


@pytest.mark.parametrize(
    "message",
    [
        f"hot: check a log that opens late{BODY}",
        f"hot, cold: need one less copy{BODY}",
        f"hot: check a log{BODY}# Please enter the commit message\n# for your changes",
        "Merge branch 'docs'",
        'Revert "hot: check a log that opens late"',
    ],
)
def test_message_of_the_right_form_has_no_fault(message: str) -> None:
    assert [*faults(message)] == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (f"Check a log{BODY}", "not `area: verb object`"),
        (f"hot: Check a log{BODY}", "not `area: verb object`"),
        (f"hot: checked a log{BODY}", "`checked` is no imperative"),
        (f"hot: checking a log{BODY}", "`checking` is no imperative"),
        (f"hot: check a log.{BODY}", "full stop"),
        (f"hot: check a log that opens late and everything that could ever follow it{BODY}", "73 characters"),
        ("hot: check a log", "no body"),
        ("hot: check a log\nbecause", "second line"),
        (f"hot: check a log{BODY}{'x' * 101}", "line 5 is longer"),
        ("", "not `area: verb object`"),
    ],
)
def test_fault_of_a_message_is_reported(message: str, fault: str) -> None:
    assert any(fault in each for each in faults(message)), [*faults(message)]
