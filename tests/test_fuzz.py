"""Tests of every reader of bytes with its corpus and some hundred changes of it: the short form of `make fuzz`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz import rounds
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.rounds import CORPUS, Check, Input, corpus, fuzz, keep
from tiered_api.kafka.protocol import apis
from tiered_api.kafka.protocol.headers import decode_request_header

ROUNDS = {"wire": 3000, "records": 1500, "http": 4000, "files": 1200, "sasl": 3000}
CORPUS_MOST = 200 << 10


@pytest.mark.parametrize("target", TARGETS)
def test_reader_handles_its_corpus_and_changes_of_it(target: str) -> None:
    failure = fuzz(target, TARGETS[target], ROUNDS[target], seed=0)
    if failure is not None:
        told = f"{failure.input.kind} {failure.input.data.hex()[:2000]}; make fuzz OF={target} keeps it"
        raise AssertionError(told) from failure.error


def test_corpus_has_every_request_in_every_served_version() -> None:
    headers = [
        decode_request_header(each.data) for each in corpus("wire") if each.kind == "frame" and len(each.data) > 10
    ]
    found = {(each.key, each.version) for each in headers}
    assert {(api.key, version) for api in apis.ALL_APIS.values() for version in api.served_versions} <= found


def test_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < CORPUS_MOST


@pytest.fixture
def own_corpus(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns a corpus of one target with two inputs, which a test may extend."""
    monkeypatch.setattr(rounds, "CORPUS", tmp_path)
    folder = rounds.CORPUS / "one"
    folder.mkdir()
    (folder / "a-short").write_bytes(b"abc")
    (folder / "b-two.many").write_bytes(b"\0\0\0\1x\0\0\0\2yz")


def refusing(fault: Callable[[bytes], object]) -> Check:
    """Returns a reader that fails on some inputs."""

    def check(_: str, data: bytes) -> None:
        if fault(data):
            raise ValueError(data)

    return check


@pytest.mark.usefixtures("own_corpus")
def test_input_that_broke_a_rule_is_kept_and_tried_again() -> None:
    assert corpus("one") == [Input("a", b"abc"), Input("b", b"x"), Input("b", b"yz")]
    assert fuzz("one", refusing(lambda data: False), 500, seed=0) is None
    longer = refusing(lambda data: len(data) > 5)
    failure = fuzz("one", longer, 500, seed=0)
    assert failure is not None and fuzz("one", longer, 0, seed=0) is None
    same, other = (fuzz("one", longer, 500, seed=seed) for seed in (0, 1))
    assert same is not None and same.input == failure.input
    assert other is not None and other.input != failure.input
    keep("one", failure.input)
    again = fuzz("one", longer, 0, seed=0)
    assert again is not None and again.input == failure.input
