"""The reasons of failed TLS connections, in words that say what to do."""

from __future__ import annotations

import ssl

_ADVICE = {
    "HTTP_REQUEST": "the other side speaks HTTP without TLS: use https",
    "WRONG_VERSION_NUMBER": "the other side speaks no TLS: is its security.protocol PLAINTEXT?",
    "UNSUPPORTED_PROTOCOL": "the other side has none of ssl.enabled.protocols",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side refuses each of ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "no cipher suite of the other side is in ssl.cipher.suites",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refuses: it may know none of our cipher suites",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, and ssl.client.auth=required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate: set ssl.keystore.location",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust our certificate: its trust store lacks our CA",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired, says the other side",
}
"""Advice by OpenSSL's name of the reason."""


def describe_fault(error: ssl.SSLError | ssl.CertificateError) -> str:
    """Returns what OpenSSL says about a failed connection, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other side is not accepted: {error.verify_message}"
    reason = getattr(error, "reason", None) or type(error).__name__
    advice = _ADVICE.get(reason)
    return f"{advice} ({reason})" if advice else f"OpenSSL says {reason}"
