"""Tests of typed tables with variants: Spark reads what our encoder writes, and verify proves it."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.variant import encode_variant
from tests.spark.typed_site import Site, encode, rewrite
from tiered.errors import Refused

VARIANT = LoadOptions(values=ValueRules("variant", keys="json", declared_key="VARIANT"))
PART = LoadOptions(values=ValueRules("json", "id INT, v VARIANT"))


def random_value(rng: Random, depth: int = 0) -> Any:
    match rng.randrange(9 if depth < 4 else 6):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2 | 3:
            return rng.choice([-1, 1]) * rng.getrandbits(rng.randrange(1, 63))
        case 4:
            return rng.random() * 10.0 ** rng.randrange(-9, 9)
        case 5:
            return rng.choice(["", "é\u20ac\U0001f600", "x" * 63, "y" * 64, '"\\\n'])
        case 6:
            return [random_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 300 if depth == 0 else 2]))]
        case _:
            count = rng.choice([0, 1, 3, 300 if depth == 0 else 2])
            return {f"{rng.choice('kK é')}{i}": random_value(rng, depth + 1) for i in range(count)}


def test_spark_reads_variants_as_they_were_sent(tmp_path: Path, spark: SparkSession) -> None:
    rng, site = Random(7), Site(tmp_path)
    values = [random_value(rng) for _ in range(200)]
    site.write([*encode(*values), None, b"no JSON"], keys=[b'{"id":%d}' % i for i in range(202)])
    site.load(VARIANT)
    assert (site.columns(), sorted(site.letters())) == ("_typed_key variant, value variant", [201])
    name = f"delta.`{site.warehouse}/t_typed`"
    query = f"SELECT to_json(value), _typed_key:id::int FROM {name} ORDER BY _offset"
    rows = [(None if text is None else json.loads(text), key) for text, key in spark.sql(query).collect()]
    assert rows == [(value, i) for i, value in enumerate([*values, None])]
    assert (site.verify().ok, site.verify().rows, site.verify().dead) == (True, 201, 1)
    spark.sql(f"OPTIMIZE {name}")
    site.write(encode({"late": 1}), keys=[b"{}"])
    assert (site.load(LoadOptions()).typed_rows, site.verify().ok) == (1, True)
    assert spark.sql(f"SELECT count(*) FROM {name} WHERE value:late::int = 1").collect()[0][0] == 1
    with SqlSession(site.warehouse) as session, pytest.raises(Refused, match="with variantType: use `--engine spark`"):
        session.run("SELECT count(*) FROM t_typed")


def test_column_of_variants_keeps_what_no_column_holds(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"id": 1, "v": {"a": 1}}, {"v": "text", "new": 1}, {"v": [1, "x"]}, {"v": 1 << 64}))
    site.load(PART)
    assert (site.columns(), sorted(site.letters())) == ("id int, v variant, new bigint", [3])
    site.write(encode({"id": 0.5}))
    assert (site.load(LoadOptions()).dead_letters, site.columns()) == (0, "id double, v variant, new bigint")
    assert site.rows("v")[1] == (encode_variant("text")._asdict(),)
    assert site.verify().ok


def test_changed_variant_is_found(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"v": {"a": 1}}, {"v": {"a": 2}}))
    site.load(PART)
    rewrite(site.typed(), lambda rows: [row | {"v": encode_variant({"a": 1})._asdict()} for row in rows])
    assert [each[:3] for each in site.verify().faults] == [("changed", 0, 1)]
