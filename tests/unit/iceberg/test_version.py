"""Tests of the versions of an Iceberg table: each has the files that the Delta table has."""

from __future__ import annotations

import io
import random

import pyarrow.parquet as pq
import pytest

from pyspark_tiered.iceberg.manifest import ADDED, DELETED, EXISTING
from pyspark_tiered.iceberg.version import FULL, SMALL_MAX
from tests.unit.iceberg.commits import METADATA, Table, add, remove, with_vector
from tiered.errors import Refused

CREATE = {"metaData": METADATA}


def test_first_version_has_all_files_that_the_table_then_has() -> None:
    table = Table()
    made = table.commit(CREATE, add("a"), add("b", 3))
    assert table.live() == ["a", "b"]
    assert {each.status for each in table.entries()} == {ADDED}
    (snapshot,) = made.metadata["snapshots"]
    assert (snapshot["snapshot-id"], snapshot["sequence-number"]) == (1, 1)
    assert snapshot["summary"]["total-records"] == "5"
    assert list(made.files)[-1] == "v1.metadata.json", "all that it names is there before"


def test_load_adds_one_manifest_and_reads_none() -> None:
    table = Table()
    before = table.commit(CREATE, add("a"))
    after = table.commit(add("b"), add("c"))
    assert table.manifests_read == 0
    assert after.manifests[:-1] == before.manifests
    assert after.manifests[-1].files == (2, 0, 0)
    assert [each.split("-")[0] for each in after.files] == ["m", "snap", "v2.metadata.json"]
    assert table.live() == ["a", "b", "c"]
    assert after.metadata["snapshots"][-1]["summary"]["operation"] == "append"


def test_removed_file_is_deleted_in_its_version_and_gone_in_the_next() -> None:
    table = Table()
    table.commit(CREATE, add("a"), add("b"))
    table.commit(add("c"))
    made = table.commit(remove("a", dataChange=False), remove("c", dataChange=False), add("ac", 4, dataChange=False))
    found = {each.file.path.rpartition("/")[2]: (each.status, each.snapshot) for each in table.entries()}
    assert found == {"a": (DELETED, 3), "b": (EXISTING, 1), "c": (DELETED, 3), "ac": (ADDED, 3)}
    summary = made.metadata["snapshots"][-1]["summary"]
    assert (summary["operation"], summary["deleted-records"], summary["total-records"]) == ("replace", "4", "6")
    after = table.commit(add("d"))
    assert [each.live for each in after.manifests] == [1, 1, 1], "the manifest of c had no other file"
    assert table.live(0) == ["a", "b"], "an older version is read as before"


def deletes(table: Table, number: int = -1) -> dict[str, tuple[list[int], int]]:
    """Returns the deleted rows of each data file by the files of deletes that are for it, and their sequence number."""
    found = {}
    entries = [each for each in table.entries(number) if each.status != DELETED]
    sequences = {each.file.path: each.sequence for each in entries if not each.file.of}
    for each in entries:
        if each.file.of:
            rows = pq.read_table(io.BytesIO(table.files[each.file.path.rpartition("/")[2]]))
            assert set(rows["file_path"].to_pylist()) == {each.file.of}
            assert sequences[each.file.of] == each.sequence, "older deletes are not for the file"
            found[each.file.of.rpartition("/")[2]] = rows["pos"].to_pylist(), each.sequence
    return found


def test_deletion_vector_is_a_file_of_position_deletes() -> None:
    table = Table()
    first, grown = with_vector("a", 1, rows=4), with_vector("a", 1, 3, rows=4)
    table.commit(CREATE, first[1], add("b"))
    assert deletes(table) == {"a": ([1], 1)}
    made = table.commit(remove("a", deletionVector=first[0]), grown[1], add("c"))
    assert deletes(table) == {"a": ([1, 3], 2)} and table.live() == ["a", "b", "c"]
    summary = made.metadata["snapshots"][-1]["summary"]
    assert (summary["total-position-deletes"], summary["total-delete-files"]) == ("2", "1")
    assert [each.has_deletes for each in made.manifests] == [False, True, False, True]
    made = table.commit(remove("a", deletionVector=grown[0]), add("a2"))
    assert deletes(table) == {} and table.live() == ["a2", "b", "c"]
    assert made.metadata["snapshots"][-1]["summary"]["total-position-deletes"] == "0"
    assert deletes(table, 0) == {"a": ([1], 1)}, "an older version is read as before"


def test_table_that_is_there_comes_with_its_deletes() -> None:
    table = Table()
    table.commit(CREATE, with_vector("a", 0)[1], with_vector("b", 1)[1], add("c"))
    assert deletes(table) == {"a": ([0], 1), "b": ([1], 1)}


def test_operation_says_what_happened_to_rows() -> None:
    table = Table()
    table.commit(CREATE, add("a"), add("b"), add("c"))
    for actions, wanted in (
        ([remove("a")], "delete"),
        ([remove("b"), add("b2")], "overwrite"),
        ([{"txn": {"appId": "T/0", "version": 9}}], "append"),
    ):
        made = table.commit(*actions)
        assert made.metadata["snapshots"][-1]["summary"]["operation"] == wanted
    assert table.live() == ["b2", "c"]


def test_file_that_another_engine_describes_anew_is_in_the_table_once() -> None:
    table = Table()
    table.commit(CREATE, add("a", 2))
    table.commit(add("b", 3))
    table.commit(add("a", 2, dataChange=False), engine="Apache-Spark/4.2.0 Delta-Lake/4.4.0")
    assert table.live() == ["a", "b"]
    assert table.versions[-1].metadata["snapshots"][-1]["summary"]["total-records"] == "5"


def test_file_that_was_never_in_the_table_may_be_removed() -> None:
    table = Table()
    table.commit(CREATE, add("a"))
    table.commit(remove("other"))
    assert table.live() == ["a"]


def test_same_log_gives_the_same_bytes() -> None:
    def make() -> Table:
        table = Table()
        table.commit(CREATE, add("a"), add("b"))
        table.commit(add("c"))
        table.commit(remove("b"), add("d"))
        return table

    assert make().files == make().files


def test_many_loads_leave_few_manifests_and_join_them_seldom() -> None:
    table = Table()
    table.commit(CREATE)
    for number in range(3 * SMALL_MAX):
        made = table.commit(add(f"f{number:03d}"))
        assert len(made.manifests) <= SMALL_MAX + 2
    assert table.manifests_read < 4 * SMALL_MAX
    assert table.live() == [f"f{number:03d}" for number in range(3 * SMALL_MAX)]
    firsts = {each.file.path.rpartition("/")[2]: each.snapshot for each in table.entries()}
    assert firsts["f000"] == 2, "a file keeps the snapshot that added it"


def test_large_manifest_is_not_written_again_for_new_files() -> None:
    table = Table()
    made = table.commit(CREATE, *[add(f"f{number:05d}") for number in range(FULL + 1)])
    assert [each.live for each in made.manifests] == [FULL, 1]
    for number in range(SMALL_MAX + 1):
        made = table.commit(add(f"g{number:03d}"))
    assert table.versions[0].manifests[0] in made.manifests


@pytest.mark.parametrize("seed", range(5))
def test_each_version_has_the_files_of_the_delta_table(seed: int) -> None:
    rng = random.Random(seed)
    table = Table()
    table.commit(CREATE)
    wanted: list[list[str]] = [[]]
    vectors: dict[str, list[int]] = {}
    for number in range(60):
        live = list(wanted[-1])
        gone = rng.sample(live, rng.randint(0, min(len(live), 4))) if rng.random() < 0.4 else []
        new = [f"f{number}-{each}" for each in range(rng.randint(0, 3))]
        marked = [each for each in rng.sample(live, min(len(live), 2)) if each not in gone]
        actions = [with_vector(each, number % 2) for each in marked]
        vectors |= {each: [number % 2] for each in marked}
        table.commit(*map(remove, [*gone, *marked]), *(action for _, action in actions), *map(add, new))
        vectors = {name: rows for name, rows in vectors.items() if name not in gone}
        assert {name: rows for name, (rows, _) in deletes(table).items()} == vectors
        wanted.append(sorted(each for each in [*live, *new] if each not in gone))
        assert table.live() == wanted[-1]
        assert table.versions[-1].metadata["snapshots"][-1]["summary"]["total-data-files"] == str(len(wanted[-1]))
    for number in rng.sample(range(60), 10):
        assert table.live(number) == wanted[number], "later versions change no earlier one"


def test_file_that_iceberg_cannot_have_is_refused_by_name() -> None:
    for made, why in (
        (add("s", stats=None), "how many rows s has"),
        (add("file:/elsewhere/x"), "has a file elsewhere"),
    ):
        table = Table()
        table.commit(CREATE, add("a"))
        with pytest.raises(Refused, match=why):
            table.commit(made)
