import pytest

from tiered.records.batch import encode_batch
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.produce import batches, choose_partition, max_record_size
from tiered_api.http.partitions.record_formats import ProducerRecord
from tiered_api.http.v3.streaming import JsonSplitter

TEXT = b'{"a":"}{"} {"b":[1,{}]}\n\n"c"5 \t{"d":null}'
VALUES = [b'{"a":"}{"}', b'{"b":[1,{}]}', b'"c"', b"5", b'{"d":null}']


def feed(splitter: JsonSplitter, piece: bytes) -> list[bytes]:
    """Returns the values that are complete after a piece of bytes."""
    return [text for some in splitter.feed(piece) for text in some]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_values_are_the_same_for_any_pieces_of_bytes(size: int) -> None:
    splitter = JsonSplitter(100)
    texts = [text for at in range(0, len(TEXT), size) for text in feed(splitter, TEXT[at : at + size])]
    splitter.raise_fault()
    assert texts + splitter.finish() == VALUES
    splitter.raise_fault()


def test_values_before_garbage_are_returned_and_then_an_error() -> None:
    splitter = JsonSplitter(100)
    assert feed(splitter, b'{"a":1} {"b":2} ] {"c":3}') == [b'{"a":1}', b'{"b":2}']
    with pytest.raises(HttpError) as refused:
        splitter.raise_fault()
    assert refused.value.status == 400


def test_cut_end_and_too_long_value_are_errors() -> None:
    torn = JsonSplitter(100)
    assert feed(torn, b'1 {"a":') == [b"1"]
    assert torn.finish() == []
    with pytest.raises(HttpError, match="ends inside"):
        torn.raise_fault()
    long = JsonSplitter(10)
    assert feed(long, b'{"a":"0123456789') == []
    with pytest.raises(HttpError) as refused:
        long.raise_fault()
    assert refused.value.status == 413


def test_values_of_a_chunk_come_at_most_1000_at_a_time() -> None:
    splitter = JsonSplitter(100)
    assert [len(texts) for texts in splitter.feed(b"{}" * 2_500 + b"[")] == [1_000, 1_000, 500]
    assert feed(splitter, b"]") == [b"[]"]


def record(key: bytes | None, value: bytes = b"v", partition: int | None = None) -> ProducerRecord:
    return ProducerRecord(partition, 0, key, value, (("h", b"x"),))


def test_keys_go_to_the_partition_of_kafkas_partitioner() -> None:
    # Kafka's Utils.murmur2 of these keys, made positive, modulo 100.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    for key, murmur in known.items():
        assert choose_partition(record(key), 100, 7) == (murmur & 0x7FFFFFFF) % 100


def test_record_without_a_key_is_round_robin_unless_it_names_a_partition() -> None:
    assert [choose_partition(record(None), 3, turn) for turn in range(4)] == [0, 1, 2, 0]
    assert choose_partition(record(b"key", partition=2), 3, 0) == 2
    assert choose_partition(record(b""), 3, 0) == choose_partition(record(b""), 3, 1)


def test_batches_stay_below_the_limit_and_keep_the_order() -> None:
    records = [record(b"k" * n, b"v" * 50 * n) for n in range(20)]
    runs = list(batches(records, range(20), 2000))
    assert [n for run in runs for n in run] == list(range(20))
    for run in runs:
        assert len(run) == 1 or len(encode_batch([records[n][1:5] for n in run])) <= 2000
    assert max_record_size(records[9]) >= len(encode_batch([records[9][1:5]])) - 61
