"""The property by which each version of a table has metadata of Iceberg, set on a table that is there."""

from __future__ import annotations

import json

from pyspark_tiered.delta.log_folder import UnclearOutcome
from pyspark_tiered.delta.table_features import is_true
from pyspark_tiered.iceberg.metadata import ENABLED
from pyspark_tiered.load.native_table import NativeTable
from tiered.errors import Unavailable


def export_iceberg(table: NativeTable) -> None:
    """Gives a table the property if it is asked for and missing, and writes the metadata that are missing.

    Raises `Refused` if Iceberg cannot have the table, and `Unavailable`.
    """
    if table.iceberg.is_asked:
        state = table.snapshot().state
        if state.version >= 0 and not is_true(state.properties(), ENABLED):
            table.iceberg.check()
            _set_property(table)
    table.iceberg.catch_up()


def _set_property(table: NativeTable) -> None:
    before = table.snapshot().state.metadata
    wanted = {**before, "configuration": {**(before.get("configuration") or {}), ENABLED: "true"}}
    mark = table.encode_mark([], [], checked=table.checked_version, seen=table.newest_mark.get("seen"))
    operation = {"operation": "SET TBLPROPERTIES", "operationParameters": {}, "isBlindAppend": True}
    lines = [json.dumps({"metaData": wanted})]
    try:
        table.create(lambda _: lines, lambda state: state.metadata == before, mark, operation)
    except UnclearOutcome as failure:
        raise Unavailable(f"{table.url} may have the property {ENABLED} now: {failure}") from failure
