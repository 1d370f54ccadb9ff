"""Tests of refusals of a store: which of them new credentials, a checksum or nothing at all may mend."""

from __future__ import annotations

import pytest

from tiered.object_store.s3_refusals import is_login_refusal, is_refused_key, may_be_old_login, may_lack_checksum


@pytest.mark.parametrize(
    ("status", "code", "refusal", "old_login"),
    [
        (401, "", True, True),
        (403, "InvalidAccessKeyId", True, True),
        (400, "ExpiredToken", True, True),
        (403, "AccessDenied", False, True),
        (403, "403", False, True),
        (400, "400", False, True),
        (400, "InvalidRequest", False, False),
        (404, "NoSuchKey", False, False),
        (503, "SlowDown", False, False),
    ],
)
def test_status_and_code_say_whether_new_credentials_may_help(
    status: int, code: str, refusal: bool, old_login: bool
) -> None:
    assert (is_login_refusal(status, code), may_be_old_login(status, code)) == (refusal, old_login)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("AccessDenied", True), ("InvalidToken", True), ("InternalError", False), ("SlowDown", False)],
)
def test_refused_key_is_not_deleted_again(code: str, expected: bool) -> None:
    assert is_refused_key(code) is expected


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (400, "InvalidRequest", "", True),
        (400, "MissingContentMD5", "", True),
        (400, "400", "Missing required header: Content-MD5", True),
        (400, "Other", "x-amz-checksum-crc32 is required", True),
        (400, "Other", "no", False),
        (400, "BadDigest", "The Content-MD5 you specified did not match", False),
        (403, "InvalidRequest", "", False),
    ],
)
def test_request_is_sent_with_a_checksum_only_if_that_may_help(
    status: int, code: str, message: str, expected: bool
) -> None:
    assert may_lack_checksum(status, code, message) is expected
