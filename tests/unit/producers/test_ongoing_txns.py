"""Tests of transactions that hold back the last stable offset."""

from __future__ import annotations

from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import (
    apply_batches,
    marker,
    walked_batch,
)
from tiered.producers.aborted_txns import AbortedTxn
from tiered.producers.ongoing_txns import OngoingTxns
from tiered.producers.states import ProducerStates
from tiered.records.model import TRANSACTIONAL


def test_open_transaction_holds_the_stable_offset_until_its_marker_commits() -> None:
    states = apply_batches(
        walked_batch(0, offset=4, attributes=TRANSACTIONAL), walked_batch(1, offset=5, attributes=TRANSACTIONAL)
    )
    assert states.txns.first_unstable_offset == 4
    assert states.end_transaction(*marker(6, commit=True), NOW) is None
    assert states.txns.first_unstable_offset == 4
    states.txns.on_high_watermark(6)
    assert states.txns.first_unstable_offset == 4
    states.txns.on_high_watermark(7)
    assert states.txns.first_unstable_offset is None


def test_marker_above_the_high_watermark_keeps_its_transaction_unstable() -> None:
    states = apply_batches(
        walked_batch(0, offset=4, attributes=TRANSACTIONAL),
        walked_batch(0, offset=5, producer=8, attributes=TRANSACTIONAL),
    )
    states.end_transaction(*marker(6, commit=True), NOW)
    states.end_transaction(*marker(7, commit=True, producer=8), NOW)
    states.txns.on_high_watermark(7)
    assert states.txns.first_unstable_offset == 5
    states.txns.on_high_watermark(8)
    assert states.txns.first_unstable_offset is None


def test_aborted_transaction_has_kafkas_index_entry() -> None:
    states = apply_batches(
        walked_batch(0, offset=4, attributes=TRANSACTIONAL),
        walked_batch(0, offset=5, producer=8, attributes=TRANSACTIONAL),
    )
    aborted = states.end_transaction(*marker(6, commit=False), NOW)
    assert aborted == AbortedTxn(producer_id=7, first_offset=4, last_offset=6, last_stable_offset=5)
    assert aborted is not None
    again = ProducerStates.from_snapshot(states.encode_snapshot(), 7)
    assert again.txns.first_unstable_offset == 5


def test_last_stable_offset_after_a_marker_is_the_next_open_transaction() -> None:
    txns = OngoingTxns([(4, 7), (6, 8)])
    assert (txns.first_offset, txns.oldest_producer_id, txns.list_begun_below(6)) == (4, 7, [7])
    assert txns.end(4, 9) == 6
    assert txns.end(6, 10) == 11, "none is open: the marker is the last of it"
    assert txns.first_offset is None and not txns.has_begun_below(100)
    assert txns.first_unstable_offset == 4, "no marker is known to be replicated"
    txns.on_high_watermark(10)
    assert txns.first_unstable_offset == 6
    txns.check()
