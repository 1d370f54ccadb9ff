"""Tests of the objects that a clean in the bucket leaves: leader epochs stay right, and no object spans more offsets
than its indexes can say."""

from __future__ import annotations

import random

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import Rig
from tests.unit.cold.test_cleaner import clean, last_of_each, read, run, upload
from tests.unit.hot.cleaning import facts
from tests.unit.hot.fixtures import NOW, config, open_log
from tiered.compaction.cleanable_range import RELATIVE_MAX
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.records.batch import encode_batch, stamp
from tiered.records.native import walk

SMALL = config(segment_bytes=1024)
WHOLE = config(cleanup_policy=("compact",), segment_bytes=1 << 20)


def record(number: int, keys: int) -> bytearray:
    return bytearray(encode_batch([(NOW, b"k%d" % (number % keys), b"v%d" % number, ())]))


@run_by(run)
async def test_cleaned_objects_know_the_leader_epochs_of_their_offsets(rig: Rig) -> None:
    log, broker = await open_log(SimDisk(random.Random(1)), SMALL), rig.broker()
    for number in range(60):
        log.append(record(number, 5), leader_epoch=number // 7, now_ms=NOW)
    log.roll()
    manifest = await upload(broker, log, 9)
    rows = [row for each in manifest.entries for row in each.lineage]
    assert LeaderEpochs(rows).lineage == log.epochs.lineage and len(log.epochs.lineage) == 9
    result = await clean(broker.make_cleaner(), manifest, settings=WHOLE)
    [only] = result.manifest.entries
    assert result.records_kept == 5 and only.lineage == tuple(log.epochs.lineage)
    found = {each.base_offset: each.leader_epoch for each in walk(await rig.broker("reader").read_all()).batches}
    assert found and all(epoch == offset // 7 for offset, epoch in found.items())


@run_by(run)
async def test_clean_joins_no_objects_whose_offsets_lie_too_far_apart(rig: Rig) -> None:
    log, broker = await open_log(SimDisk(random.Random(1)), WHOLE), rig.broker()
    wide = RELATIVE_MAX // 2
    offsets = [round_ * wide + number for round_ in range(6) for number in range(4)]
    for number, offset in enumerate(offsets):
        data = record(number, 20)
        stamp(data, 0, offset, 0)
        log.append_as_follower(data, now_ms=NOW, may_have_gaps=True)
        if number % 4 == 3:
            log.roll()
    manifest = await upload(broker, log)
    before = await read(broker)
    assert [offset for offset, _, _ in before] == offsets and manifest.segment_count == 6
    result = await clean(broker.make_cleaner(), manifest, settings=WHOLE)
    entries = result.manifest.entries
    assert result.is_whole and 1 < len(entries) < 6
    assert all(each.next_offset - 1 - each.base_offset <= RELATIVE_MAX for each in entries)
    reader = rig.broker("reader")
    assert facts(await reader.read_all()) == last_of_each(before)
    assert [offset for offset, _, _ in await read(reader, offsets[-1])] == offsets[-1:]
