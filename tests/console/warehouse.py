"""A warehouse for the console: tables of a real load, dead letters with markup, and tables of strangers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.console.site import MARKUP, Site
from tests.e2e.serving import run_tiered
from tests.e2e.test_http_tables import add_commit

STRANGE = "<img src=x onerror='globalThis.owned = true'>"
"""The name of a table, and of a column."""


def fill_warehouse(site: Site) -> None:
    """Loads `orders`, and adds dead letters and tables of strangers."""
    tables = site.warehouse
    assert tables is not None
    loaded = run_tiered(
        *("load", "--store", site.store, "--topic", "orders", "--warehouse", str(tables), "--engine", "native")
    )
    assert loaded.returncode == 0, loaded.stderr
    [first] = sorted((tables / "orders" / "_delta_log").glob("0*.json"))[:1]
    [metadata] = [json.loads(line)["metaData"] for line in first.read_text().splitlines() if "metaData" in line]
    add_letters(tables, metadata["configuration"])
    schema = {"type": "struct", "fields": [{"name": STRANGE, "type": "string", "nullable": True, "metadata": {}}]}
    action = {"metaData": {"configuration": {}, "schemaString": json.dumps(schema)}}
    info = {"commitInfo": {"timestamp": 1, "operation": STRANGE}}
    add_commit(tables, STRANGE, "\n".join(map(json.dumps, (info, action))).encode())
    add_commit(tables, "damaged", f"{STRANGE} is no JSON".encode())


def add_letters(tables: Path, configuration: dict[str, str]) -> None:
    """Adds the dead letters of `orders`, whose reasons have markup."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {"_partition": [0, 0, 1], "_offset": [1, 2, 3], "_error": [MARKUP, MARKUP, "no JSON"]}
    (tables / "orders__dead").mkdir()
    pq.write_table(pa.table(rows), tables / "orders__dead" / "part-0.parquet")
    size = (tables / "orders__dead" / "part-0.parquet").stat().st_size
    properties = {**configuration, "tiered.dead.letters": "orders"}
    actions = (
        {"metaData": {"configuration": properties, "schemaString": '{"type": "struct", "fields": []}'}},
        {"add": {"path": "part-0.parquet", "size": size, "partitionValues": {}, "stats": '{"numRecords": 3}'}},
    )
    add_commit(tables, "orders__dead", "\n".join(map(json.dumps, actions)).encode())
