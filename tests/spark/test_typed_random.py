"""Random loads of typed tables: after each load `verify` finds them whole, and it finds each damage that is done then.

The records have fields that stay empty for a while, get columns, wider columns and values of other types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.names import RECORD_COLUMNS
from pyspark_tiered.typed.replay import replay_dead
from tests.seeds import first_seeds
from tests.spark.json_records import RandomRecords
from tests.spark.typed_site import Site
from tiered.errors import Refused

Row = dict[str, Any]
RULES = [
    ValueRules("json"),
    ValueRules("json", keys="json"),
    ValueRules("json", "a BIGINT, b ARRAY<STRUCT<a: DOUBLE>>, c MAP<STRING, STRUCT<a: BIGINT>>"),
]


class RandomTable:
    """A topic with random records, its typed table, and loads, rules and replays in a random order."""

    def __init__(self, root: Path, seed: int, spark: SparkSession | None = None) -> None:
        self.rng = Random(seed)
        self.site = Site(root, partitions=2)
        self._records = RandomRecords(self.rng)
        self._rules = self.rng.choice(RULES)
        self._spark = spark

    def run(self, turns: int) -> None:
        """Loads random records some times. Both tables are whole after each step."""
        for turn in range(turns):
            self._records.turn = turn
            self._write()
            self.site.load(LoadOptions(values=self._rules), self.rng.choice([None, 2000]), self._pick_session())
            self.check()
            if self.rng.random() < 0.3:
                self._change_field()
                self.check()
            if self.rng.random() < 0.4:
                fitting = self.site.verify().fitting
                done = replay_dead(self.site.store, "t", self.site.warehouse)
                assert done.rows or not fitting
                self.check()

    def check(self) -> None:
        """Checks that both tables together are the log."""
        self.site.check_offsets()
        found = self.site.verify()
        assert found.ok, found.faults

    def _pick_session(self) -> SparkSession | None:
        return self._spark if self.rng.random() < 0.7 else None

    def _write(self) -> None:
        for partition in range(2):
            for _ in range(self.rng.choice([1, 2])):
                count = self.rng.choice([1, 5, 20])
                keys = self._records.encode_keys(count) if self._rules.keys else None
                self.site.write(self._records.encode(count), partition, keys)

    def _change_field(self) -> None:
        field = self.rng.choice(["a", "b", "c", "b.a", "a[].b", "c.b"])
        changer = FieldChanger(self.site.store, "t", self.site.warehouse, field)
        changes: list[Callable[[], object]] = [
            lambda: changer.move_values("moved"),
            lambda: changer.move_values("B"),
            lambda: changer.move_values(""),
            lambda: changer.rename("other"),
            lambda: changer.retype("string"),
            lambda: changer.retype("double"),
            changer.drop,
        ]
        with suppress(Refused):  # there is no such field yet, or it has another type
            self.rng.choice(changes)()


class Damage:
    """Rows of a file of one of the two tables, which are changed behind its back and then restored."""

    def __init__(self, rng: Random, path: Path) -> None:
        self._rng = rng
        self._path = path
        self._before = path.read_bytes()
        self._table = pq.read_table(path)
        self.rows: list[Row] = self._table.to_pylist()

    def write(self) -> None:
        """Writes the rows as they are now."""
        pq.write_table(pa.Table.from_pylist(self.rows, schema=self._table.schema), self._path)

    def restore(self) -> None:
        """Writes the file as it was."""
        self._path.write_bytes(self._before)

    def pick(self) -> Row:
        """Returns one of the rows."""
        return self._rng.choice(self.rows)

    def pick_leaf(self) -> tuple[Row, Leaf] | None:
        """Returns a row and a cell of it that holds a leaf, None if no row has one."""
        found = [(row, leaf) for row in self.rows for name in row.keys() - {*RECORD_COLUMNS}
                 for leaf in leaves_of(row, name)]  # fmt: skip
        found.sort(key=lambda each: (each[0]["_partition"], each[0]["_offset"], each[1].path))
        return self._rng.choice(found) if found else None


class Leaf:
    """A place of a row that holds a leaf."""

    def __init__(self, holder: Any, at: Any, path: str) -> None:
        self._holder, self._at, self.path = holder, at, path

    def change(self) -> None:
        """Puts another leaf in its place."""
        held = self._holder[self._at]
        match held:
            case bool():
                self._holder[self._at] = not held
            case int():
                self._holder[self._at] = held ^ 1
            case float():
                self._holder[self._at] = math.nextafter(held, 1.0 if held != 1.0 else 2.0)
            case _:
                self._holder[self._at] = f"{held}x"

    def lose(self) -> None:
        """Puts NULL in its place."""
        self._holder[self._at] = None


def leaves_of(holder: Any, at: Any, path: str = "") -> Iterator[Leaf]:
    """Yields the leaves of a cell. The entries of a map are pairs, which cannot change: there a whole map is one."""
    held, path = holder[at], f"{path}.{at}"
    match held:
        case None:
            return
        case dict():
            for name in held:
                yield from leaves_of(held, name, path)
        case list() if not any(isinstance(each, tuple) for each in held):
            for place in range(len(held)):
                yield from leaves_of(held, place, path)
        case bool() | int() | float() | str():
            yield Leaf(holder, at, path)


def check_damage(table: RandomTable) -> int:
    """Does some damage, one after the other, and checks that each is found where it is. Returns how many were done."""
    site, rng, done = table.site, table.rng, 0
    for held, kinds in ((site.typed(), ("change", "lose", "drop")), (site.dead(), ("drop",))):
        files = [Path(held.url.removeprefix("file:"), add["path"]) for add in held.files()]
        for kind in kinds if files else ():
            damage = Damage(rng, rng.choice(files))
            if kind == "drop":
                row = damage.pick()
                damage.rows.remove(row)
            elif (found := damage.pick_leaf()) is not None:
                row, leaf = found
                leaf.change() if kind == "change" else leaf.lose()
            else:
                continue
            damage.write()
            faults = site.verify().faults
            assert {each[1:3] for each in faults} == {(row["_partition"], row["_offset"])}, (kind, row, faults)
            damage.restore()
            done += 1
    table.check()
    return done


@pytest.mark.parametrize("seed", first_seeds(1, 30))
def test_random_loads_are_whole_and_damage_is_found(tmp_path: Path, seed: int) -> None:
    table = RandomTable(tmp_path, seed)
    table.run(4)
    assert check_damage(table) > 0


@pytest.mark.also("tests/spark/test_typed_random.py::test_random_loads_are_whole_and_damage_is_found")
@pytest.mark.java
@pytest.mark.parametrize("seed", range(100, 103))
def test_random_loads_of_both_engines_are_whole(tmp_path: Path, seed: int, spark: SparkSession) -> None:
    table = RandomTable(tmp_path, seed, spark)
    table.run(3)
    assert check_damage(table) > 0
    found = verify(table.site.store, "t", table.site.warehouse, spark=spark)
    assert found.ok and found.values is not None and found.values.ok
