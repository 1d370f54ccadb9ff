"""The result of the last `verify` of a table: one small object in its folder.

Names that begin with an underscore are left alone by Delta: VACUUM, RESTORE and OVERWRITE keep the object.
"""

from __future__ import annotations

import json
import logging
from contextlib import closing
from typing import NamedTuple

from pyspark_tiered.delta.log_folder import TableFolder, open_folder
from tiered.errors import Refused, Unavailable

log = logging.getLogger(__name__)

PATH = "_verified/last.json"
VERSION = 1
"""Version of the object."""


class LastVerify(NamedTuple):
    """A comparison of one version of the table with the log: its time, the rows compared, the faults found."""

    at_ms: int
    table_version: int
    rows: int
    faults: int


def encode_last_verify(result: LastVerify) -> bytes:
    """Returns the JSON of the object."""
    return json.dumps({"version": VERSION} | result._asdict()).encode()


def decode_last_verify(data: bytes | None) -> LastVerify | None:
    """Parses the object; None if there is none, or one of a later version."""
    try:
        found = json.loads(data or b"")
        if found["version"] != VERSION:
            return None
        return LastVerify(*(int(found[name]) for name in LastVerify._fields))
    except (ValueError, KeyError, TypeError):
        return None


def write_last_verify(table_url: str, result: LastVerify) -> None:
    """Keeps the result. A reader may have no permission to write, so a failure is a warning."""
    if not table_url.startswith(("file:", "s3a:")):
        return
    try:
        with closing(open_folder(table_url)) as folder:
            folder.replace(PATH, encode_last_verify(result))
    except (Refused, Unavailable, OSError) as failure:
        log.warning("the result of verify was not kept table=%s why=%s", table_url, failure)


def read_last_verify(folder: TableFolder) -> LastVerify | None:
    """Returns the result of the last verify; None if there is none."""
    return decode_last_verify(folder.read(PATH))
