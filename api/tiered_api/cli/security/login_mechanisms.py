"""The refusal of a password that no login of the brokers takes, by their settings.

A listener takes its own mechanisms, or those of its broker. HTTP takes a password of any mechanism. A broker that does
not show its settings, or does not reply, may take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiered.errors import Code, Refused, Unavailable
from tiered_api.cli.configs import BROKER, describe_configs
from tiered_api.cli.output import print_error
from tiered_api.kafka.client.client import KafkaClient, only_result
from tiered_api.kafka.client.error_sentences import explain_error

LISTENERS, PROTOCOLS = "listeners", "listener.security.protocol.map"
ENABLED, HTTP_LOGINS, BASIC = "sasl.enabled.mechanisms", "authentication.method", "BASIC"
WITH_LOGIN = "SASL_"
"""The begin of the names of protocols whose clients log in by SASL."""


class TakenMechanisms(NamedTuple):
    """The mechanisms of the listeners of one broker, by their names. `any_over_http` is True if HTTP takes passwords of
    any mechanism."""

    by_listener: Mapping[str, tuple[str, ...]]
    any_over_http: bool

    def has(self, mechanism: str) -> bool:
        """True if a login with a password of this mechanism can succeed."""
        return self.any_over_http or any(mechanism in each for each in self.by_listener.values())


def read_mechanisms(settings: Mapping[str, str | None]) -> TakenMechanisms:
    """Returns what a broker with these settings takes."""
    protocols = dict(each.rpartition(":")[::2] for each in _split(settings.get(PROTOCOLS)))
    taken = {}
    for listener in _split(settings.get(LISTENERS)):
        name = listener.partition("://")[0].upper()
        if protocols.get(name, name).startswith(WITH_LOGIN):
            own = settings.get(f"listener.name.{name.lower()}.{ENABLED}")
            taken[name] = _split(settings.get(ENABLED) if own is None else own)
    return TakenMechanisms(taken, BASIC in _split(settings.get(HTTP_LOGINS)))


async def check_mechanism(client: KafkaClient, mechanism: str) -> None:
    """Raises `Refused` if no broker takes a mechanism. Says on the error stream if that is not known."""
    await client.fetch_metadata([])
    enabled: set[str] = set()
    for node in sorted(client.brokers):
        try:
            shown = only_result(await describe_configs(client, BROKER, [str(node)], node=node))
        except Unavailable as fault:
            _report_unknown(mechanism, str(fault))
            return
        if shown.error_code:
            _report_unknown(
                mechanism, f"settings of broker {node}: {explain_error(shown.error_code, shown.error_message)}"
            )
            return
        taken = read_mechanisms({each.name: each.value for each in shown.configs})
        if taken.has(mechanism):
            return
        enabled.update(each for listener in taken.by_listener.values() for each in listener)
    known = f"they take {', '.join(sorted(enabled))} ({ENABLED})" if enabled else "no listener of theirs has a login"
    why = f"no listener of the brokers takes {mechanism}: {known}. --force does it"
    raise Refused(Code.UNSUPPORTED_SASL_MECHANISM, why)


def _report_unknown(mechanism: str, why: str) -> None:
    print_error(f"a listener that takes {mechanism} was not looked for: {why}")


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
