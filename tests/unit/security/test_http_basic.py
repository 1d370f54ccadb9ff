"""Tests of HTTP Basic: what a header means, and what means nothing."""

from __future__ import annotations

from base64 import b64encode

import pytest

from tiered.security.http_basic import UserPassword, parse_basic
from tiered.security.secret import Secret


@pytest.mark.parametrize(
    ("decoded", "expected"),
    [
        (b"Aladdin:open sesame", UserPassword("Aladdin", Secret("open sesame"))),  # RFC 7617
        ("test:123£".encode(), UserPassword("test", Secret("123£"))),  # RFC 7617
        (b"a:b:c", UserPassword("a", Secret("b:c"))),
        (b"a:", UserPassword("a", Secret(""))),
        (b":b", None),
        (b"a", None),
        (b"", None),
        (b"a:\0", None),
        (b"a\n:b", None),
        (b"a:\xff", None),
    ],
)
def test_header_means_a_user_and_a_password_or_nothing(decoded: bytes, expected: UserPassword | None) -> None:
    assert parse_basic(b64encode(decoded).decode()) == expected


@pytest.mark.parametrize("text", ["!", "YTp", "YTpi YTpi", "YT-_", "ü", "\udcff"])
def test_text_that_is_not_base64_means_nothing(text: str) -> None:
    assert parse_basic(text) is None


def test_password_is_not_printed() -> None:
    assert "sesame" not in repr(UserPassword("Aladdin", Secret("sesame")))
