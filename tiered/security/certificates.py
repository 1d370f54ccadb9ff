"""The rule for certificates of listeners: their states, their problems, and a new one in the place of an old one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tiered.security.x509 import Certificate
from tiered.time_text import format_time

VALID, EXPIRING, EXPIRED, NOT_YET_VALID = "valid", "expiring", "expired", "not yet valid"
DAY_MS = 86_400_000
WARNED_SHARE = 3
"""Certificates of a short life are renewed late: the warning comes in the last third of a life at the earliest."""
WARNING_SETTING = "tiered.certificate.expiry.warning.days"
NEVER_MS = 1 << 62


class ListenerCertificate(NamedTuple):
    """The certificate that a listener shows, why it does not show a newer one ("": there is none), and why the trust
    store for connections to other brokers refuses it ("": it does not)."""

    listener: str
    certificate: Certificate
    rejected: str = ""
    distrusted: str = ""


def judge(certificate: Certificate, now_ms: int, warning_days: int) -> str:
    """Returns the state of a certificate. It is `expiring` in its last days, but not before the last third of its
    life."""
    if now_ms > certificate.not_after_ms:
        return EXPIRED
    if now_ms < certificate.not_before_ms:
        return NOT_YET_VALID
    third_ms = (certificate.not_after_ms - certificate.not_before_ms) // WARNED_SHARE
    left_ms = certificate.not_after_ms - now_ms
    return EXPIRING if left_ms < min(warning_days * DAY_MS, third_ms) else VALID


def refuse_replacement(old: Certificate, new: Certificate, now_ms: int) -> str:
    """Returns why a new certificate does not replace an old one; "" if it does. The dates of the new one count only
    while the old one is valid."""
    if judge(old, now_ms, 0) != VALID:
        return ""
    state = judge(new, now_ms, 0)
    if state == EXPIRED:
        return f"the new certificate ({new.title}) expired at {format_time(new.not_after_ms)}"
    if state == NOT_YET_VALID:
        return f"the new certificate ({new.title}) is not valid before {format_time(new.not_before_ms)}"
    return ""


def find_next_decision_ms(old: Certificate, new: Certificate, now_ms: int) -> int:
    """Returns the time at which a new certificate that was refused for its dates may replace the old one."""
    return min(old.not_after_ms + 1, new.not_before_ms if new.not_before_ms > now_ms else NEVER_MS)


def describe_problems(listed: Sequence[ListenerCertificate], now_ms: int, warning_days: int) -> Iterator[str]:
    """Yields a sentence for each problem. Listeners that share a certificate share its sentences."""
    for each in dict.fromkeys((one.certificate, one.rejected) for one in listed):
        names = [one.listener for one in listed if (one.certificate, one.rejected) == each]
        where = f"listener{'s' if len(names) > 1 else ''} {', '.join(names)}"
        certificate, rejected = each
        state = judge(certificate, now_ms, warning_days)
        what = f"the certificate of {where} ({certificate.title})"
        if state == EXPIRED:
            yield f"{what} expired at {format_time(certificate.not_after_ms)}: clients and brokers refuse it"
        elif state == NOT_YET_VALID:
            yield f"{what} is not valid before {format_time(certificate.not_before_ms)}: clients and brokers refuse it"
        elif state == EXPIRING:
            days = (certificate.not_after_ms - now_ms) / DAY_MS
            yield (
                f"{what} expires at {format_time(certificate.not_after_ms)}, in {days:.1f} days:"
                f" {WARNING_SETTING} is {warning_days}"
            )
        if rejected:
            yield f"a new certificate or setting of TLS of {where} is not used, the old one stays: {rejected}"
    for one in listed:
        if one.distrusted:
            yield (
                f"the certificate of listener {one.listener} ({one.certificate.title}) is refused by the trust store"
                f" of this broker: brokers with the same trust store cannot connect to it ({one.distrusted})"
            )
