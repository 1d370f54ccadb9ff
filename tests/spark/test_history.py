"""Tests of the changes of other writers to a table, read from commit files: commits that removed rows, and suspect
files."""

from __future__ import annotations

import json
from typing import Any

from pyspark_tiered.delta import history
from pyspark_tiered.delta.history import FileExtent, RowRemoval, TableCommit
from pyspark_tiered.delta.table_form import Advance, FileRun, LoadedFile

ID = "topic"


def lines(
    operation: str, adds: str = "", removes: str = "", data: bool = True, mark: str = "", **parameters: Any
) -> str:
    """Returns a commit file: each letter of `adds` and `removes` is a file."""
    info = {"operation": operation, "operationParameters": parameters, "timestamp": 1_700_000_000_000}
    if mark:
        info["userMetadata"] = mark
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    actions += [{"remove": {"path": path, "dataChange": data}} for path in removes]
    stats = json.dumps({"minValues": {"partition": 0, "offset": 0}, "maxValues": {"partition": 0, "offset": 9}})
    actions += [{"add": {"path": path, "dataChange": data, "stats": stats}} for path in adds]
    return "\n".join(json.dumps(action) for action in actions)


def load(adds: str) -> str:
    return lines("WRITE", adds, mark=history.encode_mark("t", [], [], None, 1), mode="Append")


def find_takers(*commits: str) -> list[RowRemoval]:
    return history.find_row_removals([history.parse_commit(version, text, ID) for version, text in enumerate(commits)])


def test_commit_that_rewrites_or_adds_files_removes_no_rows() -> None:
    optimize = lines("OPTIMIZE", "C", "AB", data=False)
    insert = lines("WRITE", "X", mode="Append")
    assert find_takers(load("AB"), optimize, lines("VACUUM END"), lines("ADD COLUMNS"), insert, load("D")) == []


def test_commit_that_removes_whole_files_is_named() -> None:
    takers = {
        "RESTORE to version 0": lines("RESTORE", "", "B", version="0", timestamp="None"),
        "TRUNCATE": lines("TRUNCATE", "", "AB"),
        "OVERWRITE": lines("WRITE", "Z", "AB", mode="Overwrite"),
        "DELETE of all rows": lines("DELETE", "", "AB", predicate='["true"]'),
        "CREATE OR REPLACE TABLE AS SELECT": lines("CREATE OR REPLACE TABLE AS SELECT", "Z", "AB"),
    }
    for name, text in takers.items():
        (taker,) = find_takers(load("A"), load("B"), text)
        assert (taker.is_selective, taker.description) == (False, f"{name} (version 2, 2023-11-14 22:13:20 UTC)")


def test_delete_of_chosen_rows_is_distinguished() -> None:
    for operation in ("DELETE", "UPDATE", "MERGE"):
        (taker,) = find_takers(load("A"), lines(operation, "B", "A", predicate='["(offset = 17)"]'))
        assert taker.is_selective and taker.description.startswith(f'{operation} ["(offset = 17)"] (version 1')
        assert taker.may_have_removed(0, 9) and not taker.may_have_removed(0, 10) and not taker.may_have_removed(1, 9)


def test_restored_files_count_as_not_removed() -> None:
    truncate = lines("TRUNCATE", "", "AB")
    assert find_takers(load("AB"), truncate, lines("RESTORE", "AB", "", version="0")) == []
    assert find_takers(load("AB"), truncate, lines("RESTORE", "AB", "", version="None", timestamp="2026")) == []
    half = lines("RESTORE", "A", "", version="None", timestamp="2026")
    assert [taker.version for taker in find_takers(load("AB"), truncate, half)] == [1]


def test_restore_undoes_only_later_commits() -> None:
    delete = lines("DELETE", "C", "B", predicate='["x"]')
    back = lines("RESTORE", "AC", "", version="1")
    assert [taker.version for taker in find_takers(load("AB"), delete, lines("TRUNCATE", "", "AC"), back)] == [1]
    before = lines("RESTORE", "", "B", version="0")
    assert [taker.version for taker in find_takers(load("A"), load("B"), before)] == [2]


def test_removed_rows_of_other_writers_are_no_loss() -> None:
    assert find_takers(load("A"), lines("WRITE", "X", mode="Append"), lines("DELETE", "", "X", predicate='["x"]')) == []


def test_deletion_vector_makes_another_file() -> None:
    text = "\n".join(
        json.dumps(action)
        for action in (
            {"commitInfo": {"operation": "DELETE", "operationParameters": {"predicate": '["x"]'}, "timestamp": 0}},
            {"remove": {"path": "A", "dataChange": True}},
            {"add": {"path": "A", "dataChange": True, "deletionVector": {"pathOrInlineDv": "v", "offset": 1}}},
        )
    )
    assert [taker.is_selective for taker in find_takers(load("A"), text)] == [True]


def test_mark_names_the_offsets_of_a_commit() -> None:
    file = LoadedFile("p", 9, 0, (FileRun(1, 5, 10, 14, 0, 0),))
    said = history.encode_mark("t", [file], [Advance(0, -1, 3), Advance(1, 10, 15)], 7, 2, accepted=[])
    each = history.parse_commit(8, lines("WRITE", "p", mark=said), ID)
    offsets = {"0": [0, 3], "1": [10, 15]}
    assert each.mark == {"topic": "t", "offsets": offsets, "rows": 5, "identifiers": 2, "checked": 7}
    assert each.by_loader
    assert not history.parse_commit(8, lines("WRITE", "p", mark="{not ours"), ID).by_loader


def test_commit_without_marks_is_recognized_by_its_identifiers() -> None:
    assert _with_txn(f"{ID}/3").by_loader
    assert not _with_txn(f"{ID}x/3").by_loader


def _with_txn(app: str) -> TableCommit:
    return history.parse_commit(0, json.dumps({"txn": {"appId": app, "version": 1}}), ID)


def test_files_with_unaccounted_rows_are_suspect() -> None:
    loaded = {0: 10, 2: 20}
    assert not history.may_hold_unaccounted(
        [FileExtent(0, 0, 9), FileExtent(2, 2, 19), FileExtent(0, 2, 9)][:2], loaded, None
    )
    assert history.may_hold_unaccounted([FileExtent(0, 0, 10)], loaded, 2)
    assert history.may_hold_unaccounted([FileExtent(1, 1, 0)], loaded, 2)
    assert history.may_hold_unaccounted([FileExtent(None, None, None)], loaded, 2)
    mixed = [FileExtent(0, 2, 19)]
    assert history.may_hold_unaccounted(mixed, loaded, None)
    assert not history.may_hold_unaccounted(mixed, loaded, 2)
    assert history.may_hold_unaccounted(mixed, loaded, 3), "an identifier is gone since the mark"
