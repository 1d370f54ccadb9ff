"""Decisions about a store's refusals: is the login too old, and may a checksum be missing?

Pure: from the status, the code and the message of a reply. A reply to HEAD has no body, so its code is its status.
"""

from __future__ import annotations

LOGIN_CODES = frozenset(
    (
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidSecurity",
        "Unauthorized",
        # of STS, which gives the keys of a role
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidIdentityToken",
        "UnrecognizedClientException",
    )
)
"""Codes of replies to keys that are unknown, expired or wrong."""
REFUSED_KEY_CODES = frozenset(("AccessDenied", "MethodNotAllowed", "AuthorizationHeaderMalformed", *LOGIN_CODES))
"""Codes of single keys of DeleteObjects that a retry does not change."""
CHECKSUM_HEADERS = ("content-md5", "x-amz-checksum")


def is_login_refusal(status: int, code: str) -> bool:
    """True if the store does not know the credentials."""
    return status == 401 or code in LOGIN_CODES


def may_be_old_login(status: int, code: str) -> bool:
    """True if new credentials may help. Some stores reply AccessDenied to keys that they do not know."""
    return is_login_refusal(status, code) or status == 403 or (status == 400 and code == "400")


def is_refused_key(code: str) -> bool:
    """True if a store refused to delete one key of several, and will do so again."""
    return code in REFUSED_KEY_CODES


def may_lack_checksum(status: int, code: str, message: str) -> bool:
    """True if the same request with a Content-MD5 may succeed."""
    if status != 400 or code in ("BadDigest", "InvalidDigest"):
        return False
    words = message.lower()
    return code in ("InvalidRequest", "MissingContentMD5") or any(header in words for header in CHECKSUM_HEADERS)
