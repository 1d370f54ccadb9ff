"""Tests that errors of brokers reach people as sentences, and never as a code alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tiered_api
from tiered.errors import Code
from tiered_api.cli.arguments import parser
from tiered_api.cli.status import OK, format_status
from tiered_api.kafka.client.client import to_refused
from tiered_api.kafka.client.error_sentences import SENTENCES, explain_error

ROOT = Path(tiered_api.__file__).parent
NAMES = {code.name for code in Code}
UNKNOWN = 9_999
SAID = "the broker says so"
ERRORS = [code.number for code in Code if code is not Code.NONE]


def _words_before_code(text: str, number: int) -> list[str]:
    """Returns the words of a text in front of its code in brackets."""
    name = next((code.name for code in Code if code.number == number), f"error {number}")
    assert text.endswith(f" ({name})"), text
    words = text.removesuffix(f" ({name})").split()
    assert not NAMES & set(words), text
    return words


@pytest.mark.parametrize("number", [*ERRORS, UNKNOWN])
def test_error_without_a_message_is_a_sentence_with_advice(number: int) -> None:
    name = next((code.name for code in Code if code.number == number), None)
    for message in (None, "", " ", name):
        words = _words_before_code(explain_error(number, message), number)
        assert 6 <= len(words) <= 25 and words[0].islower(), words
        assert " ".join(words).count("; ") == 1 or number == Code.OPERATION_NOT_ATTEMPTED.number, words
    assert format_status(number, None) == explain_error(number)
    assert to_refused(number, "topic t").why == f"topic t: {explain_error(number)}"


@pytest.mark.parametrize("number", [*ERRORS, UNKNOWN])
def test_message_of_the_broker_goes_before_our_sentence(number: int) -> None:
    assert _words_before_code(format_status(number, SAID), number) == SAID.split()


def test_every_code_has_a_sentence_of_its_own_and_success_is_ok() -> None:
    assert SENTENCES.keys() == set(Code)
    assert format_status(0, None) == OK


def test_sentences_name_only_commands_and_pages_that_exist() -> None:
    text = " ".join(SENTENCES.values())
    commands = set(re.findall(r"`tiered ([^`]*)`", text))
    assert len(commands) >= 8
    for command in commands:
        words = command.split()
        needs = ["x"] if words[-1] in ("-p", "-c", "describe", "describe-storage") else []
        assert parser().parse_args([*words, *needs]), command
    for page in re.findall(r"docs/[\w/-]+\.md", text):
        assert (ROOT.parents[1] / page).is_file(), page


def test_command_line_and_its_client_name_codes_only_in_sentences() -> None:
    found = []
    for path in (*(ROOT / "cli").rglob("*.py"), *(ROOT / "kafka/client").glob("*.py")):
        if path.name in ("error_sentences.py", "peers.py"):  # peers.py carries refusals between brokers
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_name = (
                isinstance(node, ast.Attribute) and node.attr == "name" and ast.unparse(node.value).endswith("code")
            )
            if is_name or (isinstance(node, ast.Name) and node.id == "code_name"):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert not found, "use explain_error: " + ", ".join(found)


WITHOUT_MESSAGE = {
    "cli/group/groups.py": {"list_groups", "delete_groups"},
    "cli/live/requests.py": {"list_groups"},
    "cli/topic/topics.py": {"metadata"},
    "kafka/client/client.py": {"metadata"},
    "kafka/client/connection.py": {"api_versions"},
    "kafka/client/consumer.py": {"fetch"},
    "kafka/client/group_member.py": {"join_group", "sync_group", "heartbeat"},
    "kafka/client/group_offsets.py": {"offset_fetch", "offset_delete", "offset_commit"},
    "kafka/client/login.py": {"sasl_handshake"},
    "kafka/client/producer.py": set(),  # the sentence is that of the record, or else of the partition
    "kafka/client/transactions.py": {"init_producer_id", "list_transactions", "describe_transactions"},
}
"""Files that explain the code of a reply alone, and the messages of these replies: Kafka gave them no sentence."""


def test_sentence_of_a_broker_is_passed_on_wherever_a_reply_has_one() -> None:
    found = set()
    for path in (*(ROOT / "cli").rglob("*.py"), *(ROOT / "kafka/client").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "to_refused",
                "format_status",
                "explain_error",
            ):
                read = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                if "error_code" in read and "error_message" not in read:
                    found.add(str(path.relative_to(ROOT)))
    assert found == WITHOUT_MESSAGE.keys()
    for name in set().union(*WITHOUT_MESSAGE.values()):
        table = (ROOT / f"kafka/protocol/messages/{name}.py").read_text(encoding="utf-8")
        assert "error_message" not in table, name


def test_command_line_and_its_client_write_no_code_into_a_sentence() -> None:
    """A text that has parts put in would show the code as it is."""
    found = []
    for path in (*(ROOT / "cli").rglob("*.py"), *(ROOT / "kafka/client").glob("*.py")):
        if path.name == "error_sentences.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                words = re.findall(r"[A-Z][A-Z_]+", ast.unparse(node))
                found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in NAMES and "_" in word]
    assert not found, "use explain_error: " + ", ".join(found)
