import pytest

from tiered.records.batch import MAX_DECOMPRESSED, Codec, encode
from tiered_api.http.reads import effort, memory

PLAIN = encode([(0, None, b"v" * 100, ())])


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_the_effort_of_a_batch_is_at_least_what_it_becomes_wherever_it_stands(codec: Codec) -> None:
    small = encode([(0, None, bytes(4 << 20), ())], codec=codec)
    assert len(small) < 1 << 20
    for data in (small, PLAIN + small, small + PLAIN):
        assert effort(data) >= 4 << 20
        assert memory(data) >= 4 << 20


def test_what_is_not_compressed_costs_what_it_is_and_nothing_costs_more_than_can_be_opened() -> None:
    assert effort(PLAIN) == len(PLAIN)
    assert effort(b"no batch at all") == len(b"no batch at all")
    bomb = encode([(0, None, bytes(1 << 20), ())], codec=Codec.ZSTD) * 100
    assert memory(bomb) == MAX_DECOMPRESSED
