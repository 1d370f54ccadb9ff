"""One version of a table, as a load looks at it: Spark's snapshot and the native one have this form."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_tiered.delta import history, table_form
from pyspark_tiered.delta.history import FileExtent, TableCommit
from tiered.errors import Code, Refused

COMMITS_MAX = 1000
"""Commits that are read at most in a log without a mark. A table of today's loader has few since its last mark."""
UNACCOUNTED_MAX = 1000
"""Partitions with rows that no identifier covers: no more are listed."""


class UnaccountedRows(NamedTuple):
    """Rows of a partition that no transaction identifier covers. Partition None: rows without partition or offset."""

    partition: int | None
    first: int | None
    last: int | None


class Snapshot(ABC):
    """A table at one version. Version -1: there is no table."""

    version: int

    def __init__(self, url: str, topic_id: str) -> None:
        self.url = url
        self.topic_id = topic_id

    @abstractmethod
    def loaded_offsets(self) -> dict[int, int]:
        """Returns the next offset per partition, from the transaction identifiers."""

    @abstractmethod
    def extents(self) -> list[FileExtent]:
        """Returns the bounds of the rows in the table's files. Files that are alike may share an entry."""

    @abstractmethod
    def find_unaccounted_rows(self, loaded: Mapping[int, int]) -> list[UnaccountedRows]:
        """Returns rows of partitions without an identifier, or at or above its bound. Reads no other files."""

    @abstractmethod
    def has_file(self, path: str) -> bool:
        """True if the table has this file."""

    @abstractmethod
    def read_commit(self, version: int) -> str | None:
        """Returns the lines of a commit; None if its file was deleted."""

    def commits(self, above: int | None = None, past_marks: bool = False) -> tuple[list[TableCommit], bool]:
        """Returns commits up to this version, in order, and whether the log reaches back far enough.

        The commits are those after `above`, or after the version that the newest mark found sound. With `past_marks`
        they are as many as the log still has.
        """
        found: list[TableCommit] = []
        floor = -1 if above is None else above
        version = self.version
        while version > floor and len(found) < COMMITS_MAX:
            text = self.read_commit(version)
            if text is None:
                break
            each = history.parse_commit(version, text, self.topic_id)
            found.append(each)
            if each.mark is not None and "checked" in each.mark and not past_marks:
                floor = max(floor, int(each.mark["checked"]))
                past_marks = True
            version -= 1
        return found[::-1], version <= floor


def check_table_topic(held: tuple[str, str], url: str, topic: str, topic_id: str) -> None:
    """Raises `Refused` unless the table holds this topic. `held` is the topic's id and name in the table's properties.

    Without an id the table is of another program.
    """
    identity, name = held
    if identity != topic_id:
        content = f"topic {name} with id {identity}" if identity else "something else"
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} holds {content}, not topic {topic} with id {topic_id}: "
            "load into another warehouse, or move the old table away",
        )


def check_columns(schema: str, url: str) -> None:
    """Raises `Refused` unless the table, whose schema is JSON, still has the columns of a load under their names."""
    there = {str(field["name"]) for field in json.loads(schema)["fields"]}
    lacking = [name for name in table_form.COLUMNS if name not in there]
    if lacking:
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} has no column {', '.join(lacking)}: ALTER TABLE renamed or dropped it. "
            "Rename it back, RESTORE the table to the version before, or load into another warehouse",
        )
