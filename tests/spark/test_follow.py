"""Tests of loads of many topics in one process, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tiered.load.follow import TopicsLoader
from pyspark_tiered.load.load import DEFAULT_OPTIONS, LoadProgress, TopicLoader
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import ColdTopicReader
from tests.spark import filling
from tests.spark.typed_site import JSON, Site, encode
from tiered.errors import Refused
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics


class Topics:
    """A store with topics, and the loads of those that begin with `orders.`"""

    def __init__(self, root: Path, split_bytes: int | None = None) -> None:
        self.store = f"file://{root}/store"
        self.warehouse = root / "tables"
        self.ids: dict[str, TopicId] = {}
        self.committed: list[str] = []
        self.metrics = Metrics()
        self.create("other")
        self.reader = ColdTopicReader(self.store)
        self.engine = NativeEngine()
        self.loads = TopicsLoader(
            self.engine,
            self.reader,
            self.store,
            r"orders\..*",
            str(self.warehouse),
            self.note,
            DEFAULT_OPTIONS,
            self.metrics,
            split_bytes,
        )

    def note(self, progress: LoadProgress) -> None:
        if progress.step == "committed":
            self.committed.append(progress.topic)

    def create(self, name: str) -> None:
        self.ids[name] = filling.topic_id(len(self.ids) + 1)
        filling.create_topic(self.store, name, self.ids[name], 1)

    def fill(self, name: str, first: int, count: int) -> None:
        rows = [(filling.BASE_MS, None, b"%d" % i, ()) for i in range(first, first + count)]
        segments = list(filling.segments(rows, base_offset=first))
        filling.upload(self.store, name, PartitionId(self.ids[name], 0), segments)

    def loaded(self, name: str) -> int:
        table = NativeTable(f"file:{self.warehouse}/{name}", name, self.ids[name])
        return table.loaded_offsets().get(0, -1)

    def close(self) -> None:
        self.loads.close()
        self.engine.close()
        self.reader.close()


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    found = Topics(tmp_path, split_bytes=2000)
    yield found
    found.close()


def test_topics_that_match_are_loaded_also_new_ones(topics: Topics) -> None:
    topics.create("orders.eu")
    topics.fill("orders.eu", 0, 10)
    topics.fill("other", 0, 10)
    topics.loads.run_interval()
    topics.create("orders.us")
    topics.fill("orders.us", 0, 20)
    topics.fill("orders.eu", 10, 5)
    topics.loads.run_interval()
    assert (topics.loaded("orders.eu"), topics.loaded("orders.us")) == (15, 20)
    assert not (topics.warehouse / "other").exists()
    assert topics.metrics.counter("tiered_load_rows_total", "", ("topic",)).value("orders.eu") == 15
    assert topics.metrics.gauge("tiered_load_lag_bytes", "", ("topic",)).value("orders.us") == 0
    assert not topics.reader.has_changed(topics.ids["orders.us"])
    filling.delete_topic(topics.store, topics.ids["orders.us"])
    topics.loads.run_interval()
    assert topics.reader.has_changed(topics.ids["orders.us"]), "its manifests are known no longer"
    assert 'tiered_load_lag_bytes{topic="orders.us"}' not in topics.metrics.render()


def test_topics_without_anything_new_cost_one_list_each(topics: Topics) -> None:
    for name in ("orders.a", "orders.b", "orders.c"):
        topics.create(name)
        topics.fill(name, 0, 5)
    topics.loads.run_interval()
    before = topics.reader.count_requests()
    topics.loads.run_interval()
    after = topics.reader.count_requests()
    spent = {verb: count - before.get(verb, 0) for verb, count in after.items() if count != before.get(verb, 0)}
    assert spent == {"get": 2, "list": 3}, "the next slot of the metadata and the boundary, for all topics"


def test_topic_with_a_backlog_does_not_hold_up_the_others(topics: Topics) -> None:
    for name, count in (("orders.big", 3000), ("orders.small", 50)):
        topics.create(name)
        topics.fill(name, 0, count)
    topics.loads.run_interval()
    assert topics.committed.count("orders.big") > 2
    assert topics.committed.index("orders.small") <= 1
    assert (topics.loaded("orders.big"), topics.loaded("orders.small")) == (3000, 50)


def test_topic_that_fails_is_named_and_tried_again(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("orders.bad", "orders.good"):
        topics.create(name)
        topics.fill(name, 0, 5)
    foreign = NativeTable(f"file:{topics.warehouse}/orders.bad", "orders.bad", "another-id")
    assert foreign.commit([], [])
    topics.loads.run_interval()
    assert topics.loaded("orders.good") == 5
    assert list(topics.loads.failures()) == ["orders.bad"]
    assert "load into another warehouse" in caplog.text
    (topics.warehouse / "orders.bad").rename(topics.warehouse / "moved")
    for _ in range(3):
        topics.loads.run_interval()
    assert (topics.loaded("orders.bad"), topics.loads.failures()) == (5, {})


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), pa.ArrowInvalid("no Parquet")])
def test_failure_that_is_none_of_ours_holds_no_other_topic_up(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    for name in ("orders.bad", "orders.good"):
        topics.create(name)
        topics.fill(name, 0, 5)
    real = NativeTable.commit

    def commit(table: NativeTable, *arguments: Any, **more: Any) -> bool:
        if table.topic == "orders.bad":
            raise fault
        return real(table, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(NativeTable, "commit", commit)
        topics.loads.run_interval()
    assert (topics.loaded("orders.bad"), topics.loaded("orders.good")) == (-1, 5)
    assert f"could not load orders.bad: {type(fault).__name__}: {fault}" in caplog.text
    assert topics.metrics.counter("tiered_load_failures_total", "", ("topic",)).value("orders.bad") == 1
    topics.loads.run_interval()
    assert (topics.loaded("orders.bad"), topics.loads.failures()) == (5, {})


def test_pattern_that_is_no_regular_expression_is_refused(topics: Topics) -> None:
    with pytest.raises(Refused, match="no regular expression"):
        TopicsLoader(topics.engine, topics.reader, topics.store, "*", "w", topics.note, DEFAULT_OPTIONS, topics.metrics)


def test_segment_that_only_the_typed_round_saw_is_news(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"id": 1}))
    with closing(ColdTopicReader(site.store)) as reader, closing(NativeEngine()) as engine:
        url = f"file:{site.warehouse}/t"
        loader = TopicLoader(engine, reader, site.store, "t", url, lambda _: None, None, JSON)
        with closing(loader):
            loader.begin()
            assert not loader.run_round(), "the raw round"
            site.write(encode({"id": 2}))
            while not loader.run_round():
                pass
            loader.finish()
            assert site.typed().loaded_offsets() == {0: 2}
            assert loader.has_news(), "the raw table does not have it"
            loader.run()
            assert not loader.has_news()
    site.check_offsets()
