"""Tests of an encrypted bucket without a broker: cleans, Spark's source, a load and its verify, with and without
keys."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof.verify import verify
from tests.encryption import write_key_file
from tests.spark import filling
from tiered.errors import Unavailable
from tiered.ids import PartitionId

TOPIC = filling.topic_id(6)
COUNT = 1500
WORDS = "is encrypted by key one, and no keys are given"


class MixedBucket:
    """A bucket that was turned to encryption: partition 0 is plain, partition 1 encrypted. `url` names the keys."""

    def __init__(self, folder: Path) -> None:
        keys = write_key_file(folder / "keys")
        self.plain_url = f"file://{folder}/store"
        self.url = f"{self.plain_url}?keys={keys}"
        self.folder = folder / "store"
        source = random.Random(6)
        self.values = [[source.randbytes(300) for _ in range(COUNT)] for _ in range(2)]
        filling.create_topic(self.plain_url, "t", TOPIC, 2)
        for partition, url in enumerate((self.plain_url, self.url)):
            rows = [(filling.BASE_MS + at, b"k", value, ()) for at, value in enumerate(self.values[partition])]
            filling.upload(url, "t", PartitionId(TOPIC, partition), list(filling.segments(rows)))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> MixedBucket:
    return MixedBucket(tmp_path_factory.mktemp("mixed"))


def test_objects_of_the_encrypted_partition_show_nothing(mixed: MixedBucket) -> None:
    objects = [[path.read_bytes() for path in mixed.folder.glob(f"data/*/{number}/*")] for number in (0, 1)]
    assert [any(mixed.values[number][7] in each for each in objects[number]) for number in (0, 1)] == [True, False]
    assert len(objects[1]) == len(objects[0]) > 1


def test_clean_reads_and_writes_encrypted_segments(tmp_path: Path) -> None:
    bucket = MixedBucket(tmp_path)
    for partition in (0, 1):
        manifest = filling.clean(bucket.url, "t", PartitionId(TOPIC, partition))
        assert sum(entry.record_count for entry in manifest.entries) < COUNT
        kept = [path.read_bytes() for path in bucket.folder.glob(f"data/*/{partition}/*.seg")]
        assert kept and not any(bucket.values[partition][-1] in each for each in kept)


@pytest.mark.java
def test_source_reads_plain_and_encrypted_segments(spark: SparkSession, mixed: MixedBucket) -> None:
    frame = spark.read.format("tiered").options(store=mixed.url, topic="t", splitBytes=100_000).load()
    rows = frame.select("partition", "offset", "value").orderBy("partition", "offset").collect()
    assert [bytes(row.value) for row in rows] == [*mixed.values[0], *mixed.values[1]]


def test_load_without_keys_names_the_object_and_the_key(mixed: MixedBucket, tmp_path: Path) -> None:
    assert load(mixed.url, "t", str(tmp_path / "with"), engine=NativeEngine()).rows == 2 * COUNT
    with pytest.raises(Unavailable, match=f"data/{TOPIC}/1/manifest {WORDS}"):
        load(mixed.plain_url, "t", str(tmp_path / "without"), engine=NativeEngine())


@pytest.mark.also("tests/spark/test_encrypted_reads.py::test_source_reads_plain_and_encrypted_segments")
@pytest.mark.java
def test_loaded_table_is_verified_with_the_keys(spark: SparkSession, mixed: MixedBucket, tmp_path: Path) -> None:
    load(mixed.url, "t", str(tmp_path), engine=NativeEngine())
    assert verify(mixed.url, "t", str(tmp_path), spark=spark).ok


@pytest.mark.java
def test_source_without_keys_names_the_object_and_the_key(spark: SparkSession, mixed: MixedBucket) -> None:
    frame = spark.read.format("tiered").options(store=mixed.plain_url, topic="t").load()
    with pytest.raises(PySparkException, match=f"data/{TOPIC}/1/manifest {WORDS}"):
        frame.count()
