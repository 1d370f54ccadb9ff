"""Tests of the tables of a warehouse over HTTP: their facts, rights, bounds, and what no table may do to a broker."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.delta.delta_state import append_operation, commit_lines, commit_name
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.delta.table_form import SCHEMA, Advance, commit_actions, creation_actions
from pyspark_tiered.typed.form import DEAD_OF, VALUES
from tests.e2e.http_site import TEST_SECONDS, HttpBroker, run
from tests.e2e.test_http_rights import SETTINGS, ask, grant, start
from tests.scenario import run_by
from tiered_api.http.overview import warehouse

NOW_MS = 1_790_000_000_000


def add_commit(tables: Path, name: str, text: bytes) -> Path:
    log = tables / name / LOG
    log.mkdir(parents=True, exist_ok=True)
    path = log / commit_name(len(list(log.iterdir())))
    path.write_bytes(text)
    return path


def add_table(
    tables: Path, name: str, topic: str, topic_id: object, offsets: Mapping[int, int], **properties: str
) -> None:
    """Adds a table without rows that has loaded these offsets."""
    unique = str(uuid.uuid4())
    actions = creation_actions(topic, str(topic_id), SCHEMA, unique, NOW_MS, properties=properties)
    actions += commit_actions(str(topic_id), [], [Advance(number, -1, end) for number, end in offsets.items()], NOW_MS)
    text = commit_lines(
        actions, unique=unique, now_ms=NOW_MS, read_version=-1, operation=append_operation([]), user_metadata=""
    )
    add_commit(tables, name, text)


def run_with_tables(directory: Path, scenario: Callable[[HttpBroker], Awaitable[None]], **given: Any) -> None:
    """Runs a scenario on a broker that is told of the warehouse `tables`, and has all time to read it."""
    (directory / "tables").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warehouse, "READ_SECONDS", TEST_SECONDS)
        run(directory / "data", scenario, tiered_console_warehouse=str(directory / "tables"), **given)


@run_by(run_with_tables, "tmp_path")
async def test_tables_are_listed_with_what_is_behind_them(site: HttpBroker, *, tmp_path: Path) -> None:
    await site.create("t", 2)
    await site.produce("t", *"abcde")
    tables, topic_id = tmp_path / "tables", site.broker.image.topics["t"].topic_id
    add_table(tables, "t", "t", topic_id, {0: 3})
    add_table(tables, "t_typed", "t", topic_id, {0: 5}, **{VALUES: "json"})
    add_table(tables, "t__dead", "t", topic_id, {}, **{DEAD_OF: "t"})
    add_table(tables, "gone", "gone", uuid.uuid4(), {0: 3})
    add_commit(tables, "strange", b"no JSON")
    found = (await site.get("/tiered/v1/tables")).json
    assert found["is_set"] and found["problem"] is None and found["warehouse"] == str(tables)
    rows = {each["table"]: each for each in found["tables"]}
    assert list(rows) == ["gone", "strange", "t", "t__dead", "t_typed"]
    assert {name: each["kind"] for name, each in rows.items()} == {
        "gone": "raw", "strange": "unreadable", "t": "raw", "t__dead": "dead letters", "t_typed": "typed",
    }  # fmt: skip
    assert {name: each["lag"] for name, each in rows.items()} == {
        "gone": None, "strange": None, "t": 2, "t__dead": None, "t_typed": 0,
    }  # fmt: skip
    assert (rows["t"]["dead_letters"], rows["gone"]["dead_letters"], rows["t"]["verified"]) == (0, None, None)
    assert rows["t"]["committed_ms"] == rows["t"]["loaded_ms"] == NOW_MS and rows["t"]["is_topic_there"]
    assert not rows["gone"]["is_topic_there"] and "no JSON" in rows["strange"]["problem"]
    one = (await site.get("/tiered/v1/tables/t?versions=3")).json
    assert one["partitions"] == [
        {"partition": 0, "next_offset": 3, "log_end_offset": 5, "lag": 2},
        {"partition": 1, "next_offset": 0, "log_end_offset": 0, "lag": 0},
    ]
    assert [(each["version"], each["operation"], each["time_ms"]) for each in one["versions"]] == [(0, "WRITE", NOW_MS)]
    assert one["columns"][0] == {"name": "partition", "type": "int"} and one["reasons"] == []
    bar = (await site.get("/tiered/v1/topics/t/table")).json
    assert (bar["table"], bar["offsets"], bar["problem"]) == ("t", {"0": 3}, None)
    why = (await site.get("/tiered/v1/tables/t/explain")).json
    assert why["facts"][0]["code"] == "not-in-bucket" and why["facts"][0]["values"]["lag"] == 2, why
    assert (await site.get("/tiered/v1/tables/absent/explain")).status == 404
    assert "cannot be read" in (await site.get("/tiered/v1/tables/strange/explain")).json["sentences"][0]
    await site.create("unloaded")
    why = (await site.get("/tiered/v1/tables/unloaded/explain")).json
    assert [each["code"] for each in why["facts"]] == ["never-loaded"]
    bar = (await site.get("/tiered/v1/topics/unloaded/table")).json
    assert (bar["table"], bar["offsets"], bar["problem"], bar["is_set"]) == (None, {}, None, True)


@run_by(run_with_tables, "tmp_path")
async def test_table_of_a_recreated_topic_is_not_its_own(site: HttpBroker, *, tmp_path: Path) -> None:
    await site.create("t")
    await site.produce("t", "a")
    add_table(tmp_path / "tables", "t", "t", uuid.uuid4(), {0: 7})
    assert (await site.get("/tiered/v1/topics/t/table")).json["offsets"] == {}
    [row] = (await site.get("/tiered/v1/tables")).json["tables"]
    assert (row["lag"], row["is_topic_there"]) == (None, False)


@run_by(run_with_tables, "tmp_path")
async def test_bad_requests_for_tables_get_words(site: HttpBroker, *, tmp_path: Path) -> None:
    assert (await site.get("/tiered/v1/tables/t?versions=0")).status == 400
    assert (await site.get("/tiered/v1/tables/t?versions=x")).status == 400
    for name in ("absent", "..%2Fdata", "x" * 400):
        reply = await site.get(f"/tiered/v1/tables/{name}")
        assert reply.status == 404 or "no table" in reply.json["problem"], reply
    assert (await site.get("/tiered/v1/topics/absent/table")).json["error_code"] == 40401
    (tmp_path / "tables").rmdir()
    found = (await site.get("/tiered/v1/tables")).json
    assert found["tables"] == [] and "there is no warehouse" in found["problem"]
    assert (await site.get("/tiered/v1/tables/t?versions=7")).status == 503


@run_by(run, "tmp_path")
async def test_broker_without_a_warehouse_names_the_setting(site: HttpBroker) -> None:
    found = (await site.get("/tiered/v1/tables")).json
    assert (found["is_set"], found["warehouse"], found["tables"]) == (False, None, [])
    assert warehouse.SETTING in (await site.get("/tiered/v1/tables/t")).json["message"]
    await site.create("t")
    assert not (await site.get("/tiered/v1/topics/t/table")).json["is_set"]


@run_by(run_with_tables, "tmp_path")
async def test_broker_without_the_extra_names_it(
    site: HttpBroker, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = util.find_spec
    monkeypatch.setattr(warehouse, "find_spec", lambda name: None if name == "pyarrow" else there(name))
    found = (await site.get("/tiered/v1/tables")).json
    assert found["tables"] == [] and "pip install '.[sql]'" in found["problem"]
    assert "pyarrow" in (await site.get("/tiered/v1/tables/t")).json["message"]


@run_by(run_with_tables, "tmp_path", **SETTINGS)
async def test_tables_are_for_those_who_may_read_their_topic(site: HttpBroker, *, tmp_path: Path) -> None:
    await start(site, "t", "hidden")
    tables, topics = tmp_path / "tables", site.broker.image.topics
    for topic in ("t", "hidden"):
        add_table(tables, topic, topic, topics[topic].topic_id, {0: 1})
        add_commit(tables, f"{topic}_typed", b"no JSON")
    add_commit(tables, "strange", b"no JSON")
    await grant(site, "alice", ("TOPIC", "t", "READ"))
    await grant(site, "bob", ("CLUSTER", "kafka-cluster", "DESCRIBE"))
    names = {}
    for user in ("root", "alice", "bob"):
        reply = (await ask(site, user, "GET", "/tiered/v1/tables")).json
        names[user] = [each["table"] for each in reply["tables"]]
        assert (reply["warehouse"] is not None) == (user == "root") and reply["partial"] == (user == "alice")
    everything = ["hidden", "hidden_typed", "strange", "t", "t_typed"]
    assert names == {"root": everything, "alice": ["t", "t_typed"], "bob": everything}
    hidden, absent = [await ask(site, "alice", "GET", f"/tiered/v1/tables/{name}") for name in ("hidden", "absent")]
    assert hidden.status == absent.status == 404
    assert hidden.body.replace(b"hidden", b"absent") == absent.body
    assert (await ask(site, "alice", "GET", "/tiered/v1/topics/hidden/table")).json["error_code"] == 40301
    assert (await ask(site, "alice", "GET", "/tiered/v1/topics/t/table")).json["offsets"] == {"0": 1}


@run_by(run_with_tables, "tmp_path")
async def test_warehouse_that_does_not_reply_holds_up_nothing(
    site: HttpBroker, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is a pipe is never read to its end, as that of a bucket that does not reply."""
    monkeypatch.setattr(warehouse, "READ_SECONDS", 3.0)
    (tmp_path / "tables" / "slow" / LOG).mkdir(parents=True)
    os.mkfifo(tmp_path / "tables" / "slow" / LOG / commit_name(0))
    asked = asyncio.create_task(site.get("/tiered/v1/tables"))
    assert (await site.get("/healthz")).status == 200
    found = (await asked).json
    assert found["problem"] == "the warehouse was not read within 3 s: tables may be missing"
    assert all(each["problem"] == "not read within 3 s" for each in found["tables"])


@run_by(run_with_tables, "tmp_path")
async def test_reports_on_tables_are_shared_and_bounded(
    site: HttpBroker, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[warehouse.Asked] = []
    run_process = warehouse._run

    async def count(place: str, asked: warehouse.Asked, lines: warehouse.ReportLines) -> bool:
        made.append(asked)
        return await run_process(place, asked, lines)

    monkeypatch.setattr(warehouse, "_run", count)
    replies = await asyncio.gather(*(site.get("/tiered/v1/tables") for _ in range(8)))
    assert {each.status for each in replies} == {200} and made == [warehouse.Asked()]
    replies = await asyncio.gather(*(site.get(f"/tiered/v1/tables/t{number}") for number in range(12)))
    assert {each.status for each in replies} == {404, 503} and len(made) <= 1 + warehouse.MAKING_MAX
