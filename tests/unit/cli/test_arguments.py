"""Tests of numbers on the command line: a number without a meaning, or without room in a request, is refused before any
request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.test_profiles import list_parsers
from tiered.errors import Refused
from tiered.ids import TopicPartition
from tiered_api.cli import main as command_line
from tiered_api.cli.arguments import parser
from tiered_api.cli.cluster.moves import parse_partition, parse_target
from tiered_api.cli.exits import Exit
from tiered_api.cli.group.seek import read_offsets_file
from tiered_api.cli.main import main
from tiered_api.cli.reach import parse_numbers
from tiered_api.cli.text.offset_range import parse_range
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest

INT32, INT64 = 2**31 - 1, 2**63 - 1
MANY = "9" * 5000
"""More digits than Python converts to a number."""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("cluster reassign t/0=1 --throttle 0", "argument --throttle: '0' is not a number from 1 on"),
        ("cluster reassign t/0=1 --throttle -5", "argument --throttle: '-5' is not a number from 1 on"),
        ("cluster rebalance --throttle 0", "argument --throttle: '0' is not a number from 1 on"),
        ("cluster decommission 1 --throttle 0", "argument --throttle: '0' is not a number from 1 on"),
        (f"cluster rebalance --throttle {INT64 + 1}", f"'{INT64 + 1}' is more than {INT64}"),
        (f"cluster decommission {INT32 + 1}", f"argument ID: '{INT32 + 1}' is not a number from 0 to {INT32}"),
        ("topic create t -r 32768", "argument -r/--replicas: '32768' is not a number from -1 to 32767"),
        (f"topic create t -p {INT32 + 1}", f"-p/--partitions: '{INT32 + 1}' is not a number from -1 to {INT32}"),
        ("topic create t -p many", f"argument -p/--partitions: 'many' is not a number from -1 to {INT32}"),
        (f"topic add-partitions t -n {INT32 + 1}", f"'{INT32 + 1}' is not a number from 0 to {INT32}"),
        (f"topic produce t -p {INT32 + 1}", f"'{INT32 + 1}' is not a number from 0 to {INT32}"),
        (f"topic consume t --fetch-max-bytes {INT32 + 1}", f"'{INT32 + 1}' is not a number from 0 to {INT32}"),
        (f"cluster config list --node {INT32 + 1}", f"'{INT32 + 1}' is not a number from 0 to {INT32}"),
        ("up --brokers -1", "argument --brokers: '-1' is not a number from 1 to 100"),
        ("up --brokers 0", "argument --brokers: '0' is not a number from 1 to 100"),
        ("up --brokers 101", "argument --brokers: '101' is not a number from 1 to 100"),
        (f"topic consume t -n {'9' * 200}", f"is more than {INT64}"),
        ("explain partition t/0", "argument TOPIC: write t 0 in place of t/0"),
        ("explain segment t/0 100", "argument TOPIC: write t 0 in place of t/0"),
    ],
)
def test_number_out_of_its_range_is_a_bad_argument(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == Exit.USAGE and said.startswith("tiered: ") and why in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "topic create t --topic-confg a=b",
            "arguments: --topic-confg a=b; did you mean --topic-config? (see tiered topic",
        ),
        ("serve --datadir=x", "arguments: --datadir=x; did you mean --data-dir? (see tiered serve --help)"),
        ("topic list --borkers x --fromat json", "did you mean --brokers or --format?"),
        ("load --topc x --store file:///x", "one of the arguments --topic --topics is required; did you mean --topic?"),
        ("cold ls --stor=file:///x --topc x", "arguments: --topc x; did you mean --topic?"),
        ("cold ls --sotre file:///x", "arguments are required: --store; did you mean --store? (see tiered cold ls"),
        ("topic list --xyz -q", "arguments: --xyz -q (see tiered topic list --help)"),
    ],
)
def test_unknown_option_is_told_with_the_most_alike(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == Exit.USAGE and why in said and said.count("\n") == 1


def test_brokers_have_the_name_that_kafkas_tools_give_them() -> None:
    for verb in (["topic", "list"], ["group", "list"], ["cluster", "info"], ["user", "list"], ["acl", "list"]):
        for option in ("--brokers", "--bootstrap-server"):
            assert parser().parse_args([*verb, option, "h:1"]).brokers == "h:1"
    for option in ("--bootstrap", "--bootstrap-server"):
        assert parser().parse_args(["sql", "SELECT 1", option, "h:1"]).bootstrap == "h:1"


DELETING = {"delete", "remove", "trim", "erase", "reset", "offset-delete", "unregister", "drop", "purge"}
WITHOUT_RECORDS = {
    "profile remove": "settings in a file of this machine",
    "cluster unregister": "refused while the broker has a replica",
}


def test_each_verb_that_deletes_can_show_what_it_would_delete() -> None:
    found = {name: verb for name, verb in list_parsers(parser()) if name.split()[-1] in DELETING}
    assert found.keys() >= {"topic delete", "topic trim", "group delete", "acl remove", "table erase", *WITHOUT_RECORDS}
    lacking = {name for name, verb in found.items() if "--dry-run" not in verb._option_string_actions}
    assert lacking == WITHOUT_RECORDS.keys()
    changes = next(verb for name, verb in list_parsers(parser()) if name == "table change")
    assert "--dry-run" in changes._option_string_actions, "it can drop a column"


def test_bounds_of_ranges_are_accepted() -> None:
    made = parser().parse_args(["topic", "create", "t", "-r", "32767", "-p", "-1"])
    assert (made.replicas, made.partitions) == (32767, -1)
    assert parser().parse_args(["cluster", "rebalance", "--throttle", str(INT64)]).throttle == INT64


@pytest.mark.parametrize("number", [str(INT32 + 1), MANY], ids=["33 bits", "5000 digits"])
def test_invalid_partitions_and_brokers_are_refused(number: str, tmp_path: Path) -> None:
    for read in (
        lambda: parse_target(f"t/0=1,{number}"),
        lambda: parse_partition(f"t/{number}"),
        lambda: parse_numbers(number, "-p"),
    ):
        with pytest.raises(Refused):
            read()
    file = tmp_path / "offsets"
    file.write_text(f"t {number} 5\n")
    with pytest.raises(Refused):
        read_offsets_file(str(file))
    file.write_text(f"t 0 {number}\n")
    if number == MANY:
        with pytest.raises(Refused):
            read_offsets_file(str(file))
    else:
        assert read_offsets_file(str(file)) == {TopicPartition("t", 0): INT32 + 1}


def test_too_long_duration_is_no_offset() -> None:
    for text in (f"@-{'9' * 20}d", f"@{MANY}h"):
        with pytest.raises(Refused, match="too long"):
            parse_range(text, 1_700_000_000_000)


def test_value_without_room_in_a_request_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arguments accept these values: a name may be too long, or a sum too large."""
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t", replication_factor=1 << 15)])
    monkeypatch.setattr(command_line, "_load_command", lambda command: lambda args: encode(request, 7))
    assert main(["topic", "create", "t"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith("tiered: the request cannot be made: CreateTopicsRequest")
