"""Tests of tables with typed keys, without a JVM: each record is a row or a dead letter, and verify proves both."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.replay import replay_dead
from tests.spark.typed_site import JSON, Site, encode, rewrite
from tiered.errors import Refused

KEYS = LoadOptions(values=ValueRules("json", keys="json"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_keys_and_values_become_columns_or_one_dead_letter(site: Site) -> None:
    keys = [None, b'{"id":1}', b'{"id":"2"}', b'{"id":3,"id":3}', b"plain", b'{"id":6,"of":["a"]}']
    site.write([*encode({"v": 1}, {"v": 2}, {"v": 3}, {"v": 4}, {"v": 5}), None], keys=keys)
    done = site.load(KEYS)
    assert (done.rows, done.typed_rows, done.dead_letters) == (6, 3, 3)
    assert site.columns() == "_typed_key struct<id: bigint, of: array<string>>, v bigint"
    assert site.letters() == {
        2: "_typed_key.id is text where the column holds bigint",
        3: "key: the name 'id' twice in one object",
        4: "key: not JSON at character 0: Expecting value",
    }
    assert site.rows("_key", "_typed_key", "v") == [
        (None, None, 1),
        (b'{"id":1}', {"id": 1, "of": None}, 2),
        (b'{"id":6,"of":["a"]}', {"id": 6, "of": ["a"]}, None),
    ]
    site.check_offsets()
    assert (site.verify().ok, site.verify().rows, site.verify().dead) == (True, 3, 3)


def test_column_of_the_key_comes_late_widens_and_is_remembered(site: Site) -> None:
    site.write(encode({"v": 1, "_typed_key": "x"}), keys=[None])
    site.load(KEYS)
    assert (site.columns(), site.verify().ok) == ("v bigint, _typed_key string", True)
    for key, kind in ((b"5", "bigint"), (b"0.5", "double")):
        site.write(encode({"v": 2}), keys=[key])
        assert (site.load(LoadOptions()).dead_letters, site.verify().ok) == (0, True)
        assert site.columns() == f"_typed_key {kind}, v bigint, _typed_key string"
    assert site.rows("_typed_key", "_typed_key_2") == [(None, "x"), (5.0, None), (0.5, None)]
    site.check_offsets()


def test_key_that_is_not_the_one_of_the_record_is_found(site: Site) -> None:
    site.write(encode(*({"v": i} for i in range(5))), keys=[b'{"id":%d}' % i for i in range(5)])
    site.load(KEYS)
    rewrite(site.typed(), lambda rows: [{**row, "_typed_key": {"id": 3}} for row in rows])
    assert [each[:3] for each in site.verify().faults] == [("changed", 0, at) for at in (0, 1, 2, 4)]


def test_replay_makes_rows_of_keys_that_fit_after_a_rule(site: Site) -> None:
    site.write(encode({"v": 1}, {"v": 2}, {"v": "x"}), keys=[b'{"id":1}', b'{"id":"b"}', b'{"id":3}'])
    site.load(KEYS)
    assert sorted(site.letters()) == [1, 2]
    FieldChanger(site.store, "t", site.warehouse, "_typed_key.id").move_values("id_text")
    assert replay_dead(site.store, "t", site.warehouse).rows == 1
    assert site.rows("_typed_key", "v") == [({"id": 1}, 1), ({"id": None, "id_text": "b"}, 2)]
    assert (site.verify().ok, sorted(site.letters())) == (True, [2])
    FieldChanger(site.store, "t", site.warehouse, "_typed_key.id_text").rename("name")
    site.write([None], keys=[b'{"id":"d"}'])
    site.load(LoadOptions())
    assert site.rows("_typed_key")[-1] == ({"id": None, "name": "d"},)
    assert site.verify().ok
    with pytest.raises(Refused, match="_typed_key is the whole key: it stays"):
        FieldChanger(site.store, "t", site.warehouse, "_typed_key").drop()


def test_keys_of_change_events_are_their_payloads(site: Site) -> None:
    keys = [b'{"schema":{"type":"struct"},"payload":{"id":1}}', b'{"id":2}']
    site.write([*encode({"op": "c"}), None], keys=keys)
    site.load(LoadOptions(values=ValueRules("debezium", keys="debezium")))
    assert site.rows("_typed_key", "op") == [({"id": 1}, "c"), ({"id": 2}, None)]
    assert site.verify().ok


def test_other_keys_than_those_of_the_table_are_refused(site: Site) -> None:
    site.write(encode({"v": 1}), keys=[b"1"])
    site.load(LoadOptions(values=ValueRules("json", keys="json", declared_key="BIGINT")))
    site.load(JSON)
    with pytest.raises(Refused, match="has keys of the kind `json` and not `debezium`: load without --keys"):
        site.load(LoadOptions(values=ValueRules("json", keys="debezium")))
    with pytest.raises(Refused, match="has the key schema `BIGINT` and not `STRING`"):
        site.load(LoadOptions(values=ValueRules("json", keys="json", declared_key="STRING")))
    other = Site(Path(site.warehouse, "other"))
    other.write(encode({"v": 1}), keys=[b"1"])
    other.load()
    with pytest.raises(Refused, match="has no typed keys: load without --keys"):
        other.load(KEYS)
