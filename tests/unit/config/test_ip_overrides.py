"""Tests of addresses that may have more or fewer connections than others."""

from __future__ import annotations

import pytest

from tiered.config.ip_overrides import read_ip_overrides
from tiered.config.rules import check_addresses
from tiered.config.settings import Settings, broker_rows
from tiered.errors import Code, Refused

NAME = "max.connections.per.ip.overrides"


def test_addresses_have_the_form_of_hosts_of_connections() -> None:
    settings = Settings.from_strings({NAME: "10.0.0.7:20, [2001:DB8:0::7]:5, ::1:0"})
    read = read_ip_overrides(settings.max_connections_per_ip_overrides)
    assert read == {"10.0.0.7": 20, "2001:db8::7": 5, "::1": 0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.7", "it must be ADDRESS:CONNECTIONS"),
        ("10.0.0.7:-1", "it must be ADDRESS:CONNECTIONS"),
        ("10.0.0.7:2147483648", "it must be ADDRESS:CONNECTIONS"),
        ("broker.example:1", "names of hosts have no limits"),
        ("::1:5,[0:0::1]:6", "the address is given twice"),
    ],
)
def test_limit_of_no_address_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        Settings.from_strings({NAME: text})
    assert refused.value.code is Code.INVALID_CONFIG
    assert refused.value.why.startswith(f"{NAME}=") and why in refused.value.why


def test_no_connections_for_all_addresses_are_refused() -> None:
    nobody = Settings.from_strings({"max.connections.per.ip": "0"})
    with pytest.raises(Refused, match="nobody could connect"):
        check_addresses(nobody, broker_rows())
    check_addresses(Settings.from_strings({NAME: "10.0.0.7:1"}, defaults=nobody), broker_rows())
