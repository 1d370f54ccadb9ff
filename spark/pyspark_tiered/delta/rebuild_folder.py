"""The hidden folders in which rebuilds of a table make its files. Pure.

Each folder serves one rebuild: a table names no file in the folder of the next one. Delta's VACUUM leaves folders alone
whose names begin with an underscore.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyspark_tiered.delta.delta_state import TableState

FOLDER = "_rebuild"
APP_ID = "tiered.rebuild"
"""Transaction identifier of the exchanges of a table: its version is the number of the newest one."""

_NUMBERED = re.compile(rf"{FOLDER}/(\d{{6}})/")


def next_number(state: TableState) -> int:
    """Returns the number of the next rebuild of a table. No file of the table lies in its folder."""
    known = [state.versions().get(APP_ID, 0)]
    for action in (*state.files.values(), *state.tombstones.values()):
        if found := _NUMBERED.match(unquote(str(action["path"]))):
            known.append(int(found[1]))
    return max(known) + 1


def folder_of(number: int, topic: str) -> str:
    """Returns the path of a rebuild's own table from the folder of the old one."""
    return f"{FOLDER}/{number:06d}/{topic}"


def finished_folders(state: TableState) -> list[str]:
    """Returns the folders of the rebuilds whose files the table has, or had. One in progress is not among them."""
    _, topic = state.held_topic()
    return [folder_of(number, topic) for number in range(1, next_number(state))]
