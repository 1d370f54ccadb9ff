"""Tests of the headers of requests and responses, in the version that belongs to each API and version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_api.kafka.protocol import apis, headers
from tiered_api.kafka.protocol.primitives import Malformed

ALL = [(api, version) for api in apis.APIS.values() for version in api.served_versions]
METADATA = apis.APIS[3]


@pytest.mark.parametrize("client_id", [None, "", "reader-1", "é日", "x" * 300])
def test_request_header_decodes_to_what_was_encoded(client_id: str | None) -> None:
    for api, version in ALL:
        written = headers.encode_request_header(api, version, -7, client_id)
        read = headers.decode_request_header(memoryview(b"\0\0\0\0" + written + b"body"), 4)
        assert read == (api.key, version, -7, client_id, 4 + len(written), api)


def test_request_headers_have_kafkas_bytes() -> None:
    assert headers.encode_request_header(METADATA, 8, 1, "me") == bytes.fromhex("0003 0008 00000001 0002 6d65")
    assert headers.encode_request_header(METADATA, 9, 1, "me") == bytes.fromhex("0003 0009 00000001 0002 6d65 00")
    assert headers.encode_request_header(METADATA, 9, 1, None) == bytes.fromhex("0003 0009 00000001 ffff 00")


def test_response_headers_have_kafkas_bytes() -> None:
    assert headers.encode_response_header(3, 8, 258) == bytes.fromhex("00000102")
    assert headers.encode_response_header(3, 9, 258) == bytes.fromhex("00000102 00")


def test_api_versions_is_answered_with_header_0_in_every_version() -> None:
    for version in (0, 3, 4, 99):
        assert headers.encode_response_header(apis.API_VERSIONS, version, 5) == bytes.fromhex("00000005")


def test_response_header_decodes_to_what_was_encoded() -> None:
    for api, version in ALL:
        written = headers.encode_response_header(api.key, version, 77)
        assert headers.decode_response_header(api, version, b"\0\0" + written, 2) == (77, 2 + len(written))


def test_tagged_fields_of_headers_are_skipped() -> None:
    tags = bytes.fromhex("02 00 01 aa 8101 02 bbbb")
    head = headers.encode_request_header(METADATA, 12, 1, "me")[:-1]
    assert headers.decode_request_header(head + tags + b"body").position == len(head + tags)
    assert headers.decode_response_header(METADATA, 12, bytes.fromhex("00000001") + tags) == (1, 4 + len(tags))


def test_header_of_an_unserved_api_has_client_and_correlation_id() -> None:
    frame = bytes.fromhex("0012 0063 00000009 0003 6b6174 00 08")
    assert headers.decode_request_header(frame)[:4] == (18, 99, 9, "kat")
    assert headers.decode_request_header(frame).api is None


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ("", "requires a buffer"),
        ("0003 0008 00000001 00", "requires a buffer"),
        ("0003 0008 00000001 0003 6d65", "longer than its frame"),
        ("0003 0008 00000001 7fff 6d65", "longer than its frame"),
        ("0003 0008 00000001 0002 6dff", "utf-8"),
        ("0003 0009 00000001 0002 6d65", "index out of"),
        ("0003 0009 00000001 0002 6d65 01 00 05 aa", "longer than its frame"),
        ("0003 0009 00000001 0002 6d65 ffffffffff 00", "32 bits"),
    ],
)
def test_broken_request_header_is_malformed(frame: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        headers.decode_request_header(memoryview(bytes.fromhex(frame)))


def test_broken_response_header_is_malformed() -> None:
    for frame in (b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1\0\5"):
        with pytest.raises(Malformed):
            headers.decode_response_header(METADATA, 9, frame)


@given(st.binary(max_size=40))
def test_any_bytes_decode_to_a_header_or_are_malformed(frame: bytes) -> None:
    try:
        read = headers.decode_request_header(memoryview(frame))
    except Malformed:
        return
    assert 10 <= read.position <= len(frame)
