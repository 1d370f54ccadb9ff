"""Tests of the model of compacted logs: a cleaned copy stands for what was appended, a hole that no clean explains is
reported, and successors in the bucket cover what they replace."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sim.cluster.cold_cleans import IS_SWEEP, ColdCleans, ColdLog, Replacement
from tests.sim.cluster.compacted_logs import CompactedLog, HeldBatch, held_batches_of
from tests.sim.harness.compaction_rules import CleanBounds
from tests.unit.cold.rig import entry, manifest
from tests.unit.compaction.logs import NOW, Log, clean
from tests.unit.hot.fixtures import config
from tiered.cold.manifest import SegmentEntry
from tiered.object_store.memory import StoredObject

Findings = list[tuple[str, str]]
COMPACTED = config(cleanup_policy=("compact",))


def log_of(history: Log, findings: Findings) -> tuple[CompactedLog, list[HeldBatch]]:
    """Returns a log of which every batch is known, and its batches."""
    log = CompactedLog("t-0", lambda rule, what: findings.append((rule, what)))
    held = held_batches_of(history.data)
    for each in held:
        assert log.take(each.batch.base, each) == [each.batch]
    return log, held


def superseded() -> Log:
    history = Log()
    for number in range(6):
        history.add((b"a", b"%d" % number), (b"only%d" % number, b"x"))
    history.add((b"a", b"7"))
    history.add((b"a", b"8"))
    return history


def test_cleaned_log_stands_for_the_batches_that_were_appended() -> None:
    findings: Findings = []
    history = superseded()
    log, held = log_of(history, findings)
    batches = [each.batch for each in held]
    after = clean(history.data, history.end, upper_bound=history.end).data
    cleaned = held_batches_of(after)
    assert len(cleaned) < len(held)
    log.on_clean(batches, history.data, after, history.end, CleanBounds(history.end, history.end, NOW, 0))
    assert log.restore(0, cleaned) == (batches, "")
    copied = [one for each in cleaned for one in log.take(each.batch.base - 1, each)][-2:]
    assert copied == batches[-2:] and log.is_removed(batches[-2]), "a follower copies the gap"
    assert not findings


def test_hole_that_no_clean_explains_is_found() -> None:
    findings: Findings = []
    history = superseded()
    log, held = log_of(history, findings)
    found, hole = log.restore(0, [*held[:2], *held[3:]])
    assert found == [each.batch for each in held[:2]] and "between 4 and 6" in hole
    assert "between 14 and 15" in log.restore(0, held, history.end + 1)[1]
    cleaned = held_batches_of(clean(history.data, history.end, upper_bound=history.end).data)
    log.restore(0, cleaned[:1])
    assert any("no clean has removed" in what for _, what in findings), "nobody has cleaned so far"


def test_copy_that_comes_after_a_marker_went_is_late() -> None:
    findings: Findings = []
    history = Log()
    history.add((b"a", b"1"), producer=7, transactional=True)
    history.end_transaction(7, commit=False)
    history.add((b"a", b"2"))
    log, held = log_of(history, findings)
    batches, rest = [each.batch for each in held], history.data[len(held[0].data) + len(held[1].data) :]
    log.on_clean(batches, history.data, rest, history.end, CleanBounds(history.end, history.end, NOW, 0))
    assert any("the marker at 1 is gone" in what for _, what in findings)
    assert log.take(0, held[2]) == batches and not log.is_late, "it never had the record"
    assert log.take(1, held[2]) == batches[1:] and log.is_late


def cold_rig(objects: Mapping[str, StoredObject], findings: Findings) -> tuple[ColdCleans, ColdLog]:
    log, held = log_of(superseded(), findings)
    committed = {each.batch.base: each.batch for each in held}
    cleans = ColdCleans(lambda: objects, lambda rule, what: findings.append((rule, what)))
    return cleans, ColdLog(log, committed, log_end(held), [COMPACTED], 0)


def log_end(held: list[HeldBatch]) -> int:
    return held[-1].batch.last + 1


def object_of(data: bytes, base: int, end: int, epoch: int) -> tuple[SegmentEntry, StoredObject]:
    return entry(base, end, epoch=epoch, size=len(data)), StoredObject(data, "", 0)


def test_successors_have_to_cover_what_they_replace() -> None:
    findings: Findings = []
    objects: dict[str, StoredObject] = {}
    cleans, log = cold_rig(objects, findings)
    data = superseded().data
    cut = sum(len(each.data) for each in held_batches_of(data)[:4])
    old = [object_of(data[:cut], 0, 8, 1), object_of(data[cut:], 8, log.committed_end, 1)]
    new = object_of(data[:cut], 0, 8, 2)
    wide = object_of(data[: 2 * cut // 3], 0, 6, 3)
    objects |= {each.key: held for each, held in (*old, new, wide)}
    for first in (old[0], new):
        segments = [first[0], old[1][0]]
        cleans.on_manifest(manifest(*segments, epoch=2), segments, log, 0)
    assert not findings and cleans.replaced.keys() == {old[0][0].key} and cleans.cleans == 1
    cleans.on_manifest(manifest(wide[0], epoch=3), [wide[0], old[1][0]], log, 0)
    assert {rule for rule, _ in findings} == {"I20", "I21"}


def test_replaced_object_that_goes_before_the_grace_time_is_reported() -> None:
    findings: Findings = []
    cleans, _ = cold_rig({}, findings)
    cleans.replaced["old"] = Replacement(1_000_000_000, 9, 1)
    cleans.on_delete(["old", "other"], 3_000_000_000, 2_000)
    token = IS_SWEEP.set(True)
    cleans.on_delete(["old"], 1_500_000_000, 2_000)
    IS_SWEEP.reset(token)
    assert not findings
    cleans.on_delete(["old"], 2_500_000_000, 2_000)
    assert [rule for rule, _ in findings] == ["I23"]
