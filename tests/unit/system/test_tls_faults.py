"""Tests of the reasons of failed TLS connections: each says what to do, and none hides OpenSSL's name."""

from __future__ import annotations

import ssl

import pytest

from tiered.system.tls_faults import describe_fault


def error_with(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "text of OpenSSL")
    error.reason = reason  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("HTTP_REQUEST", "the other side speaks HTTP without TLS: use https (HTTP_REQUEST)"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "set ssl.keystore.location (TLSV13_ALERT_CERTIFICATE_REQUIRED)"),
        ("OF_A_LATER_RELEASE", "OpenSSL says OF_A_LATER_RELEASE"),
        (None, "OpenSSL says SSLError"),
    ],
)
def test_reason_has_advice_or_the_name_that_openssl_gives(reason: str | None, advice: str) -> None:
    assert describe_fault(error_with(reason)).endswith(advice)


def test_refused_certificate_has_the_reason_of_its_check() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "certificate has expired"
    assert describe_fault(error) == "the certificate of the other side is not accepted: certificate has expired"
