"""The names of schemas in record batches: each frame once, with the numbers of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ports import Buffer
from tiered.records.batch import decode_header
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.records.pieces import iterate_records
from tiered.registry.record_validation import HEADERS, KEY, SubjectRule, cut_frame
from tiered.thread_pool import end_if_abandoned

NUMBERS_MAX = 1_000
"""Most records that are noted for one frame: as many as a reply names."""
RECORDS_AT_ONCE = 10_000


class BatchFrames(NamedTuple):
    """The frames of one batch by rule, and the numbers of their first records. `why` is not empty if the records cannot
    be read."""

    records: dict[SubjectRule, dict[bytes, list[int]]]
    why: str = ""


def collect_frames(data: Buffer, rules: Sequence[SubjectRule]) -> list[BatchFrames]:
    """Returns the frames of each batch. Takes as long as the records are many."""
    return [
        BatchFrames({}) if batch.attributes & CONTROL else _collect(data, batch.position, rules)
        for batch in walk(data, check_crc=False).batches
    ]


def _collect(data: Buffer, position: int, rules: Sequence[SubjectRule]) -> BatchFrames:
    found: dict[SubjectRule, dict[bytes, list[int]]] = {rule: {} for rule in rules}
    parts = [(rule.part == KEY, HEADERS[rule.part], found[rule]) for rule in rules]
    try:
        for number, record in enumerate(iterate_records(data, position, decode_header(data, position))):
            if number % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1:
                end_if_abandoned()
            for is_key, name, frames in parts:
                own = record.key if is_key else record.value
                if own is None:
                    continue
                header = next((value for each, value in record.headers if each == name), None)
                numbers = frames.setdefault(cut_frame(own, header), [])
                if len(numbers) < NUMBERS_MAX:
                    numbers.append(number)
    except Corrupt as error:
        return BatchFrames({}, str(error))
    return BatchFrames(found)
