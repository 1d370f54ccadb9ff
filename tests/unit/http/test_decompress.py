import gzip
import zlib

import pytest
import zstandard

from tests.steps import count_steps
from tiered_api.http.exchange.decompress import Inflater, WholeBody, new_inflater
from tiered_api.http.exchange.errors import HttpError

MIB = 1 << 20
BODY = b"".join(b"record %d\n" % n for n in range(5000))
COMPRESSED = {"gzip": gzip.compress(BODY), "zstd": zstandard.compress(BODY)}


def feed(body: Inflater, data: bytes) -> bytes:
    """Returns what a piece of a body becomes, in steps of a few KiB."""
    made, at = b"", 0
    while at < len(data) or body.has_more:
        part, at = body.step(data, at, 4096)
        made += part
    return made


def inflate(encoding: str, data: bytes, limit: int) -> bytes | bytearray:
    body = WholeBody(encoding, data, limit)
    if body.is_plain:
        return data
    body.check()
    size = body.fill()
    whole = body.take()
    assert len(whole) == size
    return whole


def refused(encoding: str, data: bytes, limit: int = MIB) -> int:
    with pytest.raises(HttpError) as error:
        inflate(encoding, data, limit)
    return error.value.status


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_body_is_decompressed_whole_or_in_pieces(encoding: str) -> None:
    data = COMPRESSED[encoding]
    assert inflate(encoding, data, MIB) == BODY
    body = new_inflater(encoding)
    assert body is not None
    assert b"".join(feed(body, data[at : at + 7]) for at in range(0, len(data), 7)) == BODY
    body.finish()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_consecutive_members_are_one_body(encoding: str) -> None:
    assert inflate(encoding, COMPRESSED[encoding] * 3, MIB) == BODY * 3


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB])
def test_gzip_body_is_whole_however_many_outputs_of_zlib_it_takes(size: int) -> None:
    body = (BODY * (1 + size // len(BODY)))[:size]
    for whole in (body, bytes(size)):
        data = gzip.compress(whole)
        assert inflate("gzip", data, size) == whole
        assert inflate("gzip", data + COMPRESSED["gzip"], 2 * size) == whole + BODY
        assert refused("gzip", data, size - 1) == 413
        assert refused("gzip", data[:-1], size) == 400


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_step_makes_little_of_a_bomb(encoding: str) -> None:
    zeros = bytes(4 * MIB)
    bomb = gzip.compress(zeros) if encoding == "gzip" else zstandard.compress(zeros)
    body, at, made = new_inflater(encoding), 0, list[int]()
    assert body is not None
    while at < len(bomb) or body.has_more:
        part, at = body.step(bomb, at, 1 << 16)
        made.append(len(part))
    assert sum(made) == 4 * MIB and max(made) <= 1 << 19


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_cut_or_garbled_body_is_400(encoding: str) -> None:
    data = COMPRESSED[encoding]
    assert refused(encoding, data[:-1]) == 400
    assert refused(encoding, b"\0" * 100) == 400
    assert refused(encoding, data + b"rest") == 400


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bomb_is_413_at_its_limit(encoding: str) -> None:
    zeros = b"\0" * (64 * MIB)
    bomb = zlib.compress(zeros, wbits=31) if encoding == "gzip" else zstandard.compress(zeros)
    assert refused(encoding, bomb) == 413
    assert inflate(encoding, COMPRESSED[encoding], len(BODY)) == BODY
    assert refused(encoding, COMPRESSED[encoding], len(BODY) - 1) == 413


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bomb_takes_no_step_of_python_for_each_piece(encoding: str) -> None:
    """A step holds the interpreter's lock, and the other clients of a broker wait for it."""
    zeros = bytes(64 * MIB)
    bomb = gzip.compress(zeros, 1) if encoding == "gzip" else zstandard.compress(zeros)
    assert count_steps(lambda: refused(encoding, bomb, 63 * MIB)) < 200


@pytest.mark.parametrize("window", [8 * MIB, 16 * MIB])
def test_frame_of_zstd_with_a_large_window_is_refused(window: int) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=window.bit_length() - 1, write_content_size=0)
    piece = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = COMPRESSED["zstd"] + piece.compress(BODY) + piece.flush()
    if window == 8 * MIB:
        assert inflate("zstd", data, MIB) == BODY * 2
    else:
        assert refused("zstd", data) == 400


def test_unknown_encoding_is_415_and_no_encoding_is_free() -> None:
    assert inflate("identity", BODY, 1) is BODY
    assert inflate("gzip", b"", 1) == inflate("zstd", b"", 1) == b"", "some clients send the header without a body"
    assert inflate("X-GZIP", COMPRESSED["gzip"], MIB) == BODY
    assert refused("x-zstd", BODY) == 415
    assert refused("br", BODY) == 415


@pytest.mark.parametrize(
    ("encoding", "empty"), [("gzip", gzip.compress(b"", mtime=0)), ("zstd", zstandard.compress(b""))]
)
def test_body_of_many_members_is_refused_400_after_little_work(encoding: str, empty: bytes) -> None:
    body = empty * ((32 << 20) // len(empty))
    steps = count_steps(lambda: refused(encoding, body, 64 << 20))
    assert refused(encoding, body, 64 << 20) == 400
    assert steps < 20_000, "a member takes several, and there are more than a million"
    assert inflate(encoding, empty * 900 + COMPRESSED[encoding], MIB) == BODY


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_stream_may_have_any_number_of_members_a_few_in_each_piece(encoding: str) -> None:
    opened = new_inflater(encoding)
    assert opened is not None
    for _ in range(1_500):
        assert feed(opened, COMPRESSED[encoding]) == BODY
    opened.finish()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_error_of_a_body_that_is_too_large_holds_none_of_it(encoding: str) -> None:
    """An error and the future that brings it hold each other, so its variables stay until the garbage collector runs.
    A few bombs took a gigabyte in this way."""
    data = bytes(4 << 20)
    bomb = gzip.compress(data) if encoding == "gzip" else zstandard.ZstdCompressor().compress(data)
    with pytest.raises(HttpError) as refused:
        inflate(encoding, bomb, 2 << 20)
    held, step = [], refused.value.__traceback__
    while step is not None:
        held += [each for each in step.tb_frame.f_locals.values() if isinstance(each, bytes | bytearray | list)]
        step = step.tb_next
    assert max(len(each) for each in held if each is not data) < 100_000
